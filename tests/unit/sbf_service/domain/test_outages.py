from datetime import UTC, datetime, timedelta

import pytest

from sbf_service.domain.outages import LEASE_GRACE, RECORD_INTERVAL, Outage, find_outage

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DOWN = Outage(NOW - timedelta(hours=2), NOW, is_repeated=False)


def after(seconds: float, start: datetime = NOW) -> datetime:
    return start + timedelta(seconds=seconds)


@pytest.mark.parametrize("last", [None, after(-30), NOW, after(3600)])
def test_a_short_or_negative_gap_is_no_outage(last: datetime | None) -> None:
    assert find_outage(last, None, NOW, 30) is None


def test_a_long_gap_is_an_outage() -> None:
    assert find_outage(after(-31), None, NOW, 30) == Outage(after(-31), NOW, is_repeated=False)


@pytest.mark.parametrize(("seconds", "is_repeated"), [(299, True), (300, False)])
def test_an_outage_soon_after_another_outage_is_a_repetition(seconds: float, is_repeated: bool) -> None:
    assert find_outage(after(-60), after(-60 - seconds), NOW, 30) == Outage(after(-60), NOW, is_repeated)


def test_an_outage_that_ends_in_the_future_does_not_count() -> None:
    """The database's clock was set forward, which counts as an outage, and back again."""
    assert find_outage(after(-60), after(3600), NOW, 30) == Outage(after(-60), NOW, is_repeated=False)


@pytest.mark.parametrize("ends", [-7000, -1, 0, 1, 299])
def test_a_lease_lasts_for_the_grace_period_after_an_outage(ends: float) -> None:
    assert DOWN.postpone_lease(after(ends)) == after(300)


@pytest.mark.parametrize("ends", [300, 7200])
def test_a_lease_that_ends_later_does_not_change(ends: float) -> None:
    assert DOWN.postpone_lease(after(ends)) == after(ends)


def test_a_repeated_outage_preserves_the_remaining_time() -> None:
    again = Outage(after(-3600), NOW, is_repeated=True)
    assert again.postpone_lease(after(-3600 + 10 + 240)) == after(240)


def test_restarts_in_a_loop_do_not_postpone_a_lease_forever() -> None:
    ends, now, last_sweep, runs = after(-60), NOW, after(-90), 0
    previous_end: datetime | None = None
    while True:
        outage = find_outage(last_sweep, previous_end, now, 30)
        assert outage is not None
        ends = outage.postpone_lease(ends)
        if ends < after(60, now):
            break
        runs, last_sweep, previous_end, now = runs + 1, after(60, now), now, after(120, now)
    assert runs == LEASE_GRACE // (timedelta(seconds=60) + RECORD_INTERVAL)


def test_an_outage_does_not_change_the_remaining_setup_time() -> None:
    assert DOWN.postpone_deadline(after(110, DOWN.began)) == after(110)
