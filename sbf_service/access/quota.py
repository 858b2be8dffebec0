"""How much one user may have at once. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ClusterSpec


@dataclass(frozen=True, slots=True)
class Use:
    """What a user has, or asks for. Memory is in MiB; a ``network`` is one that a cluster does not join."""

    clusters: int = 0
    networks: int = 0
    guests: int = 0
    cpus: int = 0
    memory_mb: int = 0

    def __add__(self, other: "Use") -> "Use":
        """Return both together."""
        return Use(
            self.clusters + other.clusters,
            self.networks + other.networks,
            self.guests + other.guests,
            self.cpus + other.cpus,
            self.memory_mb + other.memory_mb,
        )


WORDS: Final = {"networks": "network", "guests": "guest", "cpus": "CPU", "memory_mb": "MiB of memory"}
"""What a user has too much of, beside clusters, in words."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an owner has before a cluster, what the cluster asks for, its number of sites, and its length in seconds."""

    owner: str
    has: Use
    asks: Use
    sites: int
    lasts_s: float


def use_of(specs: Iterable[ClusterSpec]) -> Use:
    """Return what clusters use together."""
    return sum((_use(spec) for spec in specs), Use())


def _use(spec: ClusterSpec) -> Use:
    return Use(
        clusters=1,
        networks=int(spec.joins is None),
        guests=len(spec.guests),
        cpus=sum(guest.cpus for guest in spec.guests),
        memory_mb=sum(guest.memory_mb for guest in spec.guests),
    )


def within(own: QuotaLimits | None, default: QuotaLimits) -> QuotaLimits:
    """Return the limits of a user: its own where it has any, else the service's."""
    if own is None:
        return default
    chosen = {name: value for name, value in own.model_dump().items() if value is not None}
    return default.model_copy(update=chosen)


def refused_new(limits: QuotaLimits, wanted: Wanted) -> str | None:
    """Return why a user may not have one more cluster like this; None when it may."""
    if limits.clusters is not None and wanted.has.clusters >= limits.clusters:
        return f"{wanted.owner} already has {_counted(wanted.has.clusters, 'cluster')} (limit {limits.clusters})"
    if limits.sites is not None and wanted.sites > limits.sites:
        return f"{wanted.owner} asks for {_counted(wanted.sites, 'site')} in one cluster (limit {limits.sites})"
    for name, thing in WORDS.items():
        has, asks, most = getattr(wanted.has, name), getattr(wanted.asks, name), getattr(limits, name)
        if most is not None and asks and has + asks > most:
            more = f"{_counted(asks, thing)} more would be {has + asks}"
            return f"{wanted.owner} already has {_counted(has, thing)}, {more} (limit {most})"
    return refused_length(limits, wanted.owner, wanted.lasts_s)


def refused_length(limits: QuotaLimits, owner: str, lasts_s: float) -> str | None:
    """Return why a user's cluster may not last so long from its start; None when it may."""
    if limits.lease_s is None or lasts_s <= limits.lease_s:
        return None
    return f"{owner}'s cluster would last {_hours(lasts_s)} from its start (limit {_hours(limits.lease_s)})"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 or " " in thing else f"{number} {thing}s"


def _hours(seconds: float) -> str:
    """Write a length as batch systems do: ``168:00:00``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
