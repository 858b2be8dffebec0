"""Tests of ``benchmarks/scale/claims_over_http.py``, which compares claims with one and with two replicas."""

from typing import TYPE_CHECKING

from sqlalchemy import func, select

from benchmarks.scale.claims_over_http import Part, describe, measure_rounds, measured_replicas
from benchmarks.scale.costs import ServerProcesses
from benchmarks.scale.sizes import InstallationSize
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.vlan_tables import ClaimRow, FreeVlanRow

if TYPE_CHECKING:
    from support.programs.postgres import PostgresServer

SIZE = InstallationSize(4, 3, 4)


def test_each_part_creates_its_clusters_and_deletes_them(
    empty_postgresql: str, postgres_server: "PostgresServer"
) -> None:
    server = ServerProcesses(postgres_server.pid)
    with measured_replicas(empty_postgresql, server, SIZE, callers=3) as measured:
        found = measure_rounds(measured, claims=6, rounds=2)
        counts = [select(func.count()).select_from(row) for row in (ClusterRow, ClaimRow, FreeVlanRow)]
        with measured.engine.connect() as connection:
            assert [connection.scalar(count) for count in counts] == [4, 8, 4 * 500 - 8]
    assert {replicas: [len(part.seconds) for part in parts] for replicas, parts in found.items()} == {
        1: [6, 6],
        2: [6, 6],
    }


def test_the_ratio_compares_two_parts_of_one_round() -> None:
    found = {1: [Part(1, [0.1] * 10, 1, 1), Part(4, [0.1] * 10, 1, 1), Part(2, [0.1] * 10, 1, 1)]}
    found[2] = [Part(2, [0.1] * 10, 1, 1), Part(2, [0.1] * 10, 1, 1), Part(2, [0.1] * 10, 1, 1)]
    assert next(describe(found)) == ("claims per second", 5.0, 5.0, 1.0)
