import pytest

from sbf_service.domain.admission import (
    QuotaRequest,
    ResourceUsage,
    find_lease_violation,
    find_quota_violation,
    merge_limits,
    sum_usage,
)
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ClusterSpec

LIMITS = QuotaLimits(clusters=2, sites=2, lease_s=7200)


@pytest.mark.parametrize(
    ("clusters", "sites", "lasts", "words"),
    [
        (1, 2, 7200, None),
        (2, 1, 60, "alice already has 2 clusters (limit 2)"),
        (3, 1, 60, "alice already has 3 clusters (limit 2)"),
        (0, 3, 60, "alice asks for 3 sites in one cluster (limit 2)"),
        (0, 1, 7201, "alice's cluster would last 2h1s from its start (limit 2h)"),
    ],
)
def test_the_error_contains_the_exceeded_limit(clusters: int, sites: int, lasts: float, words: str | None) -> None:
    assert (
        find_quota_violation(
            LIMITS, QuotaRequest("alice", ResourceUsage(clusters=clusters), ResourceUsage(clusters=1), sites, lasts)
        )
        == words
    )


def test_a_count_of_one_is_singular() -> None:
    assert (
        find_quota_violation(
            QuotaLimits(clusters=1), QuotaRequest("alice", ResourceUsage(clusters=1), ResourceUsage(1), 1, 1)
        )
        == "alice already has 1 cluster (limit 1)"
    )


def test_without_limits_every_request_is_allowed() -> None:
    assert (
        find_quota_violation(
            QuotaLimits(), QuotaRequest("alice", ResourceUsage(*[10**6] * 5), ResourceUsage(*[10**6] * 5), 10**6, 1e9)
        )
        is None
    )
    assert find_lease_violation(QuotaLimits(), "alice", 1e9) is None


def test_each_limit_of_a_user_overrides_the_default() -> None:
    assert merge_limits(QuotaLimits(clusters=5), LIMITS) == QuotaLimits(clusters=5, sites=2, lease_s=7200)
    assert merge_limits(None, LIMITS) == LIMITS


def test_a_limit_of_zero_applies() -> None:
    assert merge_limits(QuotaLimits(clusters=0), LIMITS).clusters == 0
    assert (
        find_quota_violation(QuotaLimits(clusters=0), QuotaRequest("alice", ResourceUsage(), ResourceUsage(1), 1, 1))
        == "alice already has 0 clusters (limit 0)"
    )


HAS = ResourceUsage(clusters=1, networks=1, guests=2, cpus=4, memory_mb=1024)


@pytest.mark.parametrize(
    ("limits", "asks", "words"),
    [
        ({"guests": 3}, ResourceUsage(guests=1), None),
        ({"guests": 3}, ResourceUsage(guests=2), "alice already has 2 guests, and with 2 more would have 4 (limit 3)"),
        ({"cpus": 4}, ResourceUsage(cpus=1), "alice already has 4 CPUs, and with 1 more would have 5 (limit 4)"),
        (
            {"memory_mb": 1024},
            ResourceUsage(memory_mb=256),
            "alice already has 1024 MiB of memory, and with 256 more would have 1280 (limit 1024)",
        ),
        (
            {"networks": 1},
            ResourceUsage(networks=1),
            "alice already has 1 network, and with 1 more would have 2 (limit 1)",
        ),
        ({"networks": 1, "guests": 0}, ResourceUsage(clusters=1), None),
    ],
)
def test_guests_cpus_and_memory_are_limited(limits: dict[str, int], asks: ResourceUsage, words: str | None) -> None:
    """In the last case, the usage exceeds a reduced limit, but the requested cluster does not increase this usage."""
    assert find_quota_violation(QuotaLimits.model_validate(limits), QuotaRequest("alice", HAS, asks, 1, 1)) == words


def test_usage_is_the_sum_over_clusters() -> None:
    guest = {"host": "h1", "image": "debian", "memory_mb": 512, "cpus": 2}
    own = {"owner": "alice", "guests": [guest | {"name": "g1"}, guest | {"name": "g2"}]}
    member = {"owner": "alice", "joins": "a", "guests": [guest | {"name": "g3"}]}
    specs = [ClusterSpec.model_validate(own), ClusterSpec.model_validate(member)]
    assert sum_usage(specs) == ResourceUsage(clusters=2, networks=1, guests=3, cpus=6, memory_mb=1536)
