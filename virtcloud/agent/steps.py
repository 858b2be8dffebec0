"""The steps that change a host, and the error of a step that cannot be applied yet. Pure.

`difference.py` computes the steps, `step_application.py` orders the steps, and `local_host.py` applies the steps.
"""

from dataclasses import dataclass, field
from typing import TypeGuard

from virtcloud.agent.file_servers.nfs_difference import FileServerStep
from virtcloud.agent.gateway.namespace_difference import NamespaceStep
from virtcloud.agent.gateway.outside_difference import RouteOutside
from virtcloud.agent.gateway.ssh_difference import SshStep
from virtcloud.agent.gateway.vpn_difference import VpnStep
from virtcloud.agent.host_services.server_difference import ServeGuests, StopServing
from virtcloud.agent.network.guest_filters import FilteredPort, GuestPort
from virtcloud.agent.segment_step import SegmentStep, format_faults
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.message_text import count_of
from virtcloud.model.wanted import GuestWanted, Segment


class StepPending(VirtcloudError):
    """A step cannot be applied yet, for example because an image is being fetched.

    A pending step is no error of the host.

    The message states for what the step waits. The reconciler tries again later.
    """

    slug = "step-pending"


@dataclass(frozen=True, slots=True)
class StopGuests:
    """Stop guests of a cluster at the same time, and remove their domains.

    The files of the guests in ``kept`` stay, because these guests are still wanted. If ``powered_off`` is not empty,
    the guests have the power "off", and ``powered_off`` is the ID of their cluster, which created or joined the network
    ``cluster``. Otherwise, the guests in ``kept`` will be started again.
    If ``only_leaving``, the guests' clusters have left the network ``cluster``, which stays on the host.
    """

    cluster: str
    guests: tuple[str, ...]
    kept: tuple[str, ...] = ()
    powered_off: str = field(default="", compare=False)
    only_leaving: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Describe the step."""
        return f"stop {', '.join(self.guests)}"


@dataclass(frozen=True, slots=True)
class RemoveSegment:
    """Remove a cluster's bridge and tagged interface.

    If ``cluster`` is "", remove the interfaces without an alias that a killed agent left.
    If ``files_stay`` is true, the guests' files stay, because the cluster is wanted with another VLAN ID or port.
    If ``vlan`` is 0, remove only the cluster's bridge that another program renamed, and whose VLAN ID is unknown.
    """

    cluster: str
    vlan: int
    files_stay: bool = False

    def __str__(self) -> str:
        """Describe the step."""
        if not self.vlan:
            return "remove a renamed bridge"
        return f"remove {'' if self.cluster else 'incomplete interfaces of '}VLAN {self.vlan}"


@dataclass(frozen=True, slots=True)
class BuildSegment(SegmentStep):
    """Create a cluster's tagged interface and bridge, or correct their faults.

    ``only_harmless``: all faults are renamed bridges beside the segment's bridge, or wrong MTUs of guests' ports. When
    root in a container reboots the container, its new port has the kernel's default MTU.
    """

    only_harmless: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """Describe the step."""
        how = ", untagged" if self.segment.untagged else ""
        return f"build VLAN {self.segment.vlan} on {self.segment.port}{how}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class FilterGuests:
    """Replace the host's filters, because the ports of a cluster's guests or devices lack correct filters.

    ``ports`` are the ports of all guests and devices of the host. ``cluster`` is "" if the filters of all wanted ports
    are correct, but the sets of the nftables table also have unwanted elements. ``former`` are the names of guests'
    ports that exist on the host but are not in ``ports``. The step deletes the ports in ``former``, and then replaces
    the filters.
    """

    cluster: str
    ports: tuple[FilteredPort, ...]
    faults: tuple[str, ...] = ()
    former: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Describe the step."""
        guests = sum(isinstance(port, GuestPort) for port in self.ports)
        devices = f" and {count_of(len(self.ports) - guests, 'VPN port')}" if guests < len(self.ports) else ""
        return f"filter the frames of {count_of(guests, 'guest')}{devices}{format_faults(self.faults)}"


@dataclass(frozen=True, slots=True)
class GuestStep:
    """A step that concerns one guest of a segment."""

    segment: Segment
    guest: GuestWanted

    @property
    def cluster(self) -> str:
        """The ID of the guest's cluster, which created the segment's network or joined this network."""
        return self.guest.cluster or self.segment.id


@dataclass(frozen=True, slots=True)
class StartGuest(GuestStep):
    """Start a guest on its cluster's bridge."""

    def __str__(self) -> str:
        """Describe the step."""
        return f"start {self.guest.name}"


@dataclass(frozen=True, slots=True)
class WritePeerFiles(GuestStep):
    """Replace the peer files of a running guest."""

    def __str__(self) -> str:
        """Describe the step."""
        return f"write the names of {count_of(len(self.segment.peers), 'guest')} for {self.guest.name}"


Step = (
    StopGuests
    | RemoveSegment
    | BuildSegment
    | FileServerStep
    | FilterGuests
    | NamespaceStep
    | RouteOutside
    | ServeGuests
    | SshStep
    | StartGuest
    | StopServing
    | VpnStep
    | WritePeerFiles
)


def is_leave(step: Step) -> bool:
    """Return whether a step stops guests whose clusters left a network that stays on the host.

    If the step fails, the clusters that left do not count as removed. The network and its other clusters are complete.
    """
    return isinstance(step, StopGuests) and step.only_leaving


def is_power_off(step: Step) -> TypeGuard[StopGuests]:
    """Return whether a step stops guests with the power "off".

    If the step fails, only the cluster of these guests is incomplete, and its guests that still run are reported.
    """
    return isinstance(step, StopGuests) and bool(step.powered_off)


def find_step_cluster(step: Step) -> str:
    """Return the ID of the cluster that is incomplete while this step is needed."""
    return step.powered_off if is_power_off(step) else step.cluster
