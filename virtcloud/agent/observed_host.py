"""The observed state of a host: its segments, its guests, and the parts that other modules describe. Pure."""

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
    """A cluster's segment: the interfaces that have the cluster's ownership alias (``network/names.py``).

    ``port`` is the uplink, or None when the tagged interface is missing and only the bridge exists. ``faults``
    describes each difference from the segment that the agent would build. The agent does not change a segment that
    has no faults. ``mtus`` are the MTUs of the tagged interface, the bridge and the guests' ports, by name. The correct
    MTU depends on the wanted state, so wrong MTUs are not among ``faults``.
    """

    cluster: str
    vlan: int
    port: str | None
    faults: tuple[str, ...] = ()
    untagged: bool = False
    mtus: Mapping[str, int] = field(default_factory=dict, compare=False)
    uplink_mtu: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ObservedGuest:
    """A libvirt domain of a guest. ``digest`` identifies the wanted state from which the domain was started.

    ``peers`` is the digest of the guest's peer files, or None if the guest has no files that the host can replace.
    """

    cluster: str
    guest: str
    digest: str
    running: bool = True
    peers: str | None = None


@dataclass(frozen=True, slots=True)
class ObservedHost:
    """The observed state of a host.

    ``hypervisor_errors`` has an error for each hypervisor that did not answer. The guests of such a hypervisor are not
    among ``guests``. ``filters`` is None if the agent's settings turn the filters of guests off.
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
