from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from sbf_service.domain.due_elements import DeviceStatus, DueDevices
from sbf_service.reconcile.work_queue import MAX_NAMED, WorkQueue
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.settings import ServiceSettings
from virtcloud.model.values import Name

STARTED = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = DueDevices(timedelta(seconds=300))


def make_queue(workers: int = 2) -> WorkQueue:
    return WorkQueue(ServiceSettings(workers=workers), clock=lambda: 0.0, jitter=lambda: 0.0)


def read_at(moment: datetime) -> DeviceStatus:
    return DeviceStatus(Name("sw1"), wanted=1, confirmed=1, checked_at=moment)


def behind(*names: str) -> list[DeviceStatus]:
    """Return the statuses of devices that have not confirmed the wanted revision."""
    return [DeviceStatus(Name(name), wanted=2, confirmed=1, checked_at=STARTED) for name in names]


def start(
    queue: WorkQueue,
    statuses: Collection[DeviceStatus],
    selected: DueDevices | None = EVERY,
    lost: Collection[Name] = (),
) -> list[str]:
    assert selected is not None
    return [status.name for status in queue.choose_next(selected, statuses, STARTED, lost)]


def select(queue: WorkQueue) -> DueDevices | None:
    return queue.select((), reads_all=False)


def selected_names(queue: WorkQueue) -> set[str]:
    selected = select(queue)
    assert selected is not None
    assert selected.only_names
    return set(selected.names)


def test_a_device_read_before_the_first_round_is_due() -> None:
    device = read_at(STARTED - timedelta(seconds=1))
    assert make_queue().choose_next(EVERY, [device], STARTED, ()) == [device]


def test_a_backward_step_of_the_clock_repeats_no_reading() -> None:
    queue, stepped = make_queue(), STARTED - timedelta(hours=1)
    queue.choose_next(EVERY, [], STARTED, ())
    queue.choose_next(EVERY, [], stepped, ())
    device = read_at(stepped + timedelta(seconds=1))
    assert queue.choose_next(EVERY, [device], stepped + timedelta(seconds=2), ()) == []


def test_the_number_of_busy_devices_is_limited() -> None:
    queue = make_queue(workers=2)
    assert start(queue, behind("a", "b", "c")) == ["a", "b"]
    assert start(queue, behind("a", "b", "c")) == []


def test_a_change_reads_only_the_changed_devices() -> None:
    queue = make_queue()
    queue.changed = {Name("a")}
    assert selected_names(queue) == {"a"}
    assert select(queue) is None


def test_a_complete_reading_selects_every_due_device() -> None:
    queue = make_queue()
    queue.changed = {Name("a")}
    assert queue.select((), reads_all=True) == EVERY
    assert select(queue) is None


def test_very_many_changed_devices_cause_a_complete_reading() -> None:
    queue = make_queue()
    queue.changed = {Name(f"sw{number}") for number in range(MAX_NAMED + 1)}
    assert select(queue) == EVERY


def test_without_a_free_worker_nothing_is_read() -> None:
    queue = make_queue(workers=1)
    start(queue, behind("a", "b"))
    queue.changed = {Name("c")}
    assert select(queue) is None
    queue.release(Name("a"))
    assert selected_names(queue) == {"a", "b", "c"}


def test_four_waiting_devices_are_read_for_each_free_worker() -> None:
    """Another replica may have reconciled some of them."""
    queue = make_queue(workers=1)
    start(queue, behind("a", "b", "c", "d", "e", "f"))
    queue.release(Name("a"))
    assert selected_names(queue) == {"a", "b", "c", "d", "e"}


def test_waiting_devices_start_in_the_order_of_their_urgency() -> None:
    queue = make_queue(workers=1)
    overdue = DeviceStatus(Name("b"), wanted=1, confirmed=1, checked_at=None)
    assert start(queue, [*behind("a", "d"), overdue]) == ["a"]
    queue.changed = {Name("c")}
    queue.release(Name("a"))
    assert start(queue, [*behind("c", "d"), overdue], select(queue)) == ["c"]
    assert list(queue.waiting) == ["d", "b"]


def test_a_waiting_device_that_is_no_longer_due_waits_no_more() -> None:
    queue = make_queue(workers=1)
    start(queue, behind("a", "b", "c"))
    queue.release(Name("a"))
    confirmed = DeviceStatus(Name("b"), wanted=2, confirmed=2, checked_at=STARTED)
    assert start(queue, [confirmed, *behind("c")], select(queue)) == ["c"]
    assert not queue.waiting


def test_a_device_is_read_again_after_its_pause() -> None:
    now = 0.0
    queue = WorkQueue(ServiceSettings(), clock=lambda: now, jitter=lambda: 0.0)
    (device,) = behind("a")
    start(queue, [device])
    queue.record_outcome(device, ReconcileOutcome.FAILED)
    queue.release(device.name)
    assert start(queue, [device], select(queue)) == []
    assert select(queue) is None
    now = queue.retries[device.name].not_before
    assert start(queue, [device], select(queue)) == ["a"]


def test_a_device_that_lost_its_session_is_read() -> None:
    selected = make_queue().select((Name("a"),), reads_all=False)
    assert selected is not None
    assert selected.names == {"a"}
    assert start(make_queue(), [read_at(STARTED)], selected, lost=(Name("sw1"),)) == ["sw1"]


def test_only_lost_devices_that_can_start_are_read() -> None:
    lost = [Name(f"sw{number}") for number in range(9)]
    selected = make_queue(workers=2).select(lost, reads_all=False)
    assert selected is not None
    assert len(selected.names) == 2
