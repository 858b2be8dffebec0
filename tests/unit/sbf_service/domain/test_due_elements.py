"""The choice of switches to reconcile, and the delay before the next attempt for a switch that failed."""

from datetime import UTC, datetime, timedelta

from sbf_service.domain.due_elements import DeviceStatus, RetryState, choose_due_devices, compute_retry
from virtcloud.model.values import Name

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DRIFT = timedelta(seconds=300)


def switch(
    name: str, wanted: int = 2, confirmed: int = 1, checked: float | None = 0, *, leased: bool = False
) -> DeviceStatus:
    """Return a switch that was read ``checked`` seconds ago (None: never)."""
    at = None if checked is None else NOW - timedelta(seconds=checked)
    return DeviceStatus(Name(name), wanted, confirmed, at, leased)


def chosen(
    *found: DeviceStatus, busy: tuple[str, ...] = (), retries: dict[str, RetryState] | None = None, room: int = 9
) -> list[str]:
    given = {Name(name): retry for name, retry in (retries or {}).items()}
    names = {Name(name) for name in busy}
    return list(
        choose_due_devices(found, now=NOW, clock=100.0, drift_interval=DRIFT, busy=names, retries=given, room=room)
    )


def test_a_switch_that_is_behind_is_chosen() -> None:
    assert chosen(switch("a"), switch("b", confirmed=2)) == ["a"]


def test_a_switch_that_was_not_read_for_long_is_chosen() -> None:
    assert chosen(switch("a", confirmed=2, checked=299), switch("b", confirmed=2, checked=300)) == ["b"]


def test_a_switch_that_was_never_read_is_chosen() -> None:
    assert chosen(switch("a", confirmed=2, checked=None)) == ["a"]


def test_a_busy_switch_is_not_chosen_again() -> None:
    assert chosen(switch("a"), switch("b"), busy=("a",)) == ["b"]


def test_a_switch_that_another_replica_converges_is_left_to_it() -> None:
    assert chosen(switch("a", leased=True), switch("b")) == ["b"]


def test_a_switch_that_failed_backs_off() -> None:
    assert chosen(switch("a"), retries={"a": RetryState(2, 1, 100.1)}) == []
    assert chosen(switch("a"), retries={"a": RetryState(2, 1, 100.0)}) == ["a"]


def test_a_new_revision_ends_the_wait_at_once() -> None:
    assert chosen(switch("a", wanted=3), retries={"a": RetryState(2, 5, 999.0)}) == ["a"]


def test_those_behind_come_before_those_only_looked_at() -> None:
    assert chosen(switch("a", confirmed=2, checked=300), switch("b"), room=1) == ["b"]


def test_no_more_are_chosen_than_there_is_room_for() -> None:
    assert chosen(switch("a"), switch("b"), switch("c"), room=2) == ["a", "b"]
    assert chosen(switch("a"), room=0) == []


def test_the_wait_doubles_up_to_the_most() -> None:
    found, waits = None, []
    for _ in range(6):
        found = compute_retry(found, 2, 0.0, (0.5, 6.0), jitter=0.0)
        waits.append(found.not_before)
    assert waits == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]


def test_jitter_takes_off_half_at_most() -> None:
    assert compute_retry(None, 2, 10.0, (4.0, 30.0), jitter=1.0).not_before == 12.0


def test_a_thousand_failures_are_no_overflow() -> None:
    assert compute_retry(RetryState(2, 100_000, 0.0), 2, 0.0, (0.5, 30.0), 0.0).not_before == 30.0
