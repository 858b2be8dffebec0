"""Measures requests for clusters, called *claims* in the results.

Each cluster has hosts at two sites, so SBF claims a VLAN ID at both sites. Each of four
callers sends its next request after SBF has answered the previous one.

The service is ``sbf serve`` with a database on disk. The service also reconciles two emulated switches (300 ms a
command) with these clusters. The callers run on the same cores as the service. Both kinds of database write to the disk
before they answer (SQLite's ``synchronous=FULL``, PostgreSQL's ``fsync``).
"""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from benchmarks.installation import MeasuredSbf, bearer, databases, request, serving
from benchmarks.measurement import Measurement
from benchmarks.switches import switches

CALLERS = 4
SECONDS = 8.0
CREATED = 201
BODY = json.dumps(request("s1-h1", "s2-h1")).encode()


def run() -> Iterator[Measurement]:
    """Measure each available kind of database."""
    for name, database in databases():
        with (
            TemporaryDirectory() as folder,
            switches(2) as two,
            database() as address,
            serving(Path(folder), address) as sbf,
        ):
            sbf.install(two.addresses, "2-1001,1006-4094")
            used, callers = sbf.processor_s(), time.process_time()
            durations = _load(sbf)
            used, callers = sbf.processor_s() - used, time.process_time() - callers
        yield Measurement(f"claims through HTTP, {name}", len(durations) / SECONDS, "/s", 200, at_least=True)
        yield Measurement(f"99th percentile of a claim, {name}", 1000 * quantiles(durations, n=100)[98], "ms", 50)
        yield Measurement(f"median of a claim, {name}", 1000 * quantiles(durations, n=2)[0], "ms")
        yield Measurement(f"longest claim, {name}", 1000 * max(durations), "ms")
        yield Measurement(f"processor time of the service for a claim, {name}", 1000 * used / len(durations), "ms")
        yield Measurement(f"processor time of the callers for a claim, {name}", 1000 * callers / len(durations), "ms")


def _load(sbf: MeasuredSbf) -> list[float]:
    numbers, ends = count(), time.monotonic() + SECONDS
    with ThreadPoolExecutor(CALLERS) as pool:
        return [
            duration
            for durations in pool.map(lambda _: _call_until(sbf, numbers, ends), range(CALLERS))
            for duration in durations
        ]


def _call_until(sbf: MeasuredSbf, numbers: Iterator[int], ends: float) -> list[float]:
    connection = http.client.HTTPConnection(sbf.listen)
    headers = {"content-type": "application/json", **bearer(sbf.token)}
    durations = []
    while (started := time.monotonic()) < ends:
        connection.request("PUT", f"/v1/clusters/c{next(numbers)}", BODY, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != CREATED:
            raise AssertionError(f"a claim was refused: {text.decode()}")
        durations.append(time.monotonic() - started)
    connection.close()
    return durations
