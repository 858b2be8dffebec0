"""The stored values of live clusters, for changes of the topology, which concern thousands of clusters.

A change of the topology reads the clusters before its transaction, and again in the transaction. The second reading
compares the stored values and makes only the clusters that differ: this takes a tenth of the time of the first reading.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import DateTime, Executable, Select, select, type_coerce
from sqlalchemy.orm import QueryableAttribute

from sbf_service.domain.paths import ClusterNetwork, LiveCluster
from sbf_service.store.cluster_documents import parse_image_sources, parse_stored_spec
from sbf_service.store.cluster_queries import IDS, IS_WANTED
from sbf_service.store.cluster_tables import ClusterRow
from sbf_service.store.columns import equals_any, split_ids
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlan_tables import ClaimRow, ServiceClaimRow
from sbf_service.store.vpn_tables import ClusterGatewayRow
from virtcloud.model.cluster import WANTED_STATES, ClusterSpec
from virtcloud.model.values import ClusterKey, Name, VlanId

_Select = Select[*tuple[Any, ...]]
_READ: _Select = select(
    type_coerce(ClusterRow.created_at, DateTime()),  # only to sort: the conversion to UTC would take longest
    ClusterRow.key,
    ClusterRow.id,
    ClusterRow.spec,
    ClusterRow.resolved,
    ClusterRow.shares,
    ClusterRow.network,
    ClusterRow.transport,
    ClusterRow.created_by,
    ClusterRow.images,
)
_READ_ALL = _READ.where(equals_any(ClusterRow.state, WANTED_STATES))
_READ_WANTED = _READ.where(ClusterRow.id.in_(IDS), IS_WANTED)
_READ_NETWORKS = _READ.where(ClusterRow.id.in_(IDS))
_VLANS: _Select = select(ClaimRow.cluster_id, ClaimRow.site, ClaimRow.vlan)
_SERVICES: _Select = select(ServiceClaimRow.cluster_id, ServiceClaimRow.number)
_GATEWAYS: _Select = select(ClusterGatewayRow.cluster_id, ClusterGatewayRow.position, ClusterGatewayRow.gateway)


class ClusterRecord(NamedTuple):
    """The columns of a cluster that its live cluster contains. Records are sorted by age."""

    created_at: object
    key: str
    id: str
    spec: str
    resolved: str | None
    shares: str | None
    network: str | None
    transport: str | None
    created_by: str | None
    images: str | None


class LiveRecord(NamedTuple):
    """All stored values of a live cluster: its columns, those of its network, and its network's claims."""

    cluster: ClusterRecord
    network: ClusterRecord
    vlans: Sequence[tuple[str, int]]
    services: Sequence[tuple[int]]
    gateways: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class ClusterReading:
    """The live clusters at one time, oldest first, and their stored values, by cluster ID."""

    clusters: Sequence[LiveCluster] = ()
    records: Mapping[str, LiveRecord] = field(default_factory=dict)


def read_cluster_records(unit: Unit, ids: Collection[str] | None, earlier: ClusterReading) -> ClusterReading:
    """Read the live clusters with these IDs, or all live clusters.

    The reading contains the same object as ``earlier`` for each cluster whose stored values are equal.
    """
    unit.session.flush()
    records = {record.cluster.id: record for record in _read_records(unit, ids)}
    known = {cluster.id: cluster for cluster in earlier.clusters}
    clusters = [
        known[name] if earlier.records.get(name) == record else _make_live_cluster(record)
        for name, record in records.items()
    ]
    return ClusterReading(clusters, records)


def _read_records(unit: Unit, ids: Collection[str] | None) -> Iterable[LiveRecord]:
    clusters = sorted(_read_columns(unit, _READ_ALL if ids is None else _READ_WANTED, ids))
    networks = {record.id: record for record in clusters if record.network is None}
    joined = {record.network for record in clusters if record.network is not None} - networks.keys()
    networks |= {record.id: record for record in _read_columns(unit, _READ_NETWORKS, joined)}
    of_networks, of_clusters = None if ids is None else networks, None if ids is None else [one.id for one in clusters]
    vlans = _read_grouped(unit, _VLANS, ClaimRow.cluster_id, of_networks)
    services = _read_grouped(unit, _SERVICES, ServiceClaimRow.cluster_id, of_networks)
    gateways = _read_grouped(unit, _GATEWAYS, ClusterGatewayRow.cluster_id, of_clusters)
    for record in clusters:
        network = networks[record.network or record.id]
        yield LiveRecord(
            record, network, vlans.get(network.id, ()), services.get(network.id, ()), gateways.get(record.id, ())
        )


def _read_columns(unit: Unit, statement: Executable, ids: Collection[str] | None) -> list[ClusterRecord]:
    return [ClusterRecord._make(row) for row in _execute(unit, statement, ids)]


def _execute(unit: Unit, statement: Executable, ids: Iterable[str] | None) -> Iterable[Any]:
    """Yield the rows of a statement, which has the parameter ``ids`` unless ``ids`` is None."""
    if ids is None:
        yield from unit.connection.execute(statement).all()
        return
    for group in split_ids(sorted(ids)):
        yield from unit.connection.execute(statement, {"ids": group}).all()


def _read_grouped(
    unit: Unit, statement: _Select, column: QueryableAttribute[str], ids: Iterable[str] | None
) -> Mapping[str, Sequence[tuple[Any, ...]]]:
    """Return the sorted rows of each cluster. The first column of the statement is the cluster ID."""
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for name, *values in _execute(unit, statement if ids is None else statement.where(column.in_(IDS)), ids):
        found[name].append(tuple(values))
    return {name: sorted(rows) for name, rows in found.items()}


def _make_live_cluster(record: LiveRecord) -> LiveCluster:
    row, network = record.cluster, record.network
    return LiveCluster(
        id=row.id,
        key=ClusterKey(row.key),
        spec=_parse_spec(row),
        vlans={Name(site): VlanId(vlan) for site, vlan in record.vlans},
        transport=None if network.transport is None else Name(network.transport),
        service=next((number for (number,) in record.services), None),
        joined=None if network is row else ClusterNetwork(network.id, ClusterKey(network.key), _parse_spec(network)),
        created_by=row.created_by,
        images={} if row.images is None else parse_image_sources(row.images),
        gateways=tuple(Name(gateway) for _, gateway in record.gateways),
    )


def _parse_spec(record: ClusterRecord) -> ClusterSpec:
    return parse_stored_spec(record.resolved or record.spec, record.shares)
