"""VPN access: the grants in the wanted documents of gateways. Pure.

A grant names a device's network and an end time. The grant exists while the device's profile is valid and elements must
carry the profile's cluster.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from virtcloud.model.element import Gateway
from virtcloud.model.values import Address, Mac, Name, UserName
from virtcloud.model.vpn import VPN, Fingerprint, VpnGrant, VpnRemote, VpnServer
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True, slots=True)
class GrantedProfile:
    """A valid profile with the data of its grant. ``network`` is the ID of the cluster that created the network.

    ``ends`` is the end of the cluster's lease or the end of the network, whichever is earlier.
    """

    id: str
    cluster: str
    network: str
    user: str
    device: str
    fingerprint: str
    addresses: tuple[Address, ...]
    ends: datetime
    router: bool = False
    replaced: datetime | None = None
    """The beginning of the profile's connection to this gateway, if the profile later connected to another gateway."""


class ReportedConnection(NamedTuple):
    """A profile's connection: when it began (gateway's clock), and when it was first reported (SBF's clock)."""

    connected_at: datetime
    first_reported_at: datetime


REPORT_DELAY: Final = timedelta(seconds=5)
"""The longest usual time between a connection and its report."""


def is_replaced(connection: ReportedConnection, other: ReportedConnection) -> bool:
    """Return whether the connection ``other`` to another gateway replaced ``connection``.

    The gateways' clocks determine which connection began later. If the order of the reports is the opposite and they
    are more than :data:`REPORT_DELAY` apart, a clock is wrong. Then return False, so that a wrong clock disconnects no
    device.
    """
    is_reported_earlier = other.first_reported_at < connection.first_reported_at - REPORT_DELAY
    return other.connected_at > connection.connected_at and not is_reported_earlier


def add_grants(
    wanted: HostWanted,
    server: VpnServer,
    profiles: Iterable[GrantedProfile],
    guest_macs: Mapping[str, tuple[Mac, ...]],
) -> HostWanted:
    """Return the wanted state of a gateway with its OpenVPN servers, and with the grants of each network.

    ``profiles`` are the valid profiles of all clusters that the gateway carries. ``guest_macs`` are the guests' MAC
    addresses, by network ID, which devices must not use.
    """
    by_network: dict[str, list[GrantedProfile]] = defaultdict(list)
    for profile in sorted(profiles, key=lambda profile: profile.id):
        by_network[profile.network].append(profile)
    segments = tuple(_add_to_segment(segment, by_network, guest_macs) for segment in wanted.segments)
    return wanted.model_copy(update={"vpn": server, "segments": segments})


def _add_to_segment(
    segment: Segment, profiles: Mapping[str, Iterable[GrantedProfile]], guest_macs: Mapping[str, tuple[Mac, ...]]
) -> Segment:
    grants = tuple(_make_grant(profile) for profile in profiles.get(segment.id, ()))
    if not grants:
        return segment
    added = {"grants": grants, "guest_macs": guest_macs.get(segment.id, ()), "requires": (*segment.requires, VPN)}
    return segment.model_copy(update=added)


def _make_grant(profile: GrantedProfile) -> VpnGrant:
    return VpnGrant(
        profile=profile.id,
        cluster=profile.cluster,
        user=UserName(profile.user),
        device=Name(profile.device),
        fingerprint=Fingerprint(profile.fingerprint),
        addresses=profile.addresses,
        expires_at=profile.ends,
        router=profile.router,
        replaced=profile.replaced,
    )


def list_remotes(gateways: Iterable[Gateway], keys: Mapping[Name, str]) -> tuple[VpnRemote, ...]:
    """Return the OpenVPN servers of these gateways: all UDP servers, then all TCP servers.

    ``keys`` maps each gateway's name to the client key for tls-crypt-v2. Devices try the servers in order. TCP is last,
    because a tunnel over TCP is slower.
    """
    found = [
        (
            protocol,
            VpnRemote(
                gateway=gateway.name,
                address=gateway.vpn.address,
                port=port,
                protocol=protocol,
                tls_crypt_key=keys[gateway.name],
            ),
        )
        for gateway in gateways
        if gateway.vpn is not None
        for protocol, port in gateway.vpn.ports.items()
    ]
    return tuple(remote for _, remote in sorted(found, key=lambda pair: pair[0], reverse=True))
