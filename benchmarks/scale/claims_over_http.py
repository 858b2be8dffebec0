"""Measures claims over HTTP with one and with two replicas on one PostgreSQL database.

Usage: ``PYTHONPATH=tests python -m benchmarks.scale.claims_over_http [--callers N] [--claims N] [--rounds N] SIZE...``

A claim is a request for a cluster at two sites. Each replica is a separate process with switches in memory and without
workers, so that reconciliations take no processor time. A round has two parts: the callers send all claims to one
replica, and as many claims to both replicas alternately. Every second round begins with both replicas. Ratios of the
two parts of a round depend less on other programs than the rates. Both replicas run all the time. Therefore, a replica
without callers also receives notices of the other replica's changes. The benchmark deletes the rows of the clusters
after each part.
"""

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import nan
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, delete, func, insert, select

from benchmarks.installation import MeasuredSbf, bearer, serving
from benchmarks.scale.__main__ import open_database
from benchmarks.scale.costs import ServerProcesses
from benchmarks.scale.filling import fill
from benchmarks.scale.sizes import SIZES, InstallationSize, name_host
from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.database_migration import migrate
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vlan_tables import ClaimRow, FreeVlanRow

REPLICAS = ("one", "two")
WITHOUT_WORKERS = ("-m", "benchmarks.scale.switches_in_memory", "--without-workers")
RATES = {"clusters": "900000/minute"}
KEY = "new"
"""The beginning of the keys of the clusters that the benchmark creates."""
OWNERS = 50
CREATED = 201
WARM_UP = 100
"""The number of claims at each replica before the first round."""
_NEW = select(ClusterRow.id).where(ClusterRow.key.startswith(KEY))
_NEW_CLAIMS = ClaimRow.cluster_id.in_(_NEW)
_DELETE_NEW = (
    insert(FreeVlanRow).from_select(
        ["site", "vlan", "since"], select(ClaimRow.site, ClaimRow.vlan, func.now()).where(_NEW_CLAIMS)
    ),
    delete(ClaimRow).where(_NEW_CLAIMS),
    delete(PlacementRow).where(PlacementRow.cluster_id.in_(_NEW)),
    delete(ClusterRow).where(ClusterRow.key.startswith(KEY)),
)
_CHANGED = (ClusterRow, ClaimRow, FreeVlanRow, PlacementRow, ElementRow)


@dataclass(frozen=True, slots=True)
class Part:
    """The measured values of one part of a round. ``seconds`` are the durations of the claims.

    ``sbf_s`` and ``server_s`` are the processor time of all replicas and of the database server.
    """

    duration_s: float
    seconds: list[float]
    sbf_s: float
    server_s: float

    @property
    def rate(self) -> float:
        """The claims per second."""
        return len(self.seconds) / self.duration_s

    @property
    def values(self) -> dict[str, float]:
        """The values by name."""
        percentiles = quantiles(self.seconds, n=100, method="inclusive")
        return {
            "claims per second": self.rate,
            "median of a claim, ms": 1000 * percentiles[49],
            "99th percentile of a claim, ms": 1000 * percentiles[98],
            "processor time of SBF for a claim, ms": 1000 * self.sbf_s / len(self.seconds),
            "processor time of PostgreSQL for a claim, ms": 1000 * self.server_s / len(self.seconds),
        }


