"""How much one user may have at once. Pure."""

from dataclasses import dataclass

from virtcloud.model.access import QuotaLimits


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user has and asks for: running clusters before this one, and this one's sites and length in seconds."""

    owner: str
    clusters: int
    sites: int
    lasts_s: float


def within(own: QuotaLimits | None, default: QuotaLimits) -> QuotaLimits:
    """Give the limits of a user: its own where it has any, else the service's."""
    if own is None:
        return default
    chosen = {name: value for name, value in own.model_dump().items() if value is not None}
    return default.model_copy(update=chosen)


def refused_new(limits: QuotaLimits, wanted: Wanted) -> str | None:
    """Say why a user may not have one more cluster like this; None when it may."""
    if limits.clusters is not None and wanted.clusters >= limits.clusters:
        return f"{wanted.owner} already has {_counted(wanted.clusters, 'cluster')} (limit {limits.clusters})"
    if limits.sites is not None and wanted.sites > limits.sites:
        return f"{wanted.owner} asks for {_counted(wanted.sites, 'site')} in one cluster (limit {limits.sites})"
    return refused_length(limits, wanted.owner, wanted.lasts_s)


def refused_length(limits: QuotaLimits, owner: str, lasts_s: float) -> str | None:
    """Say why a user's cluster may not last so long from its start; None when it may."""
    if limits.lease_s is None or lasts_s <= limits.lease_s:
        return None
    return f"{owner}'s cluster would last {_hours(lasts_s)} from its start (limit {_hours(limits.lease_s)})"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _hours(seconds: float) -> str:
    """Write a length as batch systems do: ``168:00:00``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
