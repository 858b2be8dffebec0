"""What would be changed, said before anything is: the documents of dry runs and differences.

The audit log's rows as documents.
"""

from datetime import datetime

from pydantic import Field

from virtcloud.model.cluster import Guest
from virtcloud.model.document import Document
from virtcloud.model.edge import DeviceDifference, EdgeDifference
from virtcloud.model.element import ElementKind
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.views import ClusterTransport, ElementView
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference


class PlannedSegment(Document):
    """A cluster's part of a host as it would be: its VLAN on a port, and its guests there as they were asked for."""

    key: ClusterKey
    vlan: VlanId
    """The VLAN ID."""
    port: PortName
    untagged: bool = False
    """Whether the VLAN is untagged on the port."""
    guests: tuple[Guest, ...] = ()
    """The guests of the cluster on the host."""


class HostDifference(Document):
    """What a host or gateway has not confirmed yet: segments to set up, and clusters to lose."""

    add: tuple[PlannedSegment, ...] = ()
    """Segments to set up."""
    remove: tuple[ClusterKey, ...] = ()
    """Keys of clusters to remove."""

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.add or self.remove)


class ElementDifference(Document):
    """What would be changed on one element to make it as wanted; ``switch``, ``edge`` or ``host``, by its kind.

    ``read_at`` is when that which it is compared with was read (a switch, an edge) or its agent last asked (a host);
    nothing when that never was. ``lines`` are what a device would be told, in order, where its driver can say so.
    """

    element: Name
    kind: ElementKind
    """The kind of element."""
    site: Name
    read_at: datetime | None = None
    """When the observed state was read; null when it never was."""
    switch: SwitchDifference | None = None
    """The change of a switch."""
    edge: EdgeDifference | None = None
    """The change of a provider edge."""
    host: HostDifference | None = None
    """The change of a host or gateway."""
    lines: tuple[str, ...] = ()
    """The commands that the device would be sent, where the driver can list them."""

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.switch or self.edge or self.host)


class ClusterDryRun(Document):
    """What asking for a cluster would do now; nothing was claimed and nothing written.

    ``created`` is false when the cluster is there already. ``vlans`` are the numbers that it would take, or has:
    another call may take them first.
    """

    key: ClusterKey
    created: bool
    """Whether the cluster would be created; false when it exists."""
    vlans: dict[Name, VlanId]
    """The VLAN ID that the cluster would have at each site."""
    joined: ClusterTransport | None = None
    """What would join the cluster's sites; null for one site."""
    elements: tuple[ElementDifference, ...] = ()
    """The change of each element."""


class OtherUse(Document):
    """Something on a device that somebody other than SBF uses, and what SBF would do about it.

    ``vlans`` and ``ports`` name what is in use, where it is a VLAN or a port. ``found`` describes the use, ``effect``
    what SBF does. ``asks`` marks a use that the change would alter: an administrator must agree first.
    """

    element: Name
    site: Name
    vlans: VlanSet = VlanSet()
    ports: tuple[PortName, ...] = ()
    """The ports that are in use."""
    found: str
    """The use, in words."""
    effect: str
    """What SBF does about the use."""
    asks: bool = False
    """Whether an administrator must agree before the change."""


class ChangeDryRun(Document):
    """What a new pool or topology would change on devices, from reading them now; nothing was changed.

    ``elements`` are the switches and edges that were read. ``unread`` maps those that could not be read to the reason.
    """

    elements: tuple[ElementDifference, ...] = ()
    """The devices that were read, each with its difference."""
    other_use: tuple[OtherUse, ...] = ()
    """What is in other use on these devices."""
    unread: dict[Name, str] = Field(default_factory=dict)
    """Devices that could not be read, each with the reason."""

    @property
    def asks(self) -> bool:
        """Return whether an administrator must agree before the change is made."""
        return any(one.asks for one in self.other_use)


class ElementReconciliation(Document):
    """A switch or an edge that was read just now, and what had to be changed on it."""

    element: ElementView
    """The element after the reconciliation."""
    mended: DeviceDifference | None = None
    """What was changed; null for nothing."""


class AuditEntry(Document):
    """One change: who made it, what, when, why, on which element, for which cluster, with the difference applied.

    ``id`` grows from row to row. ``who`` is a cluster's owner, an administrator, an element, or a part of the service.
    """

    id: int
    """Number of the row; later rows have higher numbers."""
    at: datetime
    """When the change was made."""
    who: str
    """Who made the change: a user, an element or a part of the service."""
    what: str
    """The kind of change, such as `cluster_active`."""
    why: str | None = None
    """The reason, where one was recorded."""
    element: Name | None = None
    """The element that was changed."""
    cluster: ClusterKey | None = None
    """The key of the cluster that the change concerns."""
    cluster_id: str | None = None
    """The id of the cluster that the change concerns."""
    difference: DeviceDifference | HostDifference | None = None
    """What was changed on the element."""
