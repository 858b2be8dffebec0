"""A simulated trace: arrivals of single clusters, a burst of array jobs, and a site that goes dark.

While a site is dark, its switches and agents are disconnected from SBF.
"""

from dataclasses import dataclass
from random import Random

from benchmarks.scale.sizes import Regions, name_host, name_site


@dataclass(frozen=True, slots=True)
class TraceSize:
    """The parameters of a trace. ``seconds`` is the time in which clusters arrive."""

    sites: int
    hosts: int
    seconds: float
    per_second: float
    """The rate of the Poisson process of single clusters."""
    burst: int
    """The number of array jobs that arrive together in the middle of the trace."""
    lifetime_s: float
    """The mean time between the activation of a cluster and its deletion."""
    dark_s: float


TRACES = {
    "tiny": TraceSize(sites=4, hosts=3, seconds=6, per_second=3, burst=10, lifetime_s=1, dark_s=2),
    "short": TraceSize(sites=20, hosts=5, seconds=30, per_second=4, burst=100, lifetime_s=5, dark_s=8),
    "standard": TraceSize(sites=100, hosts=10, seconds=420, per_second=1, burst=1000, lifetime_s=20, dark_s=60),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """A cluster at two sites of one region."""

    at_s: float
    key: str
    hosts: tuple[str, str]
    lifetime_s: float
    in_burst: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """The arrivals in the order of time, and the site that is dark from ``dark_from_s`` to ``dark_until_s``."""

    arrivals: tuple[Arrival, ...]
    dark_site: str
    dark_from_s: float
    dark_until_s: float


def make_trace(size: TraceSize, seed: int) -> Trace:
    """Return a trace. Equal arguments give equal traces."""
    random = Random(seed)  # noqa: S311 - a reproducible trace, no secret
    times = [(size.seconds / 2, True)] * size.burst
    now = random.expovariate(size.per_second)
    while now < size.seconds:
        times.append((now, False))
        now += random.expovariate(size.per_second)
    arrivals = tuple(_make_arrival(random, size, number, *at) for number, at in enumerate(sorted(times)))
    dark_from = size.seconds / 3
    return Trace(arrivals, name_site(random.randrange(size.sites)), dark_from, dark_from + size.dark_s)


def _make_arrival(random: Random, size: TraceSize, number: int, at: float, in_burst: bool) -> Arrival:
    first, second = random.sample(Regions(size.sites).find(random.randrange(size.sites)), 2)
    hosts = name_host(first, random.randrange(size.hosts)), name_host(second, random.randrange(size.hosts))
    return Arrival(at, f"job{number}", hosts, random.expovariate(1 / size.lifetime_s), in_burst)
