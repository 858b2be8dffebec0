"""Tests that the cost of a call does not grow with the installation, as docs/decisions/0078 requires.

The costs are counted, not timed: SQL statements, rows fetched, instructions of SQLite's virtual machine and of Python.
The larger installation has the same number of clusters at each site and on each transport as the smaller installation.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event, insert, select, update
from support.migrated import create_sqlite
from support.sbf_fakes.world import share_compiled

from benchmarks.scale.costs import Costs
from benchmarks.scale.filling import fill
from benchmarks.scale.operations import MEASURES_ITSELF, MeasuredService
from benchmarks.scale.sizes import InstallationSize
from sbf_service.store.clusters.cluster_queries import NOT_ENDED
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.vlan_tables import ClaimRow, FreedServiceRow, UnusedServiceRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from sbf_service.store.vlans.service_ids import choose_service_id, claim_service_id
from sbf_service.store.vlans.transport_vlans import list_collisions
from virtcloud.model.transport import ServiceRange, Transport

SMALL = InstallationSize(4, 4, 16, 16, 100, region_sites=4)
LARGE = InstallationSize(32, 8, 128, 1024, 2000, region_sites=4)
FEW_SITES = InstallationSize(4, 8, 16)
EVPN = Transport(name="evpn", kind="evpn", vnis="10100-19999", asn=64512)
CLAIMS = 32
"""The number of claims before the measurement. These claims fill the service's cache of paths."""
GRANULARITY = 60
"""The tolerance in steps (instructions of SQLite's virtual machine). For each running statement, SQLite counts steps
only in multiples of 20.
"""


def disable_synchronous_writes(connection: sqlite3.Connection, _entry: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


def measure(folder: Path, size: InstallationSize) -> Mapping[str, Costs]:
    """Return the costs of each operation by its name. Each operation runs twice, and only the second run counts."""
    database = f"sqlite:///{folder}/{size.sites}.db"
    create_sqlite(database)
    measured = MeasuredService(database, size, counts_steps=True)
    share_compiled(measured.store.engine)
    event.listen(measured.store.engine, "connect", disable_synchronous_writes)
    fill(measured.store, size)
    for _ in range(CLAIMS):
        measured.claim()
    measured.settle()
    found = dict(_measure_operations(measured))
    found |= _measure_service_claims(measured)
    measured.finish()
    return found


def _measure_operations(measured: MeasuredService) -> Iterator[tuple[str, Costs]]:
    measured.counter.counts_instructions = True
    for name, operation in measured.operations.items():
        for _ in range(2):
            if name in MEASURES_ITSELF:
                operation()
            else:
                with measured.counter.measure():
                    operation()
        yield name, measured.counter.costs


def claim_next_service_id(unit: Unit, transport: Transport, cluster_id: str) -> None:
    number = choose_service_id(unit, transport)
    assert number is not None
    claim_service_id(unit, transport, number, cluster_id)


def _measure_service_claims(measured: MeasuredService) -> dict[str, Costs]:
    """Return the costs of two claims: of a service ID that was never used, and of a released service ID.

    Before the measurement, the function claims a service ID for every live cluster except two, and records as many
    released service IDs as there are ended clusters. The costs of this preparation do not count.
    """
    with measured.counter.measure(), measured.store.change() as unit:
        ids = unit.session.scalars(select(ClusterRow.id).where(NOT_ENDED).order_by(ClusterRow.id)).all()
        for cluster_id in ids[:-2]:
            claim_next_service_id(unit, EVPN, cluster_id)
        used = len(ids) - 2
        released = [
            {"transport": "evpn", "number": EVPN.services[used + number], "freed_at": unit.now}
            for number in range(measured.size.ended)
        ]
        unit.session.execute(insert(FreedServiceRow), released)
        unit.session.execute(update(UnusedServiceRow).values(unused=EVPN.services[used] + len(released)))
    everything = EVPN.model_copy(update={"vnis": ServiceRange(f"10100-{10099 + used + len(released)}")})
    found = {}
    for name, transport in (("claim of an unused service ID", EVPN), ("claim of a released service ID", everything)):
        with measured.store.dry_run() as unit, measured.counter.measure() as found[name]:
            claim_next_service_id(unit, transport, ids[-1])
    return found


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Costs, Costs]]:
    folder = tmp_path_factory.mktemp("scale")
    small, large = measure(folder, SMALL), measure(folder, LARGE)
    return {name: (small[name], large[name]) for name in small}


@pytest.mark.parametrize(
    "operation",
    [
        "claim",
        "dry run",
        "poll",
        "confirm (host)",
        "reconcile (switch)",
        "delete",
        "confirm (removal)",
        "look of the reconciler",
        "sweep",
        "element",
        "cluster",
        "page of clusters",
        "page of the clusters of a site",
        "page of ended clusters",
        "page of elements",
        "page of sites",
        "page of the audit log",
        "claim of an unused service ID",
        "claim of a released service ID",
    ],
)
def test_a_larger_installation_costs_no_more(costs: Mapping[str, tuple[Costs, Costs]], operation: str) -> None:
    small, large = costs[operation]
    assert large.statements <= small.statements + 4  # a confirmation may also make a cluster active
    assert large.rows <= small.rows + 2
    assert large.steps <= 1.2 * small.steps + GRANULARITY
    assert large.instructions <= 1.1 * small.instructions


def test_networks_of_filled_installations_share_no_vlan_on_a_transport(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/sbf.db"
    create_sqlite(database)
    measured = MeasuredService(database, InstallationSize(21, 3, 330, 40))
    fill(measured.store, measured.size)
    for _ in range(2 * measured.size.sites):
        measured.claim()
    with measured.store.read() as unit:
        collisions = list_collisions(unit.connection)
        networks = unit.session.scalars(select(ClaimRow.cluster_id).where(ClaimRow.transport.is_not(None))).all()
    measured.finish()
    assert collisions == []
    assert len(set(networks)) == 330 + 2 * 21


@pytest.fixture(scope="module")
def site_changes(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Costs], list[Costs]]:
    """The costs with few sites, and the costs with many sites.

    Each list has the costs of a change of one site, and the costs of another replica's reading of this change.
    """
    folder = tmp_path_factory.mktemp("sites")
    few, many = measure_site_change(folder, FEW_SITES), measure_site_change(folder, LARGE)
    return few, many


def measure_site_change(folder: Path, size: InstallationSize) -> list[Costs]:
    """Return the costs of the second change of one site, and of another replica's reading of this change."""
    database = f"sqlite:///{folder}/{size.sites}.db"
    create_sqlite(database)
    measured = MeasuredService(database, size)
    share_compiled(measured.store.engine)
    fill(measured.store, replace(size, ended=0))
    other = Store(measured.store.engine)
    for _ in range(2):
        with other.read() as unit:
            read_topology(unit)
        with measured.counter.measure() as changing:
            measured.change_site()
    with measured.counter.measure() as reading, other.read() as unit:
        read_topology(unit)
    measured.finish()
    return [changing, reading]


@pytest.mark.parametrize("cost", ["statements", "rows", "sent"])
def test_the_cost_of_changing_a_site_ignores_other_sites(
    site_changes: tuple[list[Costs], list[Costs]], cost: str
) -> None:
    for few, many in zip(*site_changes, strict=True):
        assert getattr(many, cost) <= 1.05 * getattr(few, cost)  # larger revisions have more digits


def test_another_replica_reads_one_row_of_a_changed_site(site_changes: tuple[list[Costs], list[Costs]]) -> None:
    _, (_, reading) = site_changes
    assert reading.rows == 2  # the row of the topology's version and the row of the site
