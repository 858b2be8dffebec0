"""Admission control: the limits of calls, the quotas of users, and the admission rules of hosts. Pure.

Request limits apply to one call. Quotas apply to all clusters of one user. A host or a site may state which users and
batch jobs it admits, and which images users may name.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.access import ADMIT_EVERYBODY, AdmissionRule, ClusterOrigin, QuotaLimits, Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.document import Document
from virtcloud.model.durations import format_duration
from virtcloud.model.element import Host
from virtcloud.model.errors import BeyondLimit, NotAdmitted
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName

BATCH_PREFIXES = tuple(f"{role}@" for role in (Role.SCHEDULER, Role.JOB_STARTER))
"""The prefixes of the audit log's names for callers that create clusters for jobs. No user's name has such a prefix."""


def find_origin(owner: UserName, who: str | None) -> ClusterOrigin:
    """Return the origin of a cluster: its owner, and whether it belongs to a batch job.

    ``who`` is the creator's name in the audit log. ``None`` stands for a cluster that was created before SBF recorded
    creators; such a cluster counts as a batch job's cluster.
    """
    return ClusterOrigin(owner=owner, batch=who is None or who.startswith(BATCH_PREFIXES))


def check_admitted(topology: Topology, spec: ClusterSpec, origin: ClusterOrigin) -> None:
    """Raise NotAdmitted for a host that does not admit the cluster, or an image that users may not name there."""
    for fault in _find_admission_faults(topology, spec, origin):
        raise NotAdmitted(fault)


def _find_admission_faults(topology: Topology, spec: ClusterSpec, origin: ClusterOrigin) -> Iterator[str]:
    for name in spec.all_hosts:
        admits, _ = _find_host_rules(topology, name)
        if not admits.allows(origin):
            user = f"a batch job of {origin.owner}" if origin.batch else origin.owner
            yield f"host {name} is for {admits}, not for {user}: see 'admits' of the host or its site in the topology"
    for guest in spec.guests:
        _, images = _find_host_rules(topology, guest.host)
        if not origin.batch and images is not None and guest.image not in images:
            known = ", ".join(images) or "none"
            yield (
                f"guest {guest.name}: {origin.owner} may not name image {guest.image} on host {guest.host}; "
                f"images for users there: {known}"
            )


def _find_host_rules(topology: Topology, name: Name) -> tuple[AdmissionRule, tuple[Name, ...] | None]:
    """Return the admission rule of a host, and the images that users may name on it (None: any image).

    The rules of the host's site are the default. An unknown host has no rules; path computation refuses it.
    """
    host = topology.elements.get(name)
    if not isinstance(host, Host):
        return ADMIT_EVERYBODY, None
    site = topology.site_of[name]
    return host.admits or site.admits or ADMIT_EVERYBODY, site.images if host.images is None else host.images


PositiveCount = Annotated[int, Field(ge=1, le=1_000_000)]


class RequestLimits(Document):
    """``[limits]``: SBF refuses a larger call with 413 or 422 and the name of the limit."""

    body: Annotated[int, Field(ge=1024, le=1024**3)] = Field(
        4 * 1024**2, description="Largest body of one call, in bytes."
    )
    hosts: PositiveCount = Field(
        4096, description="Largest number of hosts of one cluster, including the hosts of its guests."
    )
    guests: PositiveCount = Field(4096, description="Largest number of guests of one cluster.")
    sites: PositiveCount = Field(4096, description="Largest number of sites that one cluster names.")
    shares: PositiveCount = Field(256, description="Largest number of owners that one cluster names in `shares_with`.")
    addresses: PositiveCount = Field(16, description="Largest number of addresses of one guest.")


DEFAULT_LIMITS: Final = RequestLimits()


def check_request_limits(limits: RequestLimits, spec: ClusterSpec) -> None:
    """Raise BeyondLimit for the first limit that a cluster's spec exceeds."""
    for name, count, most in _count_keys(limits, spec):
        if count > most:
            raise BeyondLimit(
                f"spec.{name}: expected at most {most}, got {count}; the limit is 'limits.{LIMIT_KEYS[name]}' in the "
                "settings of this SBF"
            )


