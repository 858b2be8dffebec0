"""Measures how long it takes to allocate one VLAN ID that is free at each of 1,000 sites.

In the first case, exactly one of each pool's 4,093 VLAN IDs is free, and this ID was used before. In the second case,
every VLAN ID is free and was never used. The measured value is the shortest time of several runs.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from benchmarks.measurement import Measurement
from sbf_service.domain.allocation import SitePool, allocate_vlan_ids
from virtcloud.model.values import Name, VlanId
from virtcloud.model.vlans import VlanSet

SITES = 1000
LAST = VlanId(4094)
REPEATS = 5


def run() -> Iterator[Measurement]:
    """Measure pools with one free VLAN ID, then pools in which every VLAN ID is free."""
    freed = {LAST: datetime(2026, 1, 1, tzinfo=UTC)}
    full = [SitePool(Name(f"s{n}"), _all(), VlanSet(range(2, 4094)), freed=freed) for n in range(SITES)]
    yield Measurement("allocation of a VLAN ID at 1,000 sites, one ID free in each pool", 1000 * _best(full), "ms", 5)
    unused = [SitePool(Name(f"s{n}"), _all()) for n in range(SITES)]
    yield Measurement("allocation of a VLAN ID at 1,000 sites, all IDs free", 1000 * _best(unused), "ms")


def _all() -> VlanSet:
    return VlanSet.parse("2-4094")


def _best(pools: list[SitePool], repeats: int = REPEATS) -> float:
    return min(_timed(pools) for _ in range(repeats))


def _timed(pools: list[SitePool]) -> float:
    started = time.perf_counter()
    allocate_vlan_ids(pools)
    return time.perf_counter() - started
