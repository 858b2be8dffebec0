from datetime import UTC, datetime, timedelta

from sbf_service.domain.due_elements import DeviceStatus, RetryState, choose_due_devices, compute_retry
from virtcloud.model.values import Name

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DRIFT = timedelta(seconds=300)


def switch(
    name: str, wanted: int = 2, confirmed: int = 1, checked: float | None = 0, *, leased: bool = False
) -> DeviceStatus:
    at = None if checked is None else NOW - timedelta(seconds=checked)
    return DeviceStatus(Name(name), wanted, confirmed, at, leased)


def choose(*found: DeviceStatus, busy: tuple[str, ...] = (), retries: dict[str, RetryState] | None = None) -> list[str]:
    given = {Name(name): retry for name, retry in (retries or {}).items()}
    names = {Name(name) for name in busy}
    return list(choose_due_devices(found, now=NOW, clock=100.0, drift_interval=DRIFT, busy=names, retries=given))


def test_a_switch_with_an_unconfirmed_revision_is_due() -> None:
    assert choose(switch("a"), switch("b", confirmed=2)) == ["a"]


def test_a_switch_with_an_old_reading_is_due() -> None:
    assert choose(switch("a", confirmed=2, checked=299), switch("b", confirmed=2, checked=300)) == ["b"]


def test_a_switch_read_far_in_the_future_is_due() -> None:
    """The database's clock stepped backwards after the reading."""
    assert choose(switch("a", confirmed=2, checked=-300), switch("b", confirmed=2, checked=-301)) == ["b"]


def test_a_switch_without_a_reading_is_due() -> None:
    assert choose(switch("a", confirmed=2, checked=None)) == ["a"]


def test_a_busy_switch_is_not_chosen() -> None:
    assert choose(switch("a"), switch("b"), busy=("a",)) == ["b"]


def test_a_switch_leased_by_another_replica_is_not_chosen() -> None:
    assert choose(switch("a", leased=True), switch("b")) == ["b"]


def test_a_switch_that_failed_backs_off() -> None:
    assert choose(switch("a"), retries={"a": RetryState(2, 1, 100.1)}) == []
    assert choose(switch("a"), retries={"a": RetryState(2, 1, 100.0)}) == ["a"]


def test_a_new_revision_ends_the_pause_immediately() -> None:
    assert choose(switch("a", wanted=3), retries={"a": RetryState(2, 5, 999.0)}) == ["a"]


def test_unconfirmed_switches_come_before_confirmed_ones() -> None:
    assert choose(switch("a", confirmed=2, checked=300), switch("b")) == ["b", "a"]


def test_the_pause_doubles_up_to_its_limit() -> None:
    found, waits = None, []
    for _ in range(6):
        found = compute_retry(found, 2, 0.0, (0.5, 6.0), jitter=0.0)
        waits.append(found.not_before)
    assert waits == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]


def test_jitter_shortens_the_pause_by_half_at_most() -> None:
    assert compute_retry(None, 2, 10.0, (4.0, 30.0), jitter=1.0).not_before == 12.0


def test_the_pause_does_not_overflow() -> None:
    assert compute_retry(RetryState(2, 100_000, 0.0), 2, 0.0, (0.5, 30.0), 0.0).not_before == 30.0
