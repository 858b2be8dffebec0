"""How much one user may have."""

import pytest

from sbf_service.access.quota import Wanted, refused_length, refused_new, within
from virtcloud.model.access import QuotaLimits

LIMITS = QuotaLimits(clusters=2, sites=2, lease_s=7200)


@pytest.mark.parametrize(
    ("clusters", "sites", "lasts", "words"),
    [
        (1, 2, 7200, None),
        (2, 1, 60, "alice already has 2 clusters (limit 2)"),
        (3, 1, 60, "alice already has 3 clusters (limit 2)"),
        (0, 3, 60, "alice asks for 3 sites in one cluster (limit 2)"),
        (0, 1, 7201, "alice's cluster would last 2:00:01 from its start (limit 2:00:00)"),
    ],
)
def test_what_is_too_much_is_said_with_its_limit(clusters: int, sites: int, lasts: float, words: str | None) -> None:
    assert refused_new(LIMITS, Wanted("alice", clusters, sites, lasts)) == words


def test_one_is_said_as_one() -> None:
    assert refused_new(QuotaLimits(clusters=1), Wanted("alice", 1, 1, 1)) == "alice already has 1 cluster (limit 1)"


def test_what_is_not_limited_is_not_refused() -> None:
    assert refused_new(QuotaLimits(), Wanted("alice", 10**6, 10**6, 1e9)) is None
    assert refused_length(QuotaLimits(), "alice", 1e9) is None


def test_a_users_own_limits_go_before_the_services_one_by_one() -> None:
    assert within(QuotaLimits(clusters=5), LIMITS) == QuotaLimits(clusters=5, sites=2, lease_s=7200)
    assert within(None, LIMITS) == LIMITS


def test_a_limit_of_none_at_all_is_a_limit() -> None:
    assert within(QuotaLimits(clusters=0), LIMITS).clusters == 0
    assert refused_new(QuotaLimits(clusters=0), Wanted("alice", 0, 1, 1)) == "alice already has 0 clusters (limit 0)"
