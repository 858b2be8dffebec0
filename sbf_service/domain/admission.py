"""Admission control: request limits, quotas, and the admission rules of hosts. Pure.

Request limits apply to one call, to one cluster, or to one user's SSH keys and certificates. The quotas of
sites and lease apply to each cluster of a user, and the other quotas to the user's totals. A host's or site's admission
rule in the topology admits only certain users, or only batch jobs. The topology also lists the images that users can
choose, and the hosts that allow open filters.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.access import ADMIT_EVERYBODY, AdmissionRule, ClusterOrigin, QuotaLimits, Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.document import Document
from virtcloud.model.durations import format_duration
from virtcloud.model.element import Host
from virtcloud.model.errors import BadInput, BeyondLimit, NotAdmitted
from virtcloud.model.message_text import count_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName

BATCH_PREFIXES = tuple(f"{role}@" for role in (Role.SCHEDULER, Role.JOB_STARTER))
"""Prefixes of the names of programs that create clusters for jobs, in the audit log. No user name has such a prefix."""


def find_origin(owner: UserName, creator: str | None) -> ClusterOrigin:
    """Return the owner of a cluster, and whether the cluster belongs to a batch job.

    ``creator`` is the creator's name in the audit log. A cluster without a recorded creator counts as a batch job's.
    """
    return ClusterOrigin(owner=owner, batch=creator is None or creator.startswith(BATCH_PREFIXES))


def check_admitted(topology: Topology, spec: ClusterSpec, origin: ClusterOrigin) -> None:
    """Raise NotAdmitted if a host does not admit the cluster, or if the owner may not choose the image of a guest."""
    for fault in _find_admission_faults(topology, spec, origin):
        raise NotAdmitted(fault)


def find_host_fault(topology: Topology, host: Name, image: Name, origin: ClusterOrigin) -> str | None:
    """Return the reason why a host does not accept a guest with this image from this origin; otherwise None."""
    rule, images = _find_host_rules(topology, host)
    if not rule.allows(origin):
        return f"it is for {rule}"
    if not origin.batch and images is not None and image not in images:
        return f"users may not choose image {image} there"
    return None


def _find_admission_faults(topology: Topology, spec: ClusterSpec, origin: ClusterOrigin) -> Iterator[str]:
    for name in spec.all_hosts:
        rule, _ = _find_host_rules(topology, name)
        if not rule.allows(origin):
            yield f"host {name} is for {rule}, not for {origin}: see 'admits' of the host or its site in the topology"
    for guest in spec.guests:
        _, images = _find_host_rules(topology, guest.host)
        if not origin.batch and images is not None and guest.image not in images:
            allowed = ", ".join(images) or "none"
            yield (
                f"guest {guest.name}: {origin.owner} may not choose image {guest.image} on host {guest.host}; "
                f"images for users there: {allowed}"
            )


def _find_host_rules(topology: Topology, name: Name) -> tuple[AdmissionRule, tuple[Name, ...] | None]:
    """Return a host's admission rule, and the images that users may choose on this host (None: any image).

    The rules of the host's site are the default. An unknown host admits everybody: the computation of the path raises
    NotFound later.
    """
    host = topology.elements.get(name)
    if not isinstance(host, Host):
        return ADMIT_EVERYBODY, None
    site = topology.site_of[name]
    return host.admits or site.admits or ADMIT_EVERYBODY, site.images if host.images is None else host.images


def check_filters(topology: Topology, spec: ClusterSpec, network: ClusterSpec) -> None:
    """Check the guests of a cluster against the filters of its network.

    ``spec`` contains the planned addresses, and ``network`` is the spec of the cluster that created the network. Raise
    NotAdmitted for open filters if the host of a guest does not allow them. Raise BadInput if the filters check
    addresses and a guest has no address.
    """
    unaddressed = [guest.name for guest in spec.guests if not guest.addresses]
    if network.filters == "addresses" and unaddressed:
        raise BadInput(
            f"spec.guests: with filters 'addresses', expected each guest to have an address, got none for "
            f"{', '.join(unaddressed)}"
        )
    if network.filters == "open":
        for host in sorted({guest.host for guest in spec.guests}):
            if not allows_open_filters(topology, host):
                raise NotAdmitted(
                    f"host {host} allows no guests of clusters with open filters: see 'open_filters' of the host or "
                    "its site in the topology, or choose other hosts"
                )


def allows_open_filters(topology: Topology, name: Name) -> bool:
    """Return whether a host allows open filters; True for an unknown host (see ``_find_host_rules``)."""
    host = topology.elements.get(name)
    if not isinstance(host, Host):
        return True
    return topology.site_of[name].open_filters if host.open_filters is None else host.open_filters


PositiveCount = Annotated[int, Field(ge=1, le=1_000_000)]


class RequestLimits(Document):
    """The table ``[limits]`` of the settings.

    A call beyond a limit gets status 413 or 422, and the name of the limit.
    """

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
    user_data: Annotated[int, Field(ge=0, le=1024**3)] = Field(
        2 * 1024**2,
        description="Largest size of the user data of all guests of one cluster, in bytes. The text of a `spread` "
        "counts for each of its guests. SBF's answers to the hooks of a batch system contain the texts, and the hooks "
        "refuse an answer of more than 4 MiB.",
    )
    keys: PositiveCount = Field(64, description="Largest number of SSH keys of one user, or of one cluster's spec.")
    profiles: PositiveCount = Field(64, description="Largest number of VPN profiles of one cluster.")
    publications: PositiveCount = Field(16, description="Largest number of published ports of one cluster.")
    certificate_minutes: int = Field(
        10, ge=1, le=1440, description="Minutes for which an SSH certificate for gateways is valid."
    )


DEFAULT_LIMITS: Final = RequestLimits()


def check_request_limits(limits: RequestLimits, spec: ClusterSpec) -> None:
    """Raise BeyondLimit for the first limit that a cluster's spec exceeds."""
    for key, count, limit in _count_keys(limits, spec):
        if count > limit:
            raise BeyondLimit(
                f"spec.{key}: expected at most {limit}, got {count}; the limit is 'limits.{LIMIT_KEYS[key]}' in the "
                "settings of this SBF"
            )
    if (size := _sum_user_data(spec)) > limits.user_data:
        raise BeyondLimit(
            f"spec: expected at most {limits.user_data} bytes of user_data in all guests together, got {size}: use "
            "shorter texts, or put files into the image; the limit is 'limits.user_data' in the settings of this SBF"
        )


