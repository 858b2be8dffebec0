"""The machine as the loop sees it: read, and apply one step.

The machine, put together from its real parts. Importing this takes long: it needs pyroute2 and libvirt.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from virtcloud.agent import log
from virtcloud.agent.difference import BuildSegment, ObservedMachine, RemoveSegment, StartGuest, Step, StopGuests
from virtcloud.agent.guests.admission_rules import AdmissionRules
from virtcloud.agent.guests.guests import GuestSettings, LocalGuests
from virtcloud.agent.guests.hypervisor import LibvirtHypervisor
from virtcloud.agent.job_access.job_relays import JobRelays
from virtcloud.agent.network.address_probe import AddressProbe
from virtcloud.agent.network.interfaces import UplinkRecordFiles
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.settings import AgentSettings
from virtcloud.model.errors import Refused


class LocalMachine:
    """The segments and the guests of this machine."""

    def __init__(self, links: SegmentInterfaces, guests: LocalGuests) -> None:
        """Put both together."""
        self._links = links
        self._guests = guests
        self._swept = False

    def read(self) -> ObservedMachine:
        """Read what the machine carries, from the kernel and the hypervisors, within what is ours.

        A hypervisor that does not answer raises nothing: the network converges without it.
        """
        self._sweep()
        guests, silent = self._guests.read()
        return ObservedMachine(self._links.segments(), guests, silent)

    def _sweep(self) -> None:
        """Remove once what a killed agent left of guests; a failure is logged, and repeated at the next reading."""
        try:
            self._swept = self._swept or self._guests.sweep()
        except Refused as error:
            log.warning("not_swept", error=error)

    def apply(self, step: Step) -> None:
        """Do one step; it may be repeated. Raises what its part raises."""
        match step:
            case StopGuests(cluster, guests):
                self._guests.ensure_no_guests(cluster, guests)
            case RemoveSegment(cluster, vlan):
                self._links.ensure_no_segment(cluster, vlan)
                self._guests.ensure_no_traces(cluster)
            case BuildSegment(segment):
                self._links.ensure_segment(segment)
            case StartGuest(segment, guest):
                self._guests.ensure_guest(segment, guest)


@contextmanager
def open_machine(
    settings: AgentSettings, pause: Callable[[float], None], progress: Callable[[], object]
) -> Iterator[LocalMachine]:
    """Open this machine's kernel and hypervisors, and close them again.

    ``pause`` is as in :class:`Guests`; ``progress`` is called after each call to a hypervisor.
    """
    netlink = NetlinkKernel()
    hypervisors = {kind: LibvirtHypervisor(uri, progress=progress) for kind, uri in settings.hypervisors.items()}
    try:
        accepts = settings.bridged_frames_filtered == "accept"
        links = SegmentInterfaces(netlink, UplinkRecordFiles(settings.state / "uplinks"), accepts_filters=accepts)
        yield LocalMachine(links, LocalGuests(hypervisors, _guest_settings(settings), pause))
    finally:
        netlink.close()
        for hypervisor in hypervisors.values():
            hypervisor.close()


def make_job_relays(settings: AgentSettings) -> JobRelays:
    """Make what opens jobs' ways to their guests; each call opens the kernel for itself, whatever thread it is in."""
    return JobRelays(lambda: closing(NetlinkKernel()), settings.jobs, AddressProbe)


def _guest_settings(settings: AgentSettings) -> GuestSettings:
    keys = settings.guests
    return GuestSettings(
        settings.images,
        settings.state / "guests",
        os.uname().machine,
        keys.accelerator,
        keys.confined,
        keys.stop_grace,
        admission=AdmissionRules(keys.admits, keys.users_images),
    )
