"""Tests of the slots of fetches. Each fetch runs in a thread, as in the agent."""

import threading
from collections.abc import Callable, Iterator

import pytest

from virtcloud.agent.guests import fetch_slots
from virtcloud.agent.guests.fetch_slots import FetchSlots

TIMEOUT_S = 10
NOT_YET_S = 0.05
Request = Callable[[str], threading.Event]


@pytest.fixture
def slots() -> FetchSlots:
    return FetchSlots(2)


@pytest.fixture
def request_slot(slots: FetchSlots) -> Iterator[Request]:
    """A function that requests a slot in a thread, and returns the event of its success."""

    def request(server: str) -> threading.Event:
        occupied = threading.Event()

        def run() -> None:
            slots.acquire(server)
            occupied.set()

        threading.Thread(target=run, daemon=True).start()
        return occupied

    yield request
    slots.limit = 100  # ends the threads that still wait
    slots.record_attempt("dead", failed=False)


def test_no_more_fetches_run_than_the_limit(slots: FetchSlots, request_slot: Request) -> None:
    slots.acquire("a")
    slots.acquire("a")
    third = request_slot("a")
    assert not third.wait(NOT_YET_S)
    slots.release("a")
    assert third.wait(TIMEOUT_S)


def test_a_failed_server_leaves_a_slot_to_others(slots: FetchSlots, request_slot: Request) -> None:
    slots.record_attempt("dead", failed=True)
    slots.acquire("dead")
    second = request_slot("dead")
    assert not second.wait(NOT_YET_S)
    assert request_slot("good").wait(TIMEOUT_S)
    assert not second.is_set()


def test_a_server_that_answers_again_gets_all_slots(slots: FetchSlots, request_slot: Request) -> None:
    slots.record_attempt("dead", failed=True)
    slots.acquire("dead")
    second = request_slot("dead")
    assert not second.wait(NOT_YET_S)
    slots.record_attempt("dead", failed=False)
    assert second.wait(TIMEOUT_S)


def test_other_servers_come_before_a_failed_server(slots: FetchSlots, request_slot: Request) -> None:
    slots.limit = 1
    slots.record_attempt("dead", failed=True)
    slots.acquire("a")
    failed = request_slot("dead")
    assert not failed.wait(NOT_YET_S)
    good = request_slot("good")
    assert not good.wait(NOT_YET_S)
    slots.release("a")
    assert good.wait(TIMEOUT_S)
    assert not failed.is_set()
    slots.release("good")
    assert failed.wait(TIMEOUT_S)


def test_the_number_of_remembered_failures_is_limited(
    slots: FetchSlots, request_slot: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_slots, "MAX_FAILED", 1)
    slots.record_attempt("dead", failed=True)
    slots.record_attempt("other", failed=True)
    slots.acquire("dead")
    assert request_slot("dead").wait(TIMEOUT_S)
