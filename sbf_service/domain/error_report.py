"""Error reports of elements, and the parts of these reports that concern single clusters. Pure.

Administrators receive complete reports. The owner of a cluster receives only the part about this cluster.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from sbf_service.domain.ownership import describe_foreign_vlans
from virtcloud.model.edge import DeviceObserved
from virtcloud.model.errors import ElementError, Refused, Unreachable
from virtcloud.model.switch_state import ForeignVlan
from virtcloud.model.vlans import VlanSet

SHARED_VLAN_REMEDY = "the cluster shares the VLAN with the other use until one of the two gets another VLAN ID"
BLOCKED_VLAN_REMEDY = (
    "the VLAN was left unchanged and is excluded from the site's pool; create the cluster again to get another VLAN ID"
)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The record of a worker's failure on a device.

    If the failure concerns only certain VLANs, ``about`` maps their VLAN IDs to error messages. ``unsaved`` is true if
    a save could not be verified. ``saved`` is the observed state that the device saved despite the error.
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
    """Return an error message for each wanted VLAN ID that the device also uses otherwise."""
    return _describe_vlans(wanted, foreign, SHARED_VLAN_REMEDY)


def describe_blocked_vlans(blocked: VlanSet, foreign: Iterable[ForeignVlan]) -> dict[int, str]:
    """Return an error message for each VLAN ID that is in other use on the device, so that SBF cannot configure it."""
    return _describe_vlans(blocked, foreign, BLOCKED_VLAN_REMEDY)


def _describe_vlans(vlans: VlanSet, foreign: Iterable[ForeignVlan], remedy: str) -> dict[int, str]:
    return {int(use.vlan): f"{describe_foreign_vlans([use])}; {remedy}" for use in foreign if use.vlan in vlans}


def make_error_report(error: ElementError, *, unsaved: bool = False) -> ErrorReport:
    """Return the report of a driver's error, which concerns every cluster if ``unsaved``."""
    about = error.about if isinstance(error, Refused) and not unsaved else {}
    return ErrorReport(str(error), not isinstance(error, Unreachable), about, unsaved)


OTHER_CLUSTERS_ERROR = "the element's error concerns another cluster"


def format_cluster_errors(errors: Mapping[str, str], max_length: int) -> str:
    """Return the error messages of single clusters as JSON, by cluster ID, each cut to ``max_length`` characters."""
    return json.dumps({cluster: message[:max_length] for cluster, message in sorted(errors.items())})


def find_cluster_error(report: str | None, cluster_errors: str | None, *ids: str | None) -> str | None:
    """Return the part of an element's error report about one cluster, or None if the element has no error.

    Return the complete report if it concerns all clusters, and :data:`OTHER_CLUSTERS_ERROR` if it concerns only other
    clusters.

    ``cluster_errors`` is the JSON of :func:`format_cluster_errors`, or None if ``report`` concerns all clusters.
    ``ids`` are the IDs of the cluster and of its network.
    """
    if report is None or cluster_errors is None:
        return report
    messages = _parse_cluster_errors(cluster_errors)
    return next((messages[cluster] for cluster in ids if cluster in messages), OTHER_CLUSTERS_ERROR)


@lru_cache(maxsize=1024)
def _parse_cluster_errors(cluster_errors: str) -> Mapping[str | None, str]:
    return MappingProxyType(dict(json.loads(cluster_errors)))