LIMIT_KEYS: Final = {
    "shares_with": "shares",
    "hosts": "hosts",
    "guests": "guests",
    "sites": "sites",
    "addresses": "addresses",
    "authorized_keys": "keys",
}
"""For each limited key of a spec, the key of its limit in the table ``[limits]``."""


def _count_keys(limits: RequestLimits, spec: ClusterSpec) -> Iterator[tuple[str, int, int]]:
    yield "guests", len(spec.guests) + (0 if spec.spread is None else spec.spread.count), limits.guests
    yield "hosts", max(len(spec.hosts), len(spec.all_hosts)), limits.hosts
    yield "sites", len(spec.sites), limits.sites
    yield "shares_with", len(spec.shares_with), limits.shares
    yield "authorized_keys", len(spec.authorized_keys), limits.keys
    yield "addresses", max((len(guest.addresses) for guest in spec.guests), default=0), limits.addresses


def _sum_user_data(spec: ClusterSpec) -> int:
    texts = [(guest.user_data, 1) for guest in spec.guests]
    if spec.spread is not None:
        texts.append((spec.spread.user_data, spec.spread.count))
    return sum(times * len((text or "").encode()) for text, times in texts)


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The resources that clusters use. ``networks`` counts only the clusters that join no other cluster's network."""

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


QUOTA_UNITS: Final = {
    "networks": ("network", "networks"),
    "guests": ("guest", "guests"),
    "cpus": ("CPU", "CPUs"),
    "memory_mb": ("MiB of memory", "MiB of memory"),
}
"""The singular and plural units of quotas in error messages. The other quotas have different messages."""
GUEST_QUOTAS: Final = frozenset({"guests", "cpus", "memory_mb"})
"""The quotas whose usage is the sum over all guests of an owner."""


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """An owner's request for one more cluster.

    ``used`` is the usage of the owner's existing clusters. ``added``, ``sites`` and ``duration_s`` (seconds) describe
    the requested cluster. ``unreadable`` contains the keys of existing clusters whose stored specs SBF cannot read:
    their guests are not in ``used``.
    """

    owner: str
    used: ResourceUsage
    added: ResourceUsage
    sites: int
    duration_s: float
    unreadable: Sequence[str] = ()


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


def merge_limits(user_limits: QuotaLimits | None, default: QuotaLimits) -> QuotaLimits:
    """Return ``user_limits``, and the default limit for each quota that ``user_limits`` omits."""
    if user_limits is None:
        return default
    changed = {name: value for name, value in user_limits.model_dump().items() if value is not None}
    return default.model_copy(update=changed)


def find_quota_violation(limits: QuotaLimits, request: QuotaRequest) -> str | None:
    """Return the reason why a quota forbids the requested cluster, or None."""
    owner, clusters = request.owner, request.used.clusters
    if limits.clusters is not None and clusters >= limits.clusters:
        return f"{owner} already has {count_of(clusters, 'cluster')} (limit {limits.clusters})"
    if limits.sites is not None and request.sites > limits.sites:
        return f"{owner} asks for {count_of(request.sites, 'site')} in one cluster (limit {limits.sites})"
    for name, unit in QUOTA_UNITS.items():
        used, added, limit = getattr(request.used, name), getattr(request.added, name), getattr(limits, name)
        if limit is not None and added and used + added > limit:
            return (
                f"{owner} already has {count_of(used, *unit)}, and with {added} more would have {used + added} "
                f"(limit {limit})"
            )
        if limit is not None and added and request.unreadable and name in GUEST_QUOTAS:
            return (
                f"{owner} has a limit of {count_of(limit, *unit)}, but this version of SBF cannot count the guests of "
                f"{', '.join(request.unreadable[:5])}, because it cannot read the stored specs of these clusters: end "
                "these clusters first, or install the version of SBF that stored the specs, or a later version"
            )
    return find_lease_violation(limits, owner, request.duration_s)


def find_lease_violation(limits: QuotaLimits, owner: str, duration_s: float) -> str | None:
    """Return the reason why a quota forbids a cluster that lasts ``duration_s`` seconds in total, or None."""
    if limits.lease_s is None or duration_s <= limits.lease_s:
        return None
    duration, limit = (format_duration(seconds, max_parts=4) for seconds in (duration_s, limits.lease_s))
    return f"{owner}'s cluster would last {duration} from its start (limit {limit})"
