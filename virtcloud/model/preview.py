"""What would be changed, said before anything is: the documents of dry runs and differences."""

from datetime import datetime

from virtcloud.model.cluster import Guest
from virtcloud.model.device import DeviceDifference
from virtcloud.model.document import Document
from virtcloud.model.edge import EdgeDifference
from virtcloud.model.element import ElementKind
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.views import ElementView, Joined
from virtcloud.model.wanted import SwitchDifference


class SegmentPlan(Document):
    """A cluster's part of a host as it would be: its VLAN on a port, and its guests there as they were asked for."""

    key: ClusterKey
    vlan: VlanId
    port: PortName
    untagged: bool = False
    guests: tuple[Guest, ...] = ()


class HostDifference(Document):
    """What a host or gateway has not confirmed yet: segments to set up, and clusters to lose."""

    add: tuple[SegmentPlan, ...] = ()
    remove: tuple[ClusterKey, ...] = ()

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
    site: Name
    read_at: datetime | None = None
    switch: SwitchDifference | None = None
    edge: EdgeDifference | None = None
    host: HostDifference | None = None
    lines: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.switch or self.edge or self.host)


class ClusterPreview(Document):
    """What asking for a cluster would do now; nothing was claimed and nothing written.

    ``created`` is false when the cluster is there already. ``vlans`` are the numbers that it would take, or has:
    another call may take them first.
    """

    key: ClusterKey
    created: bool
    vlans: dict[Name, VlanId]
    joined: Joined | None = None
    elements: tuple[ElementDifference, ...] = ()


class ElementReconciliation(Document):
    """A switch or an edge that was read just now, and what had to be changed on it."""

    element: ElementView
    mended: DeviceDifference | None = None
