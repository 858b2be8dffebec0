"""A cluster over 16 or 64 emulated switches, compared with a cluster on one switch.

A switch takes 300 ms for each command. The measured time is from the request until the cluster is active. Warm:
sessions are open, and the ports are already trunks. Cold: the service was restarted and has loaded its libraries, but
has no open session with the measured switches. The service has a worker for each switch (``workers = 64``).
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.installation import MeasuredSbf, serving
from benchmarks.measurement import TIMES, Measurement
from benchmarks.switches import Switches, switches

MOST, SOME, REPEATS = 64, 16, 3


def run() -> Iterator[Measurement]:
    """Measure the warm cases alternately. Then measure the cold cases."""
    with TemporaryDirectory() as name, switches(MOST + 2) as emulated:
        folder = Path(name)
        with serving(folder) as sbf:
            sbf.install(emulated.addresses)
            _prepare_ports(sbf)
            yield from _warm(sbf)
        with serving(folder) as sbf:
            yield from _cold(sbf, emulated)


def _prepare_ports(sbf: MeasuredSbf) -> None:
    for key, hosts in {"all": over(MOST), "first": both(1), "next": both(MOST + 1), "last": both(MOST + 2)}.items():
        sbf.set_up(key, *hosts)
        sbf.end(key)


def _warm(sbf: MeasuredSbf) -> Iterator[Measurement]:
    durations: dict[int, list[float]] = {1: [], SOME: [], MOST: []}
    for number in range(REPEATS):
        for count, times in durations.items():
            key = f"warm{count}-{number}"
            times.append(sbf.set_up(key, *(over(count) if count > 1 else both(1))))
            sbf.end(key)
    single, some, most = (median(times) for times in durations.values())
    yield Measurement("a cluster on one switch, warm", single, "s")
    yield Measurement(f"{SOME} switches compared with one, warm", some / single, TIMES, 1.2)
    yield Measurement(f"{MOST} switches compared with one, warm", most / single, TIMES, 1.5)


def _cold(sbf: MeasuredSbf, emulated: Switches) -> Iterator[Measurement]:
    before = sum(int(str(count)) for count in emulated.read("logins"))
    sbf.set_up("loads-the-library", *both(MOST + 2))
    single, most = sbf.set_up("cold1", *both(MOST + 1)), sbf.set_up("cold64", *over(MOST))
    logins = sum(int(str(count)) for count in emulated.read("logins")) - before
    if logins != MOST + 2:
        raise AssertionError(f"expected {MOST + 2} new sessions, counted {logins}: the service was not cold")
    yield Measurement("a cluster on one switch, cold", single, "s")
    yield Measurement(f"{MOST} switches compared with one, cold", most / single, TIMES)


def over(count: int) -> tuple[str, ...]:
    """Return one host of each of the first ``count`` sites."""
    return tuple(f"s{n}-h1" for n in range(1, count + 1))


def both(site: int) -> tuple[str, ...]:
    """Return both hosts of a site."""
    return (f"s{site}-h1", f"s{site}-h2")
