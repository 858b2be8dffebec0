"""Live clusters: the clusters that elements must carry, with the data for paths and wanted states."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sqlalchemy import ColumnElement

from sbf_service.domain.paths import ClusterNetwork, LiveCluster
from sbf_service.store.clusters.cluster_documents import parse_current_spec, parse_image_sources
from sbf_service.store.clusters.cluster_queries import IS_WANTED, OF_IDS, RowsOfClusters, find_clusters, read_clusters
from sbf_service.store.networks.cluster_gateways import read_cluster_gateways
from sbf_service.store.tables.cluster_tables import ClusterRecord, ClusterRow
from sbf_service.store.tables.columns import equals_any, split_ids
from sbf_service.store.tables.vlan_tables import ClaimRow, ServiceClaimRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.values import ClusterKey, Name, VlanId

_VLANS = RowsOfClusters(ClaimRow.cluster_id, ClaimRow.site, ClaimRow.vlan)
_SERVICES = RowsOfClusters(ServiceClaimRow.cluster_id, ServiceClaimRow.number)
_Row = TypeVar("_Row", ClusterRow, ClusterRecord)


class StoredCluster(NamedTuple):
    """The stored values of a live cluster: its row, its gateways, and its network's row and claims."""

    cluster: ClusterRow | ClusterRecord
    network: ClusterRow | ClusterRecord
    vlans: Sequence[tuple[str, int]]
    service: int | None
    gateways: tuple[Name, ...]


def read_live_clusters(unit: Unit, *conditions: ColumnElement[bool]) -> list[LiveCluster]:
    """Return the live clusters that meet the conditions."""
    is_wanted = IS_WANTED if conditions else equals_any(ClusterRow.state, WANTED_STATES)
    return make_live_clusters(unit, find_clusters(unit, is_wanted, *conditions))


def make_live_clusters(unit: Unit, rows: Sequence[ClusterRow]) -> list[LiveCluster]:
    """Return the live cluster of each row, in the order of ``rows``."""
    networks = read_networks(unit, rows)
    return [make_live_cluster(stored) for stored in read_stored_clusters(unit, rows, networks)]


def read_stored_clusters(
    unit: Unit, rows: Sequence[_Row], networks: Mapping[str, _Row], *, everything: bool = False
) -> Iterator[StoredCluster]:
    """Yield the stored values of each cluster in ``rows``, with the ``networks`` by ID.

    If ``everything``, read the claims and gateways of all clusters, which is faster if ``rows`` contains most of them.
    """
    of_networks, of_clusters = (None, None) if everything else (networks, [row.id for row in rows])
    vlans, services = _read_claims(unit, of_networks), read_service_ids(unit, of_networks)
    gateways = read_cluster_gateways(unit, of_clusters)
    for row in rows:
        network = networks[row.network or row.id]
        yield StoredCluster(row, network, vlans.get(network.id, ()), services.get(network.id), gateways.get(row.id, ()))


def make_live_cluster(stored: StoredCluster) -> LiveCluster:
    """Return the live cluster with these stored values."""
    row, network = stored.cluster, stored.network
    return LiveCluster(
        id=row.id,
        key=ClusterKey(row.key),
        spec=parse_current_spec(row),
        vlans=_parse_vlans(stored.vlans),
        transport=None if network.transport is None else Name(network.transport),
        service=stored.service,
        joined=None
        if network is row
        else ClusterNetwork(network.id, ClusterKey(network.key), parse_current_spec(network)),
        created_by=row.created_by,
        images={} if row.images is None else parse_image_sources(row.images),
        gateways=stored.gateways,
        quarantined=row.quarantined,
    )


def read_networks(unit: Unit, rows: Sequence[ClusterRow]) -> dict[str, ClusterRow]:
    """Return the clusters that created the networks of ``rows``, by ID."""
    found = {row.id: row for row in rows if row.network is None}
    joined = {row.network for row in rows if row.network is not None} - found.keys()
    for group in split_ids(sorted(joined)):
        found |= {row.id: row for row in read_clusters(unit, OF_IDS, {"ids": group})}
    return found


def read_vlans(unit: Unit, ids: Iterable[str]) -> dict[str, dict[Name, VlanId]]:
    """Return the claimed VLAN IDs of networks, by network ID and then by site."""
    return {network: _parse_vlans(claims) for network, claims in _read_claims(unit, ids).items()}


def read_service_ids(unit: Unit, ids: Iterable[str] | None) -> dict[str, int]:
    """Return the claimed service IDs of networks (None: all networks), by network ID."""
    return dict(_SERVICES.read(unit, ids))


def _read_claims(unit: Unit, ids: Iterable[str] | None) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for network, site, vlan in _VLANS.read(unit, ids):
        found[network].append((site, vlan))
    return found


def _parse_vlans(claims: Iterable[tuple[str, int]]) -> dict[Name, VlanId]:
    return {Name(site): VlanId(vlan) for site, vlan in claims}
