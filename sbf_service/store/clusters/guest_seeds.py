"""The service secret, the login of a new cluster's guests, and the seeds and peers in wanted documents.

A seed is the configuration that a guest reads when it boots. The peers of a guest are all guests of its network.
Queries about a network do not take longer with more networks in the database.
"""

from collections.abc import Iterable
from typing import Final

from pydantic import SecretBytes
from sqlalchemy import bindparam, or_, select

from sbf_service.domain.guest_seeds import GuestLogin, NetworkCluster, add_seeds, decide_login
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.cluster_queries import IDS, read_clusters, select_clusters
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import equals_any, split_ids
from sbf_service.store.tables.service_tables import ServiceSecretRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.user_tables import UserKeyRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES, ClusterSpec
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.guest_seed import PublicKey
from virtcloud.model.values import ClusterKey
from virtcloud.model.wanted import HostWanted

GUEST_SECRET: Final = "guests"  # noqa: S105 - the name of a row, not a secret
"""The name of the secret from which SBF derives the key pairs of guests and clusters; a migration creates the secret.
"""
_READ_SECRET = select(ServiceSecretRow.value).where(ServiceSecretRow.name == bindparam("secret"))
_READ_KEYS = (
    select(UserKeyRow.key)
    .where(UserKeyRow.owner == bindparam("owner"))
    .order_by(UserKeyRow.added_at, UserKeyRow.fingerprint)
)
_READ_HOSTS = (
    select(PlacementRow.element)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .join(ElementRow, ElementRow.name == PlacementRow.element)
    .where(
        or_(ClusterRow.id == bindparam("network"), ClusterRow.network == bindparam("network")),
        equals_any(ClusterRow.state, WANTED_STATES),
        PlacementRow.removed_revision.is_(None),
        ~equals_any(ElementRow.kind, DEVICE_KINDS),
    )
    .distinct()
)

_OF_NETWORKS = select_clusters(
    equals_any(ClusterRow.state, WANTED_STATES), or_(ClusterRow.id.in_(IDS), ClusterRow.network.in_(IDS))
)


def read_service_secret(unit: Unit, name: str = GUEST_SECRET) -> SecretBytes:
    """Return a secret of the service."""
    return SecretBytes(bytes.fromhex(unit.connection.execute(_READ_SECRET, {"secret": name}).scalar_one()))


def make_guest_login(unit: Unit, spec: ClusterSpec) -> str:
    """Return the login of a new cluster's guests, as JSON.

    If the cluster has no guests, omit the owner's current keys.
    """
    has_guests = spec.guests or spec.spread is not None  # a spread becomes guests; without guests, nobody uses the keys
    keys: Iterable[str] = unit.connection.execute(_READ_KEYS, {"owner": spec.owner}).scalars() if has_guests else ()
    return decide_login(spec, [PublicKey(key) for key in keys]).model_dump_json()


def read_network_clusters(unit: Unit, networks: Iterable[str]) -> list[NetworkCluster]:
    """Return the live clusters of these networks.

    ``networks`` are the IDs of the clusters that created the networks, which precede their members in the result.
    """
    found = []
    for group in split_ids(networks):
        rows = read_clusters(unit, _OF_NETWORKS, {"ids": group})
        found += [_make_network_cluster(row) for row in sorted(rows, key=lambda row: row.network is not None)]
    return found


def add_network_seeds(unit: Unit, wanted: HostWanted) -> HostWanted:
    """Add seeds and peers to a host's wanted state."""
    if not wanted.segments:
        return wanted
    clusters = read_network_clusters(unit, [segment.id for segment in wanted.segments])
    return add_seeds(wanted, clusters, read_service_secret(unit))


def find_network_hosts(unit: Unit, network: str) -> frozenset[str]:
    """Return the hosts and gateways that must carry a network."""
    return frozenset(unit.connection.execute(_READ_HOSTS, {"network": network}).scalars())


def _make_network_cluster(row: ClusterRow) -> NetworkCluster:
    return NetworkCluster(
        id=row.id,
        network=row.network or row.id,
        key=ClusterKey(row.key),
        spec=parse_current_spec(row),
        login=None if row.login is None else GuestLogin.model_validate_json(row.login),
    )
