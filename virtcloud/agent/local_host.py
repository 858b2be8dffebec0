"""The host that the agent reconciles: segments in the kernel, guests on the hypervisors, and servers for guests.

Importing this module imports pyroute2 and libvirt.
"""

from collections.abc import Callable, Iterable, Sequence

from virtcloud.agent import log
from virtcloud.agent.file_servers.nfs_difference import FileServerStep, ServeFiles, StopServingFiles
from virtcloud.agent.file_servers.nfs_servers import NfsServers
from virtcloud.agent.gateway.cluster_namespaces import ClusterNamespaces
from virtcloud.agent.gateway.fqdn_addresses import FqdnAddresses
from virtcloud.agent.gateway.namespace_difference import NamespaceStep
from virtcloud.agent.gateway.outside_difference import ObservedOutside, RouteOutside
from virtcloud.agent.gateway.outside_routing import OutsideRouting
from virtcloud.agent.gateway.ssh_difference import ObservedSshd, RunSshd, SshStep, StopSshd
from virtcloud.agent.gateway.ssh_gateway import SshGateway
from virtcloud.agent.gateway.vpn_difference import AddVpnPort, ObservedVpn, VpnStep
from virtcloud.agent.gateway.vpn_gateway import VpnGateway
from virtcloud.agent.guest_ends import EndCause
from virtcloud.agent.guests.consoles import GuestConsoles
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.host_services.server_difference import ServeGuests, StopServing
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import unsupported_segments
from virtcloud.agent.steps import (
    BuildSegment,
    FilterGuests,
    RemoveSegment,
    StartGuest,
    Step,
    StopGuests,
    WritePeerFiles,
)
from virtcloud.model.errors import Refused, VirtcloudError
from virtcloud.model.outside_use import DestinationUse
from virtcloud.model.ssh_connections import SshConnection
from virtcloud.model.vpn import VpnConnection
from virtcloud.model.wanted import HostWanted, Segment

GatewayStep = NamespaceStep | RouteOutside | FileServerStep | SshStep


