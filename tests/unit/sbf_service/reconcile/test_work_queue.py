"""Tests of the queue of due devices."""

from datetime import UTC, datetime, timedelta

from sbf_service.domain.due_elements import DeviceStatus
from sbf_service.reconcile.scheduler import WorkQueue
from sbf_service.settings import ServiceSettings
from virtcloud.model.values import Name

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def make_queue() -> WorkQueue:
    return WorkQueue(ServiceSettings(), clock=lambda: 0.0, jitter=lambda: 0.0)


def read_at(moment: datetime) -> DeviceStatus:
    return DeviceStatus(Name("sw1"), wanted=1, confirmed=1, checked_at=moment)


def test_a_device_read_before_the_first_round_is_due() -> None:
    device = read_at(STARTED - timedelta(seconds=1))
    assert make_queue().choose_next([device], STARTED, ()) == [device]


def test_a_backward_step_of_the_clock_repeats_no_reading() -> None:
    queue, stepped = make_queue(), STARTED - timedelta(hours=1)
    queue.choose_next([], STARTED, ())
    queue.choose_next([], stepped, ())
    device = read_at(stepped + timedelta(seconds=1))
    assert queue.choose_next([device], stepped + timedelta(seconds=2), ()) == []
