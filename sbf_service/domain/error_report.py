"""What went wrong with a device in one try, as it is recorded. Pure.

What an element says is wrong, as the owner of a cluster on it is told.

An element's whole text names every cluster that fails there, by its key, and is for administrators.
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
    """What an element is recorded to have trouble with.

    ``about`` has what is about single VLAN IDs, where nothing else is wrong. ``unsaved``: a save was tried, and is not
    known to have worked. ``saved`` is what the device carries and has saved in spite of the trouble.
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
    """Return what is wrong with each wanted VLAN that somebody else uses too, on a device that carries it."""
    return {
        int(one.vlan): f"{describe_foreign_vlans([one])}; {SHARED_VLAN_REMEDY}" for one in foreign if one.vlan in wanted
    }


def describe_blocked_vlans(blocked: VlanSet, foreign: Iterable[ForeignVlan]) -> dict[int, str]:
    """Return what is wrong with each wanted VLAN that cannot be set up because somebody else uses it."""
    return {
        int(one.vlan): f"{describe_foreign_vlans([one])}; {BLOCKED_VLAN_REMEDY}"
        for one in foreign
        if one.vlan in blocked
    }


def make_error_report(error: ElementError, *, unsaved: bool = False) -> ErrorReport:
    """Return what is recorded for a driver's error; an unsaved device concerns every cluster on it."""
    about = error.about if isinstance(error, Refused) and not unsaved else {}
    return ErrorReport(str(error), not isinstance(error, Unreachable), about, unsaved)


NO_CLUSTER_ERRORS: Mapping[str, str] = MappingProxyType({})
OTHER_CLUSTERS_ERROR = "it has trouble with another cluster"


def format_cluster_errors(clusters: Mapping[str, str], most: int) -> str | None:
    """Write what is about single clusters, by id, each in so many characters; None: it is about the element."""
    return json.dumps({one: text[:most] for one, text in sorted(clusters.items())}) if clusters else None


def find_cluster_error(trouble: str | None, troubles: str | None, *ids: str | None) -> str | None:
    """Give what is about a cluster, whose own id comes first, then that of its network."""
    if trouble is None or troubles is None:
        return trouble
    found = _parse_cluster_errors(troubles)
    return next((found[one] for one in ids if one in found), OTHER_CLUSTERS_ERROR)


@lru_cache(maxsize=1024)
def _parse_cluster_errors(troubles: str) -> Mapping[str | None, str]:
    return MappingProxyType(dict(json.loads(troubles)))
