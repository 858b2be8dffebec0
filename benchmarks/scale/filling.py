"""Fills a database with the rows of an installation that has been in use: live clusters, ended clusters, audit rows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import insert, update

from benchmarks.scale.sizes import FIRST_VLAN, InstallationSize, make_topology, name_host, name_site
from sbf_service.domain.paths import LiveCluster, find_cluster_ports
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import Base, ElementRow, SiteRow
from sbf_service.store.tables.vlan_tables import ClaimRow, CreatedVlanRow
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.claims import replace_offered_vlans
from virtcloud.model.cluster import ClusterSpec, ClusterState
from virtcloud.model.switch_state import PortVlans
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

BATCH = 10_000
_PORTS = TypeAdapter(PortVlans)
AUDIT_EVENTS = ("cluster_created", "cluster_active", "cluster_draining", "cluster_released", "number_freed")


def fill(store: Store, size: InstallationSize) -> None:
    """Fill an empty database that has all tables.

    Then vacuum a PostgreSQL database, because an automatic vacuum during the measurement would take processor time.
    """
    topology, pool = make_topology(size.regions, size.hosts), size.pool
    with store.change() as unit:
        put_topology(unit, topology)
        for site in topology.sites:
            replace_offered_vlans(unit, site.name, VlanSet(), pool)
        unit.session.execute(update(SiteRow).values(pool=pool))
    with store.change() as unit:
        _Filler(unit, topology, size).fill()
    with store.change() as unit:
        _insert(unit, AuditRow, _make_audit_rows(size, unit.now))
    if store.engine.dialect.name == "postgresql":
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM (FREEZE, ANALYZE)")


class _Filler:
    """Inserts the clusters of one installation, with the revisions and VLANs of its elements."""

    def __init__(self, unit: Unit, topology: Topology, size: InstallationSize) -> None:
        self.unit, self.topology, self.size = unit, topology, size
        self.regions, self.pool_size = size.regions, len(size.pool)
        self.revisions: dict[str, int] = defaultdict(lambda: 1)
        self.carried: dict[str, dict[PortName, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.created: set[tuple[str, int]] = set()

    def fill(self) -> None:
        """Insert and update the rows of the installation, and delete the claimed VLAN IDs from the free VLAN IDs."""
        clusters = [
            (number, is_ended)
            for is_ended, count in ((True, self.size.ended), (False, self.size.live))
            for number in range(count)
        ]
        for group in _split(clusters, BATCH):
            parts = [self._make_cluster(number, ended=is_ended) for number, is_ended in group]
            for index, row in enumerate((ClusterRow, PlacementRow, ClaimRow)):
                _insert(self.unit, row, (values for part in parts for values in part[index]))
        self.unit.connection.exec_driver_sql(
            "DELETE FROM free_numbers WHERE EXISTS (SELECT 1 FROM claims "
            "WHERE claims.site = free_numbers.site AND claims.vlan = free_numbers.vlan)"
        )
        _insert(
            self.unit,
            CreatedVlanRow,
            ({"element": element, "vlan": vlan, "created_at": self.unit.now} for element, vlan in sorted(self.created)),
        )
        self._update_elements()

    def _make_cluster(self, number: int, *, ended: bool) -> tuple[list[Any], list[Any], list[Any]]:
        round_, sites = number // self.size.sites, self.regions.pair_sites(number)
        hosts = tuple(name_host(site, (round_ + at) % self.size.hosts) for at, site in enumerate(sites))
        prefix = "e" if ended else "c"
        spec = ClusterSpec(owner=f"u{number % 500}", hosts=tuple(map(Name, hosts)), deadline_s=3600, lease_s=864000)
        key = f"{prefix}{number:06}"
        id_ = f"{prefix}{number:031}"
        region, transport = self.regions.find(sites[0]), self.regions.name_transport(sites[0])
        vlan = VlanId(FIRST_VLAN + (round_ * len(region) + sites[0] - region.start) % self.pool_size)
        vlans = {Name(name_site(site)): vlan for site in sites}
        live = LiveCluster(id_, ClusterKey(key), spec, vlans, Name(transport))
        ports = find_cluster_ports(self.topology, live)
        age = timedelta(seconds=2 * (self.size.ended + self.size.live - number))
        cluster = _make_row(live, self.unit.now - age, ended=ended)
        placements = [self._make_placement(id_, name, ended=ended) for name in sorted({port.element for port in ports})]
        if ended:
            return [cluster], placements, []
        for port in ports:
            if "-sw" in port.element:
                self.carried[port.element][port.port].add(vlan)
                self.created.add((port.element, vlan))
        return (
            [cluster],
            placements,
            [{"site": site, "vlan": vlan, "cluster_id": id_, "transport": transport} for site in vlans],
        )

    def _make_placement(self, cluster: str, element: str, *, ended: bool) -> dict[str, Any]:
        added = self.revisions[element] = self.revisions[element] + 1
        removed = None
        if ended:
            removed = self.revisions[element] = added + 1
        revisions = {"added_revision": added, "removed_revision": removed}
        return {"cluster_id": cluster, "element": element, "settled": ended, **revisions}

    def _update_elements(self) -> None:
        self.unit.session.execute(
            update(ElementRow).values(
                wanted_revision=1,
                confirmed_revision=1,
                highest_confirmed=1,
                reachable=True,
                last_seen=self.unit.now,
                checked_at=self.unit.now + timedelta(hours=1),  # no device is due to be read
            )
        )
        for group in _split(self.revisions.items(), BATCH):
            self.unit.session.execute(
                update(ElementRow),
                [
                    {"name": name, "wanted_revision": revision, "confirmed_revision": revision}
                    | {"highest_confirmed": revision}
                    for name, revision in group
                ],
            )
        carried = [
            {
                "name": name,
                "carried": _PORTS.dump_json({port: VlanSet(vlans) for port, vlans in ports.items()}).decode(),
            }
            for name, ports in self.carried.items()
        ]
        if carried:
            self.unit.session.execute(update(ElementRow), carried)


def _make_row(live: LiveCluster, created: datetime, *, ended: bool) -> dict[str, Any]:
    return {
        "id": live.id,
        "key": live.key,
        "turn": 0,
        "attempt": 0,
        "owner": live.spec.owner,
        "spec": live.spec.model_dump_json(),
        "version": 4,
        "state": ClusterState.RELEASED if ended else ClusterState.ACTIVE,
        "created_at": created,
        "deadline": created + timedelta(hours=1),
        "lease_ends": created + timedelta(days=10),
        "leaving_since": created + timedelta(minutes=5) if ended else None,
        "quarantined": False,
        "transport": live.transport,
        "created_by": live.spec.owner,
    }


def _make_audit_rows(size: InstallationSize, now: datetime) -> Iterator[dict[str, Any]]:
    clusters = max(size.ended, 1)
    for number in range(size.audit):
        event = AUDIT_EVENTS[number * len(AUDIT_EVENTS) // size.audit]
        is_of_element = number % 2
        yield {
            "at": now - timedelta(seconds=size.audit - number),
            "who": f"u{number % 500}",
            "what": "element_confirmed" if is_of_element else event,
            "why": "revision 7",
            "element": name_host(number % size.sites, number % size.hosts) if is_of_element else None,
            "cluster_id": None if is_of_element else f"e{number % clusters:031}",
        }


def _insert(unit: Unit, row: type[Base], values: Iterable[dict[str, Any]]) -> None:
    for group in _split(values, BATCH):
        unit.connection.execute(insert(Base.metadata.tables[row.__tablename__]), group)


def _split(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(values)
    while group := list(islice(left, size)):
        yield group
