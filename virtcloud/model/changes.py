"""Documents about changes: planned changes (dry runs and differences) and recorded changes (the audit log)."""

from datetime import datetime

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.edge import DeviceDifference, EdgeDifference
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView
from virtcloud.model.guest_spec import Guest
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import ClusterKey, Name, PortName, PortRef, VlanId
from virtcloud.model.views import ClusterTransport
from virtcloud.model.vlans import VlanSet


class PlannedSegment(Document):
    """A cluster's VLAN on a port of a host, and the cluster's guests on this host, as planned."""

    key: ClusterKey
    vlan: VlanId
    """The VLAN ID."""
    port: PortName
    untagged: bool = False
    """Whether the VLAN is untagged on the port."""
    guests: tuple[Guest, ...] = ()
    """The guests of the cluster on the host."""


class HostDifference(Document):
    """The changes that a host or gateway has not confirmed yet: segments to set up, and clusters to remove."""

    add: tuple[PlannedSegment, ...] = ()
    """Segments to set up."""
    remove: tuple[ClusterKey, ...] = ()
    """Keys of clusters to remove."""

    def __bool__(self) -> bool:
        """Return whether there is anything to change."""
        return bool(self.add or self.remove)


class ElementDifference(Document):
    """The difference of one element. The element's kind determines whether ``switch``, ``edge`` or ``host`` is set."""

    element: Name
    kind: ElementKind
    """The kind of element."""
    site: Name
    read_at: datetime | None = None
    """When the device was last read. For a host or gateway, when its agent last sent a request. Null: never."""
    switch: SwitchDifference | None = None
    """The change of a switch."""
    edge: EdgeDifference | None = None
    """The change of a provider edge."""
    host: HostDifference | None = None
    """The change of a host or gateway."""
    lines: tuple[str, ...] = ()
    """The commands that would be sent to the device, in order; empty if the driver cannot list commands."""

    def __bool__(self) -> bool:
        """Return whether there is anything to change."""
        return bool(self.switch or self.edge or self.host)


class ClusterDryRun(Document):
    """The effect that a request for a cluster would have now. The dry run claims no VLAN ID and changes no data."""

    key: ClusterKey
    created: bool
    """Whether the request would create the cluster; false if the cluster exists already."""
    vlans: dict[Name, VlanId]
    """The VLAN ID of the cluster at each site: the allocated VLAN ID, or the VLAN ID that SBF would allocate now."""
    joined: ClusterTransport | None = None
    """The transport that would connect the cluster's sites; null for one site."""
    elements: tuple[ElementDifference, ...] = ()
    """The change of each element."""


class OtherUse(Document):
    """A use of a device's VLANs or ports for something other than SBF's VLANs, and how a change affects this use."""

    element: Name
    site: Name
    vlans: VlanSet = VlanSet()
    ports: tuple[PortName, ...] = ()
    """The ports that are in use."""
    found: str
    """The description of the use."""
    effect: str
    """The effect of the change on the use."""
    asks: bool = False
    """Whether the change would alter the use. An administrator must confirm such a change before SBF makes the
    change."""


class PathChange(Document):
    """The change of a cluster's path that a new topology would cause."""

    cluster: ClusterKey
    add: tuple[PortRef, ...] = ()
    """The ports that would carry the cluster in addition."""
    remove: tuple[PortRef, ...] = ()
    """The ports that would no longer carry the cluster."""


class ChangeDryRun(Document):
    """The changes that a new pool or topology would cause on devices. The dry run changes nothing."""

    elements: tuple[ElementDifference, ...] = ()
    """The devices that were read, each with its difference."""
    other_use: tuple[OtherUse, ...] = ()
    """Uses of these devices that SBF did not configure, each with the effect of the change."""
    unread: dict[Name, str] = Field(default_factory=dict)
    """Devices that could not be read, each with the reason."""
    paths: tuple[PathChange, ...] = ()
    """The clusters whose paths the change would alter. The change can interrupt the clusters' connections for a short
    time."""

    @property
    def asks(self) -> bool:
        """Return whether an administrator must confirm the change."""
        return any(use.asks for use in self.other_use)


class ElementReconciliation(Document):
    """The result of a reconciliation."""

    element: ElementView
    """The element after the reconciliation."""
    mended: DeviceDifference | None = None
    """The changes that the reconciliation made; null if the element needed no change."""


class AuditEntry(Document):
    """A row of the audit log: one change of a cluster, an element or the service's data."""

    id: int
    """ID of the row; later rows have higher IDs."""
    at: datetime
    """When the change was made."""
    who: str
    """The originator of the change: a cluster's owner, an administrator, an element, or a component of the service."""
    what: str
    """The kind of change, such as `cluster_active`."""
    why: str | None = None
    """The reason for the change; null if no reason was recorded."""
    element: Name | None = None
    """The element that was changed."""
    cluster: ClusterKey | None = None
    """The key of the cluster that the change concerns."""
    cluster_id: str | None = None
    """The ID of the cluster that the change concerns."""
    difference: DeviceDifference | HostDifference | None = None
    """The changes of the element."""
    request_id: str | None = None
    """The request ID of the call that caused the change; several IDs are separated by commas."""
