"""Compares claims during changes of the whole topology, with and without the pauses of the changing thread.

Usage: ``PYTHONPATH=.:tests python -m benchmarks.scale.pauses [--database sqlite|postgresql] SITES HOSTS LIVE``. Both
variants alternate in one process, without HTTP. In each round, one thread changes a port of every host, and a caller
creates and deletes clusters meanwhile.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from statistics import median, quantiles
from threading import Thread

from benchmarks.scale.__main__ import open_database
from benchmarks.scale.filling import fill
from benchmarks.scale.operations import MeasuredService
from benchmarks.scale.sizes import InstallationSize
from benchmarks.scale.topology_changes import SPARE_PORT
from sbf_service.http.topology_bodies import parse_topology
from sbf_service.large_documents import Pauses
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.topology.topology import change_topology
from virtcloud.model.topology import Topology
from virtcloud.model.values import PortName

ROUNDS = 5
PAUSE_S = 0.02


def change_ports(topology: Topology) -> bytes:
    """Return the topology as JSON, with ``SPARE_PORT`` added to every host, or removed from every host."""
    ports = {PortName(SPARE_PORT)}
    sites = [
        site.model_copy(
            update={
                "hosts": tuple(
                    host.model_copy(update={"ports": tuple(sorted(ports ^ set(host.ports)))}) for host in site.hosts
                )
            }
        )
        for site in topology.sites
    ]
    return topology.model_copy(update={"sites": tuple(sites)}).model_dump_json().encode()


@contextmanager
def without_pauses() -> Iterator[None]:
    """Turn off the pauses of all threads at yield points, until the end of the context."""
    pause = Pauses.pause
    Pauses.pause = lambda _self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Pauses.pause = pause  # type: ignore[method-assign]


def time_call(call: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    started = time.monotonic()
    call()
    return time.monotonic() - started


def measure_change(measured: MeasuredService) -> tuple[float, list[float]]:
    """Change the topology once. Return the duration of the change, and of each claim and deletion meanwhile."""
    with measured.store.read() as unit:
        body = change_ports(read_topology(unit))
    durations: list[float] = []

    def change() -> None:
        topology = parse_topology(body, measured.store.cached_topology)
        assert isinstance(topology, Topology)  # noqa: S101 - for the type checker
        change_topology(measured.store, lambda former: former.share_parts(topology), who="bench")

    thread = Thread(target=lambda: durations.append(time_call(change)))
    times: list[float] = []
    thread.start()
    while thread.is_alive():
        times += [time_call(measured.claim), time_call(measured.delete)]
        time.sleep(PAUSE_S)
    thread.join()
    return durations[0], times


def main() -> None:
    """Fill a database, measure both variants alternately, and print the values and the ratios."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.pauses")
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("size", nargs="*", type=int, default=[100, 100, 1000])
    options = parser.parse_args()
    size = InstallationSize(*options.size)
    with open_database(options.database) as (database, _):
        measured = MeasuredService(database, size)
        measured.service.prepare()
        fill(measured.store, size)
        measure_change(measured)  # the first change compiles statements
        with_pauses, without = [], []
        for _ in range(ROUNDS):
            with_pauses.append(measure_change(measured))
            with without_pauses():
                without.append(measure_change(measured))
        measured.finish()
    values = [describe(name, found) for name, found in (("pauses", with_pauses), ("no pauses", without))]
    ratios = (f"{one / other:.2f}" for one, other in zip(*values, strict=True))
    print("pauses / no pauses: change {}, median of calls {}, 99th percentile {}".format(*ratios))  # noqa: T201


def describe(name: str, found: list[tuple[float, list[float]]]) -> tuple[float, float, float]:
    """Print and return the median duration of a change, and the median and 99th percentile of the calls meanwhile."""
    times = list(chain.from_iterable(calls for _, calls in found))
    values = median(duration for duration, _ in found), median(times), quantiles(times, n=100, method="inclusive")[98]
    print(f"{name}: change {values[0]:.2f} s; {len(times)} calls, {values[1]:.3f} s, 99th {values[2]:.3f} s")  # noqa: T201
    return values


if __name__ == "__main__":
    main()
