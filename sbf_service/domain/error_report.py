"""Error reports of elements, and the part of a report that concerns one cluster. Pure.

The complete report names every cluster that fails on the element, and is for administrators. A cluster's owner sees
only the part about that cluster.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from sbf_service.domain.ownership import describe_foreign_vlans
from virtcloud.model.edge import DeviceObserved
from virtcloud.model.errors import ElementError, Refused, Unreachable
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan

SHARED_VLAN_REMEDY = "its cluster is joined to that use until one of them is moved"
BLOCKED_VLAN_REMEDY = (
    "it was left as it is and is excluded from the site's pool; create the cluster again to get another VLAN"
)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The record of a worker's failure on a device.

    ``about`` maps VLAN IDs to their errors, if the failure concerns single VLANs only. ``unsaved`` is true after a save
    that could not be verified. ``saved`` is the observed state that the device has saved in spite of the error.
    """

    message: str
    reachable: bool = True
    about: Mapping[int, str] = field(default_factory=dict)
    unsaved: bool = False
    saved: DeviceObserved | None = None


class ReconcileStoppedError(Exception):
    """A worker stopped with an error report."""

    def __init__(self, report: ErrorReport) -> None:
        """Store the report."""
        super().__init__(report.message)
        self.report = report


def describe_shared_vlans(wanted: VlanSet, foreign: Iterable[ForeignVlan]) -> dict[int, str]:
    """Return an error for each wanted VLAN ID that is also in other use on the device."""
    return {
        int(one.vlan): f"{describe_foreign_vlans([one])}; {SHARED_VLAN_REMEDY}" for one in foreign if one.vlan in wanted
    }


def describe_blocked_vlans(blocked: VlanSet, foreign: Iterable[ForeignVlan]) -> dict[int, str]:
    """Return an error for each wanted VLAN ID that cannot be configured because the VLAN is in other use."""
    return {
        int(one.vlan): f"{describe_foreign_vlans([one])}; {BLOCKED_VLAN_REMEDY}"
        for one in foreign
        if one.vlan in blocked
    }


def make_error_report(error: ElementError, *, unsaved: bool = False) -> ErrorReport:
    """Return the report of a driver's error. With ``unsaved``, the error concerns every cluster on the device."""
    about = error.about if isinstance(error, Refused) and not unsaved else {}
    return ErrorReport(str(error), not isinstance(error, Unreachable), about, unsaved)


NO_CLUSTER_ERRORS: Mapping[str, str] = MappingProxyType({})
OTHER_CLUSTERS_ERROR = "it has trouble with another cluster"


def format_cluster_errors(clusters: Mapping[str, str], most: int) -> str | None:
    """Return the errors of single clusters as JSON, by cluster ID; None if there are no errors.

    Each text is cut to ``most`` characters.
    """
    return json.dumps({one: text[:most] for one, text in sorted(clusters.items())}) if clusters else None


def find_cluster_error(trouble: str | None, troubles: str | None, *ids: str | None) -> str | None:
    """Return the element's error as it concerns one cluster, or None if the element has no error.

    ``trouble`` is the element's complete report and ``troubles`` the JSON of :func:`format_cluster_errors`. ``ids``
    are the IDs of the cluster and of its network.
    """
    if trouble is None or troubles is None:
        return trouble
    found = _parse_cluster_errors(troubles)
    return next((found[one] for one in ids if one in found), OTHER_CLUSTERS_ERROR)


@lru_cache(maxsize=1024)
def _parse_cluster_errors(troubles: str) -> Mapping[str | None, str]:
    return MappingProxyType(dict(json.loads(troubles)))
