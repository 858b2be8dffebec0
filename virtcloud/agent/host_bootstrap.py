"""Creates the objects by which an agent uses the kernel and the hypervisors.

Importing this module imports pyroute2 and libvirt.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext

from virtcloud.agent import log
from virtcloud.agent.file_servers.nfs_servers import NfsServers
from virtcloud.agent.gateway.cluster_namespaces import ClusterNamespaces
from virtcloud.agent.gateway.connection_limits import ConnectionLimits
from virtcloud.agent.gateway.fqdn_addresses import FqdnAddresses
from virtcloud.agent.gateway.guest_connections import connect_by_namespace
from virtcloud.agent.gateway.outside_routing import OutsideRouting
from virtcloud.agent.gateway.ssh_gateway import SshGateway
from virtcloud.agent.gateway.vpn_gateway import VpnGateway
from virtcloud.agent.guest_access.guest_channels import GuestChannel, LogChannel, open_console, open_tcp
from virtcloud.agent.guest_access.guest_clones import CloneApi, GuestCloner
from virtcloud.agent.guest_access.guest_ports import PREFIX, GuestPorts
from virtcloud.agent.guest_access.session_listener import ConnectGuest
from virtcloud.agent.guests import image_folder
from virtcloud.agent.guests.admission_rules import AdmissionRules
from virtcloud.agent.guests.consoles import GuestConsoles
from virtcloud.agent.guests.domain_preparation import GuestSettings
from virtcloud.agent.guests.guest_files import CONSOLE
from virtcloud.agent.guests.guests import LocalGuests
from virtcloud.agent.guests.hypervisor import LibvirtHypervisor
from virtcloud.agent.guests.image_cache import CacheSettings, ImageCache
from virtcloud.agent.guests.image_fetch import DownloadFromSbf, ImageSources
from virtcloud.agent.guests.image_unpack import UnpackLimits
from virtcloud.agent.guests.memory_kills import MemoryKills
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.job_access.job_relays import JobRelays, find_bridge
from virtcloud.agent.local_host import LocalHost
from virtcloud.agent.network import names
from virtcloud.agent.network.address_probe import AddressProbe
from virtcloud.agent.network.frame_exchange import BridgeSocket
from virtcloud.agent.network.interfaces import UplinkRecordFiles
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.settings import AgentSettings
from virtcloud.model.errors import Refused
from virtcloud.model.guest_sessions import GuestSession, SessionKind
from virtcloud.model.values import Name
from virtcloud.model.wanted import Segment

MIB = 1 << 20


@contextmanager
def open_host(
    settings: AgentSettings, pause: Callable[[float], None], progress: Callable[[], object], cache: ImageCache
) -> Iterator[LocalHost]:
    """Open this host's kernel and hypervisors, and close them at the end of the block.

    ``pause`` waits a number of seconds while guests shut down. ``progress`` is called after each call to a hypervisor,
    while files of guests are removed, and while files of a container get other owners. ``cache`` contains the images of
    SBF's catalogue.
    """
    kernel = NetlinkKernel()
    hypervisors = {kind: LibvirtHypervisor(uri, progress=progress) for kind, uri in settings.hypervisors.items()}
    consoles, kills = GuestConsoles(), MemoryKills()
    vpn = VpnGateway(kernel, settings.state / "vpn", limits=ConnectionLimits())
    fqdns = FqdnAddresses(settings.state / "fqdns.json", _open_kernel, settings.sbf, settings.timing.check)
    namespaces = ClusterNamespaces(kernel, settings.namespaces, fqdns.list_admitted, kernel.list_addresses)
    ssh = SshGateway(settings.state / "ssh", connect_by_namespace(namespaces.open_namespace))
    try:
        accepts_filters = settings.bridged_frames_filtered == "accept"
        uplinks = UplinkRecordFiles(settings.state / "uplinks")
        segments = SegmentInterfaces(kernel, uplinks, accepts_filters=accepts_filters)
        filters = _open_filters(settings)
        guests = LocalGuests(
            hypervisors,
            _guest_settings(settings),
            pause,
            cache=cache,
            consoles=consoles,
            kills=kills,
            progress=progress,
        )
        servers = DnsmasqServers(kernel, settings.state / "servers", has_filters=filters is not None)
        outside = OutsideRouting(kernel, fqdns)
        file_servers = NfsServers(namespaces.open_namespace, settings.state / "nfs")
        yield LocalHost(
            segments, guests, filters, consoles, servers, vpn, namespaces, outside, file_servers, ssh, fqdns
        )
    finally:
        ssh.close()
        vpn.close()
        consoles.close()
        kills.close()
        kernel.close()
        for hypervisor in hypervisors.values():
            hypervisor.close()


def _open_kernel() -> AbstractContextManager[NetlinkKernel]:
    """Open a netlink socket, which only the calling thread may use."""
    return closing(NetlinkKernel())


def _open_filters(settings: AgentSettings) -> NftablesFilters | None:
    """Return the filters of guests. If the settings turn filters off, remove existing filters and return None.

    If the removal fails, only log the error: the administrator may have turned filters off because the kernel lacks
    nf_tables.
    """
    filters = NftablesFilters()
    if settings.guests.filters == "strict":
        return filters
    try:
        filters.remove()
    except Refused as error:
        log.warning("filters_not_removed", error=error)
    return None


def make_job_relays(settings: AgentSettings) -> JobRelays:
    """Return the object that creates and removes jobs' relays. Thread-safe: each call opens a new netlink socket."""
    return JobRelays(_open_kernel, settings.jobs, AddressProbe)


