"""Adds the settings of sshd, and the grants and guests of SSH access, to gateways' wanted documents. Pure.

A grant permits a user to reach the guests of a network through a gateway.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sbf_service.domain.guest_seeds import NetworkCluster
from virtcloud.model.ssh_access import SSH_REVOCATIONS, SshAccess, SshGrant, SshGuest, SshServer
from virtcloud.model.values import UserName
from virtcloud.model.wanted import HostWanted, Segment


@dataclass(frozen=True, slots=True)
class ReachableCluster:
    """A cluster whose owner and invited users may reach its guests through a gateway.

    ``ends`` is the end of the cluster's lease or the end of the network, whichever is earlier. ``revoked`` maps a user
    to the serial numbers of this user's revoked certificates.
    """

    id: str
    network: str
    users: tuple[str, ...]
    ends: datetime
    revoked: Mapping[str, Sequence[int]] = field(default_factory=dict)


def add_ssh(
    wanted: HostWanted, server: SshServer, reachable: Iterable[ReachableCluster], clusters: Sequence[NetworkCluster]
) -> HostWanted:
    """Return the wanted state of a gateway with its sshd, and with the grants and guests of each network.

    Add grants and guests only to networks in which the gateway has an interface. ``clusters`` contains all clusters of
    these networks.
    """
    by_network: dict[str, list[ReachableCluster]] = {}
    for cluster in reachable:
        by_network.setdefault(cluster.network, []).append(cluster)
    segments = tuple(_add_to_segment(segment, by_network, clusters) for segment in wanted.segments)
    return wanted.model_copy(update={"ssh": server, "segments": segments})


def _add_to_segment(
    segment: Segment, reachable: Mapping[str, Iterable[ReachableCluster]], clusters: Iterable[NetworkCluster]
) -> Segment:
    grants = tuple(
        SshGrant(
            cluster=cluster.id,
            user=UserName(user),
            expires_at=cluster.ends,
            revoked=tuple(cluster.revoked.get(user, ())),
        )
        for cluster in reachable.get(segment.id, ())
        for user in cluster.users
    )
    if not grants or not segment.gateway_addresses:
        return segment
    access = SshAccess(grants=grants, guests=tuple(_list_guests(segment, clusters)))
    if not any(grant.revoked for grant in grants):
        return segment.model_copy(update={"ssh": access})
    return segment.model_copy(update={"ssh": access, "requires": (*segment.requires, SSH_REVOCATIONS)})


def _list_guests(segment: Segment, clusters: Iterable[NetworkCluster]) -> Iterable[SshGuest]:
    return (
        SshGuest(cluster=cluster.id, name=guest.name, addresses=guest.addresses)
        for cluster in clusters
        if cluster.network == segment.id
        for guest in cluster.spec.guests
        if guest.addresses
    )
