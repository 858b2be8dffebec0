"""Seeds of guests, and the peers of a network, computed from clusters and the service secret. Pure.

A seed is the configuration that a guest reads when it boots. The peers of a guest are all guests of its network,
including the guest itself.

SBF records the login of each new cluster (:class:`GuestLogin`), so later changes of the owner's keys do not change
running guests. Without a recorded login, a cluster's guests have no seeds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import SecretBytes

from sbf_service.domain.ssh_key_pairs import derive_cluster_key, derive_host_key
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.document import Document
from virtcloud.model.guest_seed import GuestSeed, Peer, PublicKey
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import ClusterKey, LoginName, UserName
from virtcloud.model.wanted import GuestWanted, HostWanted, Segment

_OTHER_CHARACTERS: Final = re.compile("[^a-z0-9_-]+")
MAX_LOGIN_NAME: Final = 32
MAX_COMMENT: Final = 200


class GuestLogin(Document):
    """The user account in a cluster's guests, and its public keys, as recorded when the cluster is created."""

    user: LoginName
    authorized_keys: tuple[PublicKey, ...] = ()
    """The owner's keys at the cluster's creation, if the cluster has guests, and the keys of the spec."""


@dataclass(frozen=True, slots=True)
class NetworkCluster:
    """A cluster of a network, with the data for seeds and peers.

    ``network`` is the ID of the cluster that created the network. ``login`` is None for a cluster without seeds.
    """

    id: str
    network: str
    key: ClusterKey
    spec: ClusterSpec
    login: GuestLogin | None


def decide_login(spec: ClusterSpec, owner_keys: Iterable[PublicKey]) -> GuestLogin:
    """Return the login name and the authorized keys, without duplicates, of a new cluster's guests."""
    keys: dict[str, PublicKey] = {}
    for key in (*owner_keys, *spec.authorized_keys):
        keys.setdefault(key.split(" ")[1], PublicKey(key))
    return GuestLogin(user=spec.user or derive_login_name(spec.owner), authorized_keys=tuple(keys.values()))


def derive_login_name(owner: UserName) -> LoginName:
    """Return the owner's name, or the nearest valid login name: ``Eva.Nova@example.org`` becomes ``eva_nova``."""
    name = _OTHER_CHARACTERS.sub("_", owner.partition("@")[0].lower())
    return LoginName((f"u{name}" if name[0].isdigit() else name)[:MAX_LOGIN_NAME])


def add_seeds(wanted: HostWanted, clusters: Sequence[NetworkCluster], secret: SecretBytes) -> HostWanted:
    """Return a copy of ``wanted`` that also contains the seeds of the host's guests and the peers of its networks.

    ``clusters`` are all clusters of the networks on the host, also clusters on other hosts only.
    """
    by_id = {cluster.id: cluster for cluster in clusters}
    segments = (_add_to_segment(segment, by_id, secret) for segment in wanted.segments)
    return wanted.model_copy(update={"segments": tuple(segments)})


def make_peers(clusters: Iterable[NetworkCluster], secret: SecretBytes) -> tuple[Peer, ...]:
    """Return the guests of these clusters as peers, by cluster, in the order of each cluster's spec."""
    return tuple(_make_peer(cluster, guest, secret) for cluster in clusters for guest in cluster.spec.guests)


def _add_to_segment(segment: Segment, clusters: Mapping[str, NetworkCluster], secret: SecretBytes) -> Segment:
    network = (cluster for cluster in clusters.values() if cluster.network == segment.id)
    guests = tuple(_add_seed(guest, clusters.get(guest.cluster or segment.id), secret) for guest in segment.guests)
    return segment.model_copy(update={"guests": guests, "peers": make_peers(network, secret)})


def _add_seed(guest: GuestWanted, cluster: NetworkCluster | None, secret: SecretBytes) -> GuestWanted:
    if cluster is None or cluster.login is None:
        return guest
    pair = derive_cluster_key(secret, cluster.id)
    own_key = PublicKey(f"{pair.public} {f'cluster {cluster.key}'[:MAX_COMMENT]}")
    seed = GuestSeed(
        user=UserName(cluster.login.user),
        authorized_keys=(*cluster.login.authorized_keys, own_key),
        host_key=derive_host_key(secret, cluster.id, guest.name).private,
        cluster_key=pair.private,
        user_data=next(_find_user_data(cluster.spec.guests, guest.name), None),
    )
    return guest.model_copy(update={"seed": seed})


def _find_user_data(guests: Iterable[Guest], name: str) -> Iterator[str | None]:
    return (guest.user_data for guest in guests if guest.name == name)


def _make_peer(cluster: NetworkCluster, guest: Guest, secret: SecretBytes) -> Peer:
    has_seed = cluster.login is not None
    return Peer(
        name=guest.name,
        cluster=cluster.key,
        addresses=guest.addresses,
        host_key=derive_host_key(secret, cluster.id, guest.name).public if has_seed else None,
        cpus=guest.cpus,
    )
