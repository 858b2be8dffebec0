"""Measures creations of clusters by one, two and four replicas on one PostgreSQL database.

A replica is a process with eight callers that create clusters through the store, without HTTP. PostgreSQL writes to the
disk before it answers (``fsync``). The sites of a case are disjoint, or all replicas use the same two sites. A case has
a separate lock for each site, or one lock for all changes (the design before decision 85). Disjoint sites use different
transports. The cases alternate within one run, because other programs may use the same cores.
"""

import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median
from typing import Any

from benchmarks.installation import databases, topology
from benchmarks.measurement import TIMES, Measurement
from sbf_service.store.clusters import cluster_creation
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.database_migration import migrate
from sbf_service.store.store import Store
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.vlans.pools import put_pool
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.element import Device
from virtcloud.model.element_views import Pool
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet

REPLICAS = (1, 2, 4)
CALLERS = 8
SECONDS = 3.0
REPETITIONS = 3
POOL = "2-4000"


@dataclass(frozen=True)
class Case:
    """One measured case.

    ``disjoint``: each replica uses its own sites. ``by_site``: each site has a separate lock.
    """

    replicas: int
    disjoint: bool
    by_site: bool

    @property
    def name(self) -> str:
        """A label of the case, such as ``2 replicas, disjoint sites, locks by site``."""
        locks = "locks by site" if self.by_site else "one lock"
        return f"{self.replicas} replicas, {'disjoint' if self.disjoint else 'common'} sites, {locks}"


def run() -> Iterator[Measurement]:
    """Measure each case several times, and yield the median rates and their ratios."""
    if "PostgreSQL" not in dict(databases()):
        return
    cases = [Case(n, disjoint, by_site) for n in REPLICAS for disjoint in (True, False) for by_site in (False, True)]
    rates: dict[Case, list[float]] = defaultdict(list)
    processor_ms: dict[Case, list[float]] = defaultdict(list)
    for _ in range(REPETITIONS):
        for case in cases:
            rate, used_ms = measure(case)
            rates[case].append(rate)
            processor_ms[case].append(used_ms)
    for case in cases:
        yield Measurement(f"claims, {case.name}", median(rates[case]), "/s")
        yield Measurement(f"processor time of the replicas for a claim, {case.name}", median(processor_ms[case]), "ms")
    for disjoint in (True, False):
        for replicas in REPLICAS:
            by_site, one_lock = Case(replicas, disjoint, by_site=True), Case(replicas, disjoint, by_site=False)
            ratio = median(a / b for a, b in zip(rates[by_site], rates[one_lock], strict=True))
            yield Measurement(f"{by_site.name}, compared with one lock", ratio, TIMES)


def measure(case: Case) -> tuple[float, float]:
    """Return the created clusters per second, and the milliseconds of processor time per cluster."""
    database = dict(databases())["PostgreSQL"]
    with database() as address:
        _furnish(str(address), 2 * max(REPLICAS))
        context = multiprocessing.get_context("spawn")
        results: Any = context.Queue()
        barrier = context.Barrier(case.replicas)
        processes = [
            context.Process(target=_run_replica, args=(str(address), number, case, barrier, results))
            for number in range(case.replicas)
        ]
        for process in processes:
            process.start()
        created = [results.get(timeout=120) for _ in processes]
        for process in processes:
            process.join()
    total = sum(number for number, _ in created)
    return total / SECONDS, 1000 * sum(used for _, used in created) / total


def _furnish(address: str, sites: int) -> None:
    store = Store(make_engine(address))
    migrate(store.engine)
    document = Topology.model_validate(
        _connect_pairs(topology([f"192.0.2.{number}" for number in range(1, sites + 1)]))
    )
    with store.change() as unit:
        put_topology(unit, document)
        for site in document.sites:
            put_pool(unit, site.name, Pool(vlans=VlanSet.parse(POOL)), _reserve_none)
    store.close()


def _connect_pairs(document: dict[str, Any]) -> dict[str, Any]:
    """Connect each pair of sites by its own transport, because creations over one transport run one after another."""
    for index, site in enumerate(document["sites"]):
        site["attachments"][0]["transport"] = f"circuit{index // 2}"
    names = dict.fromkeys(site["attachments"][0]["transport"] for site in document["sites"])
    return document | {"transports": [{"name": name, "kind": "direct"} for name in names]}


def _reserve_none(_device: Device) -> VlanSet:
    return VlanSet()


def _run_replica(address: str, number: int, case: Case, barrier: Any, results: Any) -> None:  # noqa: ANN401 - a spawn context has no public types
    if not case.by_site:
        cluster_creation._needs_everything = lambda _put: True  # noqa: SLF001 - the state before decision 85
    store = Store(make_engine(address))
    first = 1 + (2 * number if case.disjoint else 0)
    hosts = [f"s{first}-h1", f"s{first + 1}-h1"]
    request = ClusterRequest(spec=ClusterSpec.model_validate({"owner": "bench", "hosts": hosts}))
    numbers = count()
    _create(store, request, f"warm{number}")
    barrier.wait()
    used, ends = time.process_time(), time.monotonic() + SECONDS
    with ThreadPoolExecutor(CALLERS) as threads:
        call = partial(_create_until, store, request, number, numbers, ends)
        created = sum(threads.map(lambda _: call(), range(CALLERS)))
    results.put((created, time.process_time() - used))
    store.close()


def _create_until(store: Store, request: ClusterRequest, number: int, numbers: Iterator[int], ends: float) -> int:
    created = 0
    while time.monotonic() < ends:
        _create(store, request, f"c{number}-{next(numbers)}")
        created += 1
    return created


def _create(store: Store, request: ClusterRequest, key: str) -> None:
    put_cluster(store, key, request, _reserve_none, "bench")


if __name__ == "__main__":
    for found in run():
        print(found, f"({os.cpu_count()} cores)")  # noqa: T201 - a command's output
    sys.exit()
