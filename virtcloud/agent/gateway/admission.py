"""Decides who connects to a gateway's OpenVPN servers, in which VLAN, and when a connection ends. Pure.

A certificate only identifies a device. Without a grant in the wanted document, even a valid certificate is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from ipaddress import IPv4Interface, ip_interface
from typing import Final, NamedTuple

from virtcloud.model.document import Document
from virtcloud.model.errors import Forbidden
from virtcloud.model.vpn import Fingerprint, VpnGrant
from virtcloud.model.wanted import Segment

ETHERNET_MTU: Final = 1500
"""The MTU of OpenVPN's tap. If a network has a smaller MTU, the network's devices get this smaller MTU."""
NO_GRANT: Final = "this profile gives no access: it was revoked or replaced, or its cluster has ended"
LEASE_ENDED: Final = "the lease of this cluster has ended"
REPLACED: Final = "the same profile connected from another device"
REPLACED_ELSEWHERE: Final = "the same profile connected to another gateway"
MOVED: Final = "the network of this cluster has changed"


class NetworkGrant(NamedTuple):
    """A device's grant in a network."""

    network: str
    """ID of the cluster that created the network."""
    vlan: int
    mtu: int
    grant: VpnGrant


DeviceGrants = Mapping[str, NetworkGrant]
"""The keys are the fingerprints of the devices' certificates."""


class DeviceRequest(NamedTuple):
    """A device that OpenVPN has authenticated, and that waits for the agent's decision.

    ``client`` and ``key`` are OpenVPN's numbers of the connection and of its TLS key. ``renews``: the device is already
    connected.
    """

    client: int
    key: int
    fingerprint: str
    common_name: str
    remote: str
    renews: bool = False


class DeviceSession(Document):
    """A connection that the agent admitted. The recorded sessions survive a restart of the agent."""

    client: int
    key: int | None = None
    """OpenVPN's number of the latest TLS key that the agent permitted; None in a record of an older agent."""
    profile: str
    network: str
    """ID of the cluster that created the network."""
    vlan: int
    fingerprint: Fingerprint
    addresses: tuple[str, ...] = ()
    common_name: str
    remote: str
    """The device's outer address and port."""
    connected_at: datetime
    expires_at: datetime


def index_grants(segments: Iterable[Segment]) -> DeviceGrants:
    """Return all grants by the fingerprint of the device's certificate."""
    return {
        grant.fingerprint: NetworkGrant(segment.id, segment.vlan, min(segment.mtu or ETHERNET_MTU, ETHERNET_MTU), grant)
        for segment in segments
        for grant in segment.grants
    }


def decide(
    request: DeviceRequest, grants: DeviceGrants, now: datetime, session: DeviceSession | None = None
) -> NetworkGrant:
    """Return the grant and the network of a device. Raise Forbidden with the reason if the device may not connect.

    ``session`` is the open session of a device that renews its keys.
    """
    granted = grants.get(request.fingerprint)
    if granted is None or (session is not None and session.fingerprint != request.fingerprint):
        raise Forbidden(NO_GRANT)
    if granted.grant.expires_at <= now:
        raise Forbidden(LEASE_ENDED)
    return granted


def is_renewal(request: DeviceRequest, session: DeviceSession | None, now: datetime) -> bool:
    """Return whether a device renews the keys of ``session`` before the session's end and with its certificate.

    An agent without a wanted document permits these renewals. Otherwise a session would end with its keys, before its
    ``expires_at``.
    """
    if session is None or session.fingerprint != request.fingerprint:
        return False
    return request.renews and now < session.expires_at


def admit(request: DeviceRequest, granted: NetworkGrant, now: datetime) -> DeviceSession:
    """Return the new session of a device that connects at the time ``now``."""
    return DeviceSession(
        client=request.client,
        key=request.key,
        profile=granted.grant.profile,
        network=granted.network,
        vlan=granted.vlan,
        fingerprint=granted.grant.fingerprint,
        addresses=granted.grant.addresses,
        common_name=request.common_name,
        remote=request.remote,
        connected_at=now,
        expires_at=granted.grant.expires_at,
    )


def list_options(granted: NetworkGrant) -> Iterator[str]:
    """Yield the options of a device's connection: its VLAN, its addresses and its MTU (openvpn(8))."""
    yield f"vlan-pvid {granted.vlan}"
    for address in map(ip_interface, granted.grant.addresses):
        if isinstance(address, IPv4Interface):
            yield f'push "ifconfig {address.ip} {address.netmask}"'
        else:
            yield f'push "ifconfig-ipv6 {address} ::"'
    if granted.mtu < ETHERNET_MTU:
        yield f'push "tun-mtu {granted.mtu}"'


class EndedSession(NamedTuple):
    """A session that must end. ``connects_again``: whether the device should connect again at once."""

    session: DeviceSession
    reason: str
    connects_again: bool = False


def find_ended_sessions(
    sessions: Iterable[DeviceSession], grants: DeviceGrants | None, now: datetime
) -> Iterator[EndedSession]:
    """Yield the sessions that must end. ``grants`` is None until the agent has received a wanted document.

    While ``grants`` is None, a session ends at its ``expires_at``.
    """
    for session in sessions:
        granted = None if grants is None else grants.get(session.fingerprint)
        if grants is not None and granted is None:
            yield EndedSession(session, NO_GRANT)
        elif (granted.grant.expires_at if granted else session.expires_at) <= now:
            yield EndedSession(session, LEASE_ENDED)
        elif granted and granted.grant.replaced and session.connected_at <= granted.grant.replaced:
            yield EndedSession(session, REPLACED_ELSEWHERE)
        elif granted and _joined(session) != (granted.network, granted.vlan, granted.grant.addresses):
            yield EndedSession(session, MOVED, connects_again=True)


def _joined(session: DeviceSession) -> tuple[str, int, tuple[str, ...]]:
    return session.network, session.vlan, session.addresses
