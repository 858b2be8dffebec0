"""200 clusters at the same time on one emulated switch (300 ms a command), compared with one cluster.

Eight callers request the clusters through HTTP. The measured time is from the first request until the last cluster is
active.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.installation import MeasuredSbf, request, serving
from benchmarks.measurement import TIMES, Measurement
from benchmarks.switches import switches

CLUSTERS, CALLERS, REPEATS = 200, 8, 3
HOSTS = ("s1-h1", "s1-h2")


def run() -> Iterator[Measurement]:
    """Measure one cluster several times, then all clusters together."""
    with TemporaryDirectory() as folder, switches(1) as emulated, serving(Path(folder)) as sbf:
        sbf.install(emulated.addresses)
        single = median([_time_one(sbf, number) for number in range(REPEATS + 1)][1:])
        saves, commands = emulated.saves(), emulated.commands()
        together = _time_all(sbf)
        yield Measurement(f"saves for {CLUSTERS} clusters at the same time", emulated.saves() - saves, "", 6)
        yield Measurement(f"time for {CLUSTERS} clusters, compared with one cluster", together / single, TIMES, 8)
        yield Measurement("time for one cluster", single, "s")
        yield Measurement(f"commands for {CLUSTERS} clusters", emulated.commands() - commands)


def _time_one(sbf: MeasuredSbf, number: int) -> float:
    duration = sbf.set_up(f"one{number}", *HOSTS)
    sbf.end(f"one{number}")
    return duration


def _time_all(sbf: MeasuredSbf) -> float:
    started = time.monotonic()
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda n: sbf.call("PUT", f"/v1/clusters/c{n}", request(*HOSTS)), range(CLUSTERS)))
    sbf.wait_confirmed()
    duration = time.monotonic() - started
    states = [cluster["state"] for cluster in sbf.call("GET", "/v1/clusters")]
    if states != ["active"] * CLUSTERS:
        raise AssertionError(f"expected {CLUSTERS} active clusters, found {len(states)}: {sorted(set(states))}")
    return duration