def make_guest_connector(
    element: Name, settings: AgentSettings, host: LocalHost, relays: JobRelays, sbf: CloneApi
) -> ConnectGuest:
    """Remove the relays that a killed agent left. Return the function that connects sessions to this host's guests."""
    ports = GuestPorts(relays)
    cloner = GuestCloner(element, settings.state / "guests", host.root_reservations.for_reading, sbf)
    ports.remove_orphans(settings.jobs.glob(f".relay-{PREFIX}*"))

    def connect(session: GuestSession, segment: Segment) -> AbstractContextManager[GuestChannel]:
        domain = names.domain_name(segment.id, session.guest)
        if session.port is not None:
            return open_tcp(ports.connect(segment, session.guest, session.port))
        if session.kind is SessionKind.CONSOLE:
            return open_console(host.consoles, domain)
        if session.kind is SessionKind.CLONE:
            return cloner.open_clone(session, segment)
        return nullcontext(LogChannel(settings.state / "guests" / domain / CONSOLE, follow=session.follow))

    return connect


def open_bridge(segment: Segment) -> BridgeSocket:
    """Open a socket on the bridge of a segment.

    Raise Refused if the host has no bridge of virtcloud for the segment's VLAN ID, or if this bridge belongs to another
    network.
    """
    with closing(NetlinkKernel()) as kernel:
        bridge = find_bridge(segment.vlan, segment.key, kernel.list_interfaces(), segment.id)
    port = segment.port if segment.untagged else names.tagged_interface_name(segment.port, segment.vlan)
    return BridgeSocket(bridge.name, bridge.mtu, port)


def _guest_settings(settings: AgentSettings) -> GuestSettings:
    guests = settings.guests
    return GuestSettings(
        settings.images,
        settings.state / "guests",
        os.uname().machine,
        guests.accelerator,
        guests.confined,
        guests.stop_grace,
        admission=AdmissionRules(
            guests.admits, guests.users_images, open_filters=guests.open_filters or guests.filters == "off"
        ),
        first_id=guests.first_id,
        pids=guests.pids,
    )


def make_image_cache(settings: AgentSettings, download: DownloadFromSbf) -> ImageCache:
    """Create the cache of images."""
    keys, state = settings.image_cache, settings.state
    cache = CacheSettings(
        folder=state / image_folder.FOLDER,
        guests=state / "guests",
        architecture=os.uname().machine,
        size=keys.size_mb * MIB,
        unpacked=UnpackLimits(keys.unpacked_mb * MIB),
    )
    return ImageCache(cache, ImageSources(download, settings.images, keys.urls))