@dataclass
class MeasuredReplicas:
    """Two replicas on one filled database, and their callers. ``numbers`` are the numbers of the clusters."""

    size: InstallationSize
    callers: int
    replicas: list[MeasuredSbf]
    engine: Engine
    server: ServerProcesses
    numbers: Iterator[int] = field(default_factory=count)

    def measure(self, replicas: int, claims: int) -> Part:
        """Send claims to the first ``replicas`` replicas. Delete the clusters after the measurement."""
        asked = [self.replicas[caller % replicas] for caller in range(self.callers)]
        left = iter(range(claims))
        sbf_s, server_s, started = self._sbf_s(), self.server.processor_s(), time.monotonic()
        with ThreadPoolExecutor(self.callers) as threads:
            seconds = [found for part in threads.map(lambda sbf: self._claim_all(sbf, left), asked) for found in part]
        part = Part(time.monotonic() - started, seconds, self._sbf_s() - sbf_s, self.server.processor_s() - server_s)
        self._delete_clusters()
        return part

    def _sbf_s(self) -> float:
        return sum(sbf.processor_s() for sbf in self.replicas)

    def _claim_all(self, sbf: MeasuredSbf, left: Iterator[int]) -> list[float]:
        """Send a claim for each number that ``left`` yields. Return the durations of the claims in seconds."""
        connection = http.client.HTTPConnection(sbf.listen, timeout=60)
        durations = []
        for _ in left:
            number = next(self.numbers)
            body = json.dumps(self._make_request(number)).encode()
            started = time.monotonic()
            connection.request("PUT", f"/v1/clusters/{KEY}{number}", body, self._headers(sbf))
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != CREATED:
                raise AssertionError(f"cluster {KEY}{number}: expected status {CREATED}, got {content.decode()}")
            durations.append(time.monotonic() - started)
        connection.close()
        return durations

    def _make_request(self, number: int) -> dict[str, object]:
        hosts = [name_host(site, number % self.size.hosts) for site in self.size.regions.pair_sites(7 * number)]
        spec = {"owner": f"n{number % OWNERS}", "hosts": hosts, "deadline_s": 3600, "lease_s": 86400}
        return {"spec": spec}

    def _headers(self, sbf: MeasuredSbf) -> dict[str, str]:
        return {"content-type": "application/json", **bearer(sbf.token)}

    def _delete_clusters(self) -> None:
        """Delete the rows of the clusters that the benchmark has created, and the free space of these rows."""
        with self.engine.begin() as connection:
            for statement in _DELETE_NEW:
                connection.execute(statement)
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for row in _CHANGED:
                connection.exec_driver_sql(f"VACUUM {row.__tablename__}")


@contextmanager
def measured_replicas(
    database: str, server: ServerProcesses, size: InstallationSize, callers: int
) -> Iterator[MeasuredReplicas]:
    """Fill an empty database, and run two replicas on it."""
    with ExitStack() as stack:
        store = Store(make_engine(database))
        stack.callback(store.close)
        migrate(store.engine)
        fill(store, size)
        replicas = []
        for name in REPLICAS:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            sbf = stack.enter_context(serving(folder, database, program=WITHOUT_WORKERS, replica=name, rates=RATES))
            sbf.ready_within()
            replicas.append(sbf)
        yield MeasuredReplicas(size, callers, replicas, store.engine, server)


def measure_rounds(measured: MeasuredReplicas, claims: int, rounds: int) -> dict[int, list[Part]]:
    """Return the parts of all rounds, by the number of replicas."""
    found: dict[int, list[Part]] = {1: [], len(REPLICAS): []}
    measured.measure(len(REPLICAS), len(REPLICAS) * min(claims, WARM_UP))
    for number in range(rounds):
        for replicas in sorted(found, reverse=bool(number % 2)):
            found[replicas].append(measured.measure(replicas, claims))
    return found


def describe(found: dict[int, list[Part]]) -> Iterator[tuple[str, float, float, float]]:
    """Yield the name of each value, its medians with one and with two replicas, and the median of the ratios."""
    one, two = ([part.values for part in parts] for parts in found.values())
    for name in one[0]:
        singles, doubles = [values[name] for values in one], [values[name] for values in two]
        ratios = [double / single for single, double in zip(singles, doubles, strict=True) if single]
        yield name, median(singles), median(doubles), median(ratios) if ratios else nan


def main() -> int:
    """Measure each size on the command line, and print a table for each size."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.claims_over_http")
    parser.add_argument("sizes", nargs="+", choices=SIZES)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--claims", type=int, default=400, help="the number of claims in each part of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.claims <= 1:
        parser.error(f"--claims: expected a number above 1, got {options.claims}")
    for name in options.sizes:
        with open_database("postgresql") as (database, server):
            assert server is not None  # noqa: S101 - PostgreSQL has a server
            with measured_replicas(database, server, SIZES[name], options.callers) as measured:
                found = measure_rounds(measured, options.claims, options.rounds)
        print(f"\nPostgreSQL, {SIZES[name]}; {options.callers} callers, {options.claims} claims")  # noqa: T201
        print(f"  {'':46} {'one':>8} {'two':>8} {'two/one':>8}")  # noqa: T201
        for label, one, two, ratio in describe(found):
            print(f"  {label:46} {one:8.1f} {two:8.1f} {ratio:8.2f}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