LIMIT_KEYS: Final = {
    "shares_with": "shares",
    "hosts": "hosts",
    "guests": "guests",
    "sites": "sites",
    "addresses": "addresses",
}
"""The settings key that limits each key of a spec."""


def _count_keys(limits: RequestLimits, spec: ClusterSpec) -> Iterator[tuple[str, int, int]]:
    yield "guests", len(spec.guests), limits.guests
    yield "hosts", max(len(spec.hosts), len(spec.all_hosts)), limits.hosts
    yield "sites", len(spec.sites), limits.sites
    yield "shares_with", len(spec.shares_with), limits.shares
    yield "addresses", max((len(guest.addresses) for guest in spec.guests), default=0), limits.addresses


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The resources that clusters use. Memory is in MiB.

    ``networks`` counts the clusters that join no other cluster.
    """

    clusters: int = 0
    networks: int = 0
    guests: int = 0
    cpus: int = 0
    memory_mb: int = 0

    def __add__(self, other: "ResourceUsage") -> "ResourceUsage":
        """Return the sum of both usages."""
        return ResourceUsage(
            self.clusters + other.clusters,
            self.networks + other.networks,
            self.guests + other.guests,
            self.cpus + other.cpus,
            self.memory_mb + other.memory_mb,
        )


QUOTA_UNITS: Final = {"networks": "network", "guests": "guest", "cpus": "CPU", "memory_mb": "MiB of memory"}
"""The units of quotas in error messages. The message for clusters is separate."""


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """An owner's request for one more cluster.

    ``has`` is what the owner's clusters use already, ``asks`` what the new cluster would add. ``sites`` is the number
    of the new cluster's sites, and ``lasts_s`` its duration in seconds.
    """

    owner: str
    has: ResourceUsage
    asks: ResourceUsage
    sites: int
    lasts_s: float


def sum_usage(specs: Iterable[ClusterSpec]) -> ResourceUsage:
    """Return the total usage of these clusters."""
    return sum((_count_usage(spec) for spec in specs), ResourceUsage())


def _count_usage(spec: ClusterSpec) -> ResourceUsage:
    return ResourceUsage(
        clusters=1,
        networks=int(spec.joins is None),
        guests=len(spec.guests),
        cpus=sum(guest.cpus for guest in spec.guests),
        memory_mb=sum(guest.memory_mb for guest in spec.guests),
    )


def merge_limits(own: QuotaLimits | None, default: QuotaLimits) -> QuotaLimits:
    """Return the limits of a user: the user's own limits, completed by the service's defaults."""
    if own is None:
        return default
    chosen = {name: value for name, value in own.model_dump().items() if value is not None}
    return default.model_copy(update=chosen)


def find_quota_violation(limits: QuotaLimits, wanted: QuotaRequest) -> str | None:
    """Return the reason why a quota forbids the requested cluster, or None."""
    if limits.clusters is not None and wanted.has.clusters >= limits.clusters:
        return f"{wanted.owner} already has {_format_count(wanted.has.clusters, 'cluster')} (limit {limits.clusters})"
    if limits.sites is not None and wanted.sites > limits.sites:
        return f"{wanted.owner} asks for {_format_count(wanted.sites, 'site')} in one cluster (limit {limits.sites})"
    for name, thing in QUOTA_UNITS.items():
        has, asks, most = getattr(wanted.has, name), getattr(wanted.asks, name), getattr(limits, name)
        if most is not None and asks and has + asks > most:
            more = f"{_format_count(asks, thing)} more would be {has + asks}"
            return f"{wanted.owner} already has {_format_count(has, thing)}, {more} (limit {most})"
    return find_lease_violation(limits, wanted.owner, wanted.lasts_s)


def find_lease_violation(limits: QuotaLimits, owner: str, lasts_s: float) -> str | None:
    """Return the reason why a quota forbids a cluster of ``lasts_s`` seconds from its start, or None."""
    if limits.lease_s is None or lasts_s <= limits.lease_s:
        return None
    duration, limit = (format_duration(seconds, max_parts=4) for seconds in (lasts_s, limits.lease_s))
    return f"{owner}'s cluster would last {duration} from its start (limit {limit})"


def _format_count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 or " " in thing else f"{count} {thing}s"
