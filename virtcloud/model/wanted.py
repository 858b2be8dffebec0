"""The wanted states of hosts, as SBF sends them to agents."""

from typing import Annotated, Final, Literal

from pydantic import Field

from virtcloud.model.access import ClusterOrigin
from virtcloud.model.call_context import CallContext
from virtcloud.model.cluster import GuestFilters, GuestService, HostService
from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.gateway_access import GatewayRouter, PublishedPort
from virtcloud.model.guest_seed import GuestSeed, Peer
from virtcloud.model.guest_spec import GuestDisk, GuestLimits
from virtcloud.model.image import ImageSource
from virtcloud.model.nfs import NfsServer
from virtcloud.model.ssh_access import SshAccess, SshServer
from virtcloud.model.values import Address, ClusterKey, Mac, Name, PortName, VlanId
from virtcloud.model.vpn import VpnGrant, VpnServer

UNCHECKED_NETWORK: Final = "unchecked-network"
"""Requirement of a segment whose missing parts the host must not create.

SBF adds this requirement after a restore of its database: other elements may still carry clusters that the database
lacks. SBF withdraws the requirement when these elements have removed the clusters.
"""
IMAGES: Final = "images"
"""Capability that a segment requires if a guest's image is in the catalogue. Older agents could start another image
with the same name."""


class GuestWanted(Document):
    """A guest that a host must run."""

    name: Name
    image: Name
    memory_mb: int
    """Memory in MiB."""
    cpus: int
    """Number of virtual processors."""
    mac: Mac
    addresses: tuple[Address, ...] = ()
    """Addresses of `eth0`, each with its prefix length."""
    cluster: str | None = None
    """ID of the guest's cluster, if the cluster joined the network; null: the network's cluster."""
    seed: GuestSeed | None = None
    """The data that the guest reads at its first boot; null: the guest reads only its name and addresses."""
    power: Literal["off"] | None = None
    """`off`: the guest must not run, and its disk stays on the host; null: the guest must run."""
    starts: int | None = None
    """Increases with each reset. The host restarts the guest when this number increases; null: no reset."""
    image_source: ImageSource | None = None
    """The source of an image of the catalogue; null: the image is in the host's folder of images."""
    limits: GuestLimits | None = None
    """The limits of the guest on its host; null: only processors and memory are limited."""
    disks: tuple[GuestDisk, ...] | None = None
    """Extra disks; null: none."""


GUEST_POWER: Final = "guest-power"
"""Capability that a segment requires if a guest was stopped or reset. Older agents would run a stopped guest."""


ADDRESS_FILTERS = "address-filters"
"""Capability that segments with ``filters: addresses`` require. Agents without this capability would not check
addresses."""
HOST_SERVICES: Final = "host-services"
"""Capability that segments with ``host_services`` require. Agents without this capability would leave guests without
addresses."""


class Segment(Document):
    """A network on one host or gateway: the VLAN on a port, and the guests of the network that run on this host.

    An agent ignores unknown keys, and rejects a segment that requires an unknown capability (docs/decisions/0040).
    """

    id: str
    """ID of the network's cluster. The ID distinguishes successive clusters with the same key."""
    key: ClusterKey
    vlan: VlanId
    """The VLAN ID on the port. If the segment is untagged, only the switch uses this VLAN ID."""
    port: PortName
    untagged: bool = False
    """Whether the segment is untagged and the only segment on the port."""
    guests: tuple[GuestWanted, ...] = ()
    """The network's guests on this host: guests of the network's cluster, and of clusters that joined the network."""
    members: dict[str, ClusterKey] = Field(default_factory=dict)
    """Keys of the clusters that joined the network and use this host, by cluster ID."""
    origins: dict[str, ClusterOrigin] = Field(default_factory=dict)
    """The origin of each cluster, by cluster ID. SBF of version 0.1 sends no origins."""
    requires: tuple[str, ...] = ()
    """Capabilities that the segment requires. An agent that lacks a capability refuses the segment."""
    peers: tuple[Peer, ...] = ()
    """All guests of the network at all hosts, for the files `hosts` and `known_hosts` of each guest."""
    filters: GuestFilters | None = None
    """The filters of the guests' frames; null: any IP addresses, but only the guest's own MAC address."""
    serves: tuple[GuestService, ...] = ()
    """The services that guests may offer to other guests."""
    host_services: tuple[HostService, ...] = ()
    """The services that the host offers to the guests of this segment."""
    mtu: int | None = None
    """The MTU of the cluster in bytes; null: the MTU of the port."""
    grants: Annotated[tuple[VpnGrant, ...], OMIT_EMPTY] = ()
    """The devices that may join the network through this gateway."""
    guest_macs: Annotated[tuple[Mac, ...], OMIT_EMPTY] = ()
    """The MAC addresses of all guests of the network, if the segment has grants. Devices must not use these
    addresses."""
    router_addresses: Annotated[tuple[Address, ...], OMIT_EMPTY] = ()
    """The addresses of the network's router, which is the default gateway of the guests. `[]`: no router."""
    gateway_addresses: Annotated[tuple[Address, ...], OMIT_EMPTY] = ()
    """The gateway's own addresses in the network. `[]`: the gateway has no interface in the network."""
    router: Annotated[GatewayRouter | None, OMIT_NONE] = None
    """The data that the gateway needs as the router of the network; null: the gateway is not the router."""
    services: Annotated[dict[Name, tuple[Address, ...]], OMIT_EMPTY] = Field(default_factory=dict)
    """The addresses of the network's services, by the service's name."""
    nfs: Annotated[NfsServer | None, OMIT_NONE] = None
    """The file server that the gateway runs at the addresses of the service `nfs`; null: none."""
    ssh: Annotated[SshAccess | None, OMIT_NONE] = None
    """SSH access to the guests of the network through this gateway; null: none."""
    publications: Annotated[tuple[PublishedPort, ...], OMIT_EMPTY] = ()
    """The ports of the gateway that lead to guests of the network."""


class HostWanted(Document):
    """The wanted state of a host or gateway: one segment for each network."""

    segments: tuple[Segment, ...] = ()
    """One segment for each network."""
    vpn: Annotated[VpnServer | None, OMIT_NONE] = None
    """The OpenVPN servers of a gateway; null: none."""
    ssh: Annotated[SshServer | None, OMIT_NONE] = None
    """The sshd of a gateway; null: none."""


class WantedDocument(Document):
    """The document that an agent fetches: the wanted state and its revision."""

    element: Name
    revision: int
    """The revision of this document."""
    confirmed_revision: int
    """The latest revision that the element confirmed."""
    incomplete: tuple[str, ...] = ()
    """IDs of clusters that were not set up completely at the latest confirmation (for example because an image was
    missing), or that could not be removed. If a cluster could not be removed, the list also contains the ID of the
    cluster's network.
    """
    wanted: HostWanted
    """The wanted state of the element."""
    calls: tuple[CallContext, ...] = ()
    """The calls that caused the changes since the confirmed revision."""