class LocalHost:
    """The segments, guests, filters and servers of this host."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of the host
        self,
        segments: SegmentInterfaces,
        guests: LocalGuests,
        filters: NftablesFilters | None = None,
        consoles: GuestConsoles | None = None,
        servers: DnsmasqServers | None = None,
        vpn: VpnGateway | None = None,
        namespaces: ClusterNamespaces | None = None,
        outside: OutsideRouting | None = None,
        file_servers: NfsServers | None = None,
        ssh: SshGateway | None = None,
        fqdns: FqdnAddresses | None = None,
    ) -> None:
        """Create the host from its parts. A part that is None is not available on this host.

        Without ``filters``, guests can send any frame. ``fqdns`` has the addresses of destinations' FQDNs.
        """
        self._segments = segments
        self._guests = guests
        self._filters = filters
        self._servers = servers
        self._vpn = vpn
        self._namespaces = namespaces
        self._outside = outside
        self._file_servers = file_servers
        self._ssh = ssh
        self.fqdns = fqdns
        if fqdns is not None:
            fqdns.apply = self._correct_fqdn_sets
        self.consoles = consoles or GuestConsoles()
        self.root_reservations = guests.root_reservations
        self._orphans_removed_for: HostWanted | None = None
        self._interfaces: list[KernelInterface] | None = None
        """The interfaces at the last reading, or None if the next use must read the interfaces again.

        Tagged segments that were built after the reading are missing.
        """
        self.interfaces_read: Callable[[Iterable[KernelInterface]], object] = lambda _interfaces: None
        """A function that is called with the interfaces at each reading of the host."""

    def receive(self, wanted: HostWanted) -> None:
        """Apply the VPN and SSH grants of a wanted document, before the other changes of the host.

        Also record the document's networks for `restore_outside_filter`. If the gateway's own addresses changed, also
        write the addresses to the networks' namespaces (`ClusterNamespaces.receive`).
        """
        unsupported = unsupported_segments(wanted.segments)
        supported = [segment for segment in wanted.segments if segment.id not in unsupported]
        for access in (self._vpn, self._ssh):
            if access is not None:
                access.receive(wanted, supported)
        if self._outside is not None:
            self._outside.receive(supported)
        if self._namespaces is not None:
            self._namespaces.receive(supported)

    def take_over_access(self) -> None:
        """Take over the OpenVPN servers and the sshd of an earlier agent process, before SBF sends a wanted document.

        Afterwards, open connections end with their clusters' leases, even if SBF does not answer. Only log an error:
        the next reading of the host tries again, and reports the error.
        """
        for read in (self._read_vpn, self._read_sshd):
            try:
                read(self._segments.list_interfaces())
            except VirtcloudError as error:
                log.warning("access_not_taken_over", error=error)
            except Exception as error:  # noqa: BLE001 - the reconciler must start nevertheless
                log.internal_error(error)

    def vpn_connections(self) -> tuple[VpnConnection, ...] | None:
        """Return the devices that are connected to this gateway, or None without an OpenVPN server. Thread-safe."""
        return self._vpn.connections if self._vpn and self._vpn.is_serving else None

    def ssh_connections(self) -> tuple[SshConnection, ...] | None:
        """Return the users' SSH connections to guests, or None if no sshd is wanted and no connection is open.

        Thread-safe.
        """
        return self._ssh.connections if self._ssh else None

    def destination_uses(self) -> tuple[DestinationUse, ...]:
        """Return the use of destinations: the counters, and the addresses of FQDNs. Thread-safe."""
        return self._outside.read_uses() if self._outside else ()

    def restore_outside_filter(self) -> None:
        """Replace the packet filter of links to the outside if the filter differs from the wanted filter.

        Thread-safe.
        """
        if self._outside:
            self._outside.restore()

    def _correct_fqdn_sets(self) -> None:
        segments = self._outside.correct_sets() if self._outside else ()
        if self._namespaces is not None:
            self._namespaces.correct_sets(segments)

    def notice_connection_changes(self, notice: Callable[[], object]) -> None:
        """Call ``notice`` after each change of the connected devices or SSH connections."""
        if self._vpn is not None:
            self._vpn.changed = notice
        if self._ssh is not None:
            self._ssh.sessions.changed = notice

    def read(self) -> ObservedHost:
        """Return the observed state.

        If a hypervisor does not answer, the result contains the hypervisor's error, and the state of the segments.
        Therefore the segments can still be reconciled.
        """
        guests, hypervisor_errors = self._guests.read()
        filters = self._filters.read() if self._filters else None
        self._interfaces = self._segments.list_interfaces()
        self.interfaces_read(self._interfaces)
        servers = self._servers.read(self._interfaces) if self._servers else ()
        vpn = self._read_vpn(self._interfaces)
        namespaces = self._namespaces.read(self._interfaces) if self._namespaces else ()
        segments = self._segments.read(self._interfaces)
        outside = self._outside.read(self._interfaces) if self._outside else ObservedOutside()
        files = self._file_servers.read() if self._file_servers else ()
        sshd = self._read_sshd(self._interfaces)
        return ObservedHost(
            segments, guests, hypervisor_errors, filters, servers, vpn, namespaces, outside, files, sshd
        )

    def _read_vpn(self, interfaces: Sequence[KernelInterface]) -> ObservedVpn:
        return self._vpn.read(interfaces) if self._vpn else ObservedVpn()

    def _read_sshd(self, _interfaces: Sequence[KernelInterface]) -> ObservedSshd:
        return self._ssh.read() if self._ssh else ObservedSshd()

    def remove_orphaned_files(self, wanted: HostWanted) -> None:
        """Remove the files of guests that are not wanted and have no domain, once for each wanted state.

        The files of wanted guests stay, because wanted guests can lack a domain: stopped guests, and all guests after a
        reboot. If the removal fails, log the error; the next call repeats the removal.
        """
        try:
            if wanted == self._orphans_removed_for or self._guests.remove_orphaned_files(wanted):
                self._orphans_removed_for = wanted  # replaces an equal older object, whose memory becomes free
        except Refused as error:
            log.warning("orphaned_files_not_removed", error=error)
        except Exception as error:  # noqa: BLE001 - the host must be reconciled nevertheless
            log.exception("orphaned_files_not_removed", error=error)

    def find_end_cause(self, step: StartGuest, within_s: float) -> EndCause:
        """Return why a guest ended by itself within the last ``within_s`` seconds, or UNKNOWN.

        ``step`` starts the guest again.
        """
        return self._guests.find_end_cause(step.segment.id, step.guest.name, within_s)

    def apply(self, step: Step) -> None:
        """Apply one step. Idempotent. Several threads can start different guests at the same time.

        Raise Refused if the kernel or a hypervisor refuses the step. Raise Unsafe if the step would change a foreign
        object. Raise Unreachable if a hypervisor does not answer.
        """
        if isinstance(
            step, StopGuests | RemoveSegment | ServeGuests | StartGuest | StopServing | VpnStep | NamespaceStep
        ):
            self._interfaces = None
        try:
            match step:
                case StopGuests(cluster, guests, kept):
                    self._guests.ensure_no_guests(cluster, guests, kept)
                case RemoveSegment():
                    self._remove(step)
                case BuildSegment(segment, faults):
                    self._build(segment, faults)
                case StartGuest(segment, guest):
                    self._guests.ensure_guest(segment, guest)
                    self._segments.ensure_guest_mtus(segment, (guest,))
                case WritePeerFiles(segment, guest):
                    self._guests.write_peer_files(segment, guest)
                case _ if isinstance(step, GatewayStep):
                    self._apply_to_gateway(step)
                case _:
                    self._apply_service(step)
        except Refused:
            self._orphans_removed_for = None  # files may remain
            raise

    def _apply_service(self, step: FilterGuests | ServeGuests | StopServing | VpnStep) -> None:
        match step:
            case FilterGuests(_, ports, _, former):
                if self._filters:
                    self._segments.ensure_no_guest_ports(former)
                    self._filters.replace(ports)
            case ServeGuests() | StopServing():
                if self._servers:
                    self._servers.apply(step)
            case AddVpnPort() if self._filters is None:
                raise Refused(
                    'the filters of this gateway are off, but devices must be filtered: set filters = "strict" under '
                    "[guests] in the agent's settings"
                )
            case _:
                if self._vpn:
                    self._vpn.apply(step)

    def _apply_to_gateway(self, step: GatewayStep) -> None:
        match step:
            case ServeFiles() | StopServingFiles():
                if self._file_servers:
                    self._file_servers.apply(step)
            case RouteOutside(segments):
                if self._outside:
                    self._outside.ensure(segments)
            case RunSshd() | StopSshd():
                if self._ssh:
                    self._ssh.apply(step)
            case _:
                if self._namespaces:
                    self._namespaces.apply(step)

    def _remove(self, step: RemoveSegment) -> None:
        self._segments.ensure_no_segment(step.cluster, step.vlan)
        if not step.files_stay:
            self._guests.ensure_no_files(step.cluster)

    def _build(self, segment: Segment, faults: tuple[str, ...]) -> None:
        self._segments.ensure_segment(segment, self._recent_interfaces(segment))
        if faults:  # guests may be running
            # Set the MTUs of the ports last. After an interruption, the next reading then finds a port with a wrong
            # MTU, and the agent repeats both calls.
            self._guests.ensure_mtu(segment)
            self._segments.ensure_guest_mtus(segment, segment.guests)

    def _recent_interfaces(self, segment: Segment) -> list[KernelInterface] | None:
        """Return the argument ``interfaces`` for `SegmentInterfaces.ensure_segment`.

        For a tagged segment, return the last reading of the interfaces, or a new reading if the last reading was
        discarded. For an untagged segment, return None, so that `SegmentInterfaces.ensure_segment` reads the uplink
        again.
        """
        if segment.untagged:
            self._interfaces = None
            return None
        if self._interfaces is None:
            self._interfaces = self._segments.list_interfaces()
        return self._interfaces
