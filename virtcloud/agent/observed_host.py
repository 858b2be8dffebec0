"""The observed state of a host: its segments, guests, filters and servers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from virtcloud.agent.file_servers.nfs_difference import ObservedFileServer
from virtcloud.agent.gateway.namespace_difference import ObservedNamespace
from virtcloud.agent.gateway.outside_difference import ObservedOutside
from virtcloud.agent.gateway.ssh_difference import ObservedSshd
from virtcloud.agent.gateway.vpn_difference import ObservedVpn
from virtcloud.agent.host_services.server_difference import ObservedServer
from virtcloud.agent.network.observed_filters import ObservedFilters


@dataclass(frozen=True, slots=True)
class ObservedSegment:
    """A cluster's segment: the interfaces with the cluster's ownership alias (``network/names.py``).

    The segment of the cluster "" consists of the interfaces that a killed agent left before it set their alias.

    ``port`` is the uplink, or None if the uplink is unknown because the tagged interface or the bridge is missing.
    ``faults`` describes each difference from a correct segment, except wrong MTUs: the correct MTU depends on the
    wanted state. ``mtus`` are the MTUs of the tagged interface, the bridge and the guests' ports, by interface name.
    ``job_ports`` are the ports of relays on the bridge: the ports of jobs' relays, and the port of the relay for users'
    sessions. ``renamed`` are those ``faults`` that describe renamed bridges of the cluster.
    """

    cluster: str
    vlan: int
    port: str | None
    faults: tuple[str, ...] = ()
    untagged: bool = False
    mtus: Mapping[str, int] = field(default_factory=dict, compare=False)
    uplink_mtu: int | None = field(default=None, compare=False)
    job_ports: tuple[str, ...] = field(default=(), compare=False)
    renamed: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class ObservedGuest:
    """A guest's libvirt domain. ``digest`` is the digest of the wanted state with which the guest was started.

    ``starts`` is the number of resets in this wanted state, or 0 if an earlier version of the agent started the guest.
    ``peers`` is the digest of the guest's peer files (``guests/peer_files.py``), or None if the host cannot replace
    these files, as for a virtual machine.
    """

    cluster: str
    guest: str
    digest: str
    running: bool = True
    peers: str | None = None
    starts: int = 0


@dataclass(frozen=True, slots=True)
class ObservedHost:
    """The observed state of a host.

    ``hypervisor_errors`` has an error for each hypervisor that did not answer. ``guests`` lacks the guests of these
    hypervisors. ``filters`` is None if the settings turn the filters of guests off.
    """

    segments: tuple[ObservedSegment, ...] = ()
    guests: tuple[ObservedGuest, ...] = ()
    hypervisor_errors: tuple[str, ...] = ()
    filters: ObservedFilters | None = None
    servers: tuple[ObservedServer, ...] = ()
    vpn: ObservedVpn = field(default_factory=ObservedVpn)
    namespaces: tuple[ObservedNamespace, ...] = ()
    outside: ObservedOutside = field(default_factory=ObservedOutside)
    file_servers: tuple[ObservedFileServer, ...] = ()
    sshd: ObservedSshd = field(default_factory=ObservedSshd)
