"""VPN access to clusters: OpenVPN servers of gateways, grants of devices, profiles of users, and connections.

A gateway runs one OpenVPN server for each protocol, for all clusters (``--vlan-tagging``, openvpn(8)). A device proves
its identity with a certificate of SBF's certificate authority. The grants in the gateway's wanted document determine
which network the device joins, and until when.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from virtcloud.model.document import OMIT_EMPTY, OMIT_NONE, Document
from virtcloud.model.errors import BadInput
from virtcloud.model.guest_seed import Secret
from virtcloud.model.values import Address, ClusterKey, Name, PatternText, UserName, UtcTime

ByteCount = Annotated[int, Field(ge=0, lt=1 << 63)]
PortNumber = Annotated[int, Field(ge=1, le=65535)]
VPN: Final = "vpn"
"""Capability that segments with ``grants`` require. An agent without this capability would admit no devices."""


class Fingerprint(PatternText):
    """The SHA-256 fingerprint of a certificate in DER form."""

    __slots__ = ()
    pattern = r"[0-9a-f]{64}"
    meaning = "a SHA-256 fingerprint: 64 hexadecimal digits in lower case"


class ServerHost(PatternText):
    """The name or IP address by which OpenVPN clients reach a gateway."""

    __slots__ = ()
    pattern = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:]{2,39}"
    meaning = "a host name or an IP address such as vpn.example.org, 192.0.2.10 or 2001:db8::1"


class VpnProtocol(StrEnum):
    """The transport protocols of OpenVPN servers."""

    UDP = "udp"
    TCP = "tcp"


class VpnListener(Document):
    """The OpenVPN servers of a gateway, as the topology describes them: one for each port that is not null."""

    address: ServerHost
    """The name or IP address by which clients reach the gateway."""
    udp_port: PortNumber | None = 1194
    """The UDP port; null: no server for UDP."""
    tcp_port: PortNumber | None = 443
    """The TCP port; null: no server for TCP."""

    @property
    def ports(self) -> dict[VpnProtocol, int]:
        """The port of each protocol that has a server, in the order in which clients try them."""
        numbers = {VpnProtocol.UDP: self.udp_port, VpnProtocol.TCP: self.tcp_port}
        return {protocol: number for protocol, number in numbers.items() if number is not None}

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if not self.ports:
            raise BadInput("expected udp_port, tcp_port or both, got none")
        return self


class VpnServer(Document):
    """The data that a gateway needs to run its OpenVPN servers. All texts are in PEM form."""

    ports: dict[VpnProtocol, PortNumber]
    """The port of each protocol that has a server."""
    authority: str
    """The certificate of the authority that signs the certificates of gateways and devices."""
    certificate: str
    """The gateway's certificate. Its subject is the gateway's name."""
    private_key: Secret
    """The private key of the gateway's certificate."""
    tls_crypt_key: Secret
    """The gateway's server key for tls-crypt-v2 (openvpn(8))."""


class VpnGrant(Document):
    """The right of one device to join a network."""

    profile: str
    """ID of the profile."""
    cluster: str
    """ID of the cluster for which the profile was made: the cluster that created the network, or a cluster that joined
    the network.
    """
    user: UserName
    device: Name
    fingerprint: Fingerprint
    """The fingerprint of the device's certificate."""
    addresses: tuple[Address, ...] = ()
    """The addresses of the device: at most one of each IP version."""
    expires_at: datetime
    """The end of the cluster's lease or of the network's lease, whichever is earlier."""
    replaced: Annotated[datetime | None, OMIT_NONE] = None
    """The gateway ends the device's connections that began at this time or earlier, because the device has since
    connected to another gateway. Null: the gateway ends no connections for this reason.
    """
    router: Annotated[bool, OMIT_EMPTY] = False
    """Whether the device is the router of the network."""


class VpnProfileRequest(Document):
    """A request for a profile. The private key stays on the device."""

    device: Name
    """The user's name for the device."""
    csr: Annotated[str, Field(max_length=8192)]
    """A certificate signing request in PEM form. SBF uses only the public key of the request."""
    router: Annotated[bool, OMIT_EMPTY] = False
    """Whether the device becomes the router of the network."""


class PendingElement(Document):
    """An element that has not confirmed the latest change of VPN or SSH access to a cluster."""

    element: Name
    reachable: bool
    """Whether the element answers."""
    trouble: str | None = None
    """The element's error."""


class VpnProfileView(Document):
    """A profile: the access of one device of a user to a cluster's network."""

    id: str
    """ID of the profile, which is also the subject of the certificate."""
    cluster: ClusterKey
    user: UserName
    device: Name
    fingerprint: Fingerprint
    """The SHA-256 fingerprint of the certificate."""
    addresses: tuple[Address, ...] = ()
    """The addresses of the device in the network."""
    gateways: tuple[Name, ...]
    """The gateways through which the device joins the network, in order of preference."""
    created_at: datetime
    """When the profile was created."""
    created_by: str
    """The caller who requested the profile."""
    expires_at: datetime
    """When the certificate becomes invalid."""
    revoked_at: datetime | None = None
    """When the profile was revoked."""
    lease_ends: datetime
    """The end of the cluster's lease or of the network's lease, whichever is earlier. If a lease was extended after the
    certificate was made, this time can be later than ``expires_at``."""
    pending: tuple[PendingElement, ...] = ()
    """The elements that have not confirmed the profile, or its revocation, yet."""
    router: Annotated[bool, OMIT_EMPTY] = False
    """Whether the device is the router of the network."""


class VpnRemote(Document):
    """An OpenVPN server that a profile names."""

    gateway: Name
    address: ServerHost
    port: PortNumber
    """The server's port."""
    protocol: VpnProtocol
    """The transport protocol."""
    tls_crypt_key: str
    """The device's client key for tls-crypt-v2 at this gateway. SBF returns the key only in the answer that creates the
    profile."""


class NewVpnProfile(VpnProfileView):
    """A new profile with everything that an OpenVPN client needs, except the device's private key."""

    authority: str
    """The certificate of the authority, in PEM form."""
    certificate: str
    """The device's certificate, in PEM form."""
    remotes: tuple[VpnRemote, ...]
    """The servers, in the order in which the client tries them."""


class VpnConnection(Document):
    """A device that is connected to a gateway, as the gateway reports it."""

    profile: str
    """ID of the profile."""
    protocol: VpnProtocol
    """The transport protocol."""
    remote: str
    """The device's outer address and port."""
    connected_at: UtcTime
    """When the device connected."""
    received_bytes: ByteCount = 0
    """Bytes that the gateway received from the device."""
    sent_bytes: ByteCount = 0
    """Bytes that the gateway sent to the device."""


class VpnConnections(Document):
    """All connections of a gateway. Each report replaces the previous report of this gateway."""

    connections: tuple[VpnConnection, ...] = ()
    """The devices that are connected."""


class VpnConnectionView(VpnConnection):
    """A connection of a device to a cluster's network."""

    gateway: Name
    user: UserName
    device: Name
    reported_at: datetime
    """When the gateway last reported the connection."""


class VpnInvitation(Document):
    """A user whom the owner of a cluster invited. The user may create profiles and SSH certificates for the cluster."""

    cluster: ClusterKey
    user: UserName
    invited_at: datetime
    """When the user was invited."""
    invited_by: str
    """The caller who invited the user."""


class AuthorityRenewal(Document):
    """The result of the replacement of the certificate authority."""

    revoked: int
    """Number of profiles that were revoked."""
