"""Tests of calls with a deadline. A call that never returns does not block its caller."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from virtcloud.agent.guests.call_deadlines import DeadlineCalls
from virtcloud.model.errors import Refused, Unreachable


@pytest.fixture
def calls() -> DeadlineCalls:
    return DeadlineCalls("libvirt (x)", "restart it", clock=lambda: 5.0)


def test_the_return_value_of_a_call_is_returned(calls: DeadlineCalls) -> None:
    assert calls.run("count", lambda: 3, 10) == 3


def test_the_error_of_a_call_is_raised(calls: DeadlineCalls) -> None:
    def refuse() -> None:
        raise Refused("no")

    with pytest.raises(Refused, match=r"^no$"):
        calls.run("start", refuse, 10)


def test_a_hanging_call_is_abandoned_at_its_deadline(calls: DeadlineCalls) -> None:
    release = threading.Event()
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"^libvirt \(x\) did not list domains within 0.1 s; restart it$"):
        calls.run("list domains", release.wait, 0.1)
    release.set()
    assert time.monotonic() - began < 5


def test_no_call_begins_while_another_is_abandoned(calls: DeadlineCalls) -> None:
    """The abandoned call may still take effect later. Each further call could also hang and occupy a thread."""
    release, second_calls = threading.Event(), []
    with pytest.raises(Unreachable):
        calls.run("start g1", release.wait, 0.1)
    with pytest.raises(Unreachable, match=r"cannot list: the call 'start g1' of \d+ s ago has not returned"):
        calls.run("list", lambda: second_calls.append(1), 10)
    release.set()
    assert second_calls == []


def test_calls_continue_when_the_abandoned_call_has_returned(calls: DeadlineCalls) -> None:
    release = threading.Event()
    with pytest.raises(Unreachable):
        calls.run("start g1", release.wait, 0.1)
    release.set()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            assert calls.run("count", lambda: 3, 10) == 3
        except Unreachable:
            continue
        return
    pytest.fail("the call is still abandoned")


def test_a_failed_start_of_a_thread_is_an_error(calls: DeadlineCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(Unreachable, match="cannot count: the agent cannot start a thread: can't start new thread"):
        calls.run("count", lambda: 3, 10)


def test_calls_of_several_threads_run_at_the_same_time(calls: DeadlineCalls) -> None:
    both_run = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(lambda _: calls.run("count", lambda: both_run.wait(10), 10), range(2)))) == 2


def test_no_call_begins_until_every_abandoned_call_has_returned(calls: DeadlineCalls) -> None:
    both_run, last, first = threading.Barrier(2), threading.Event(), threading.Event()

    def hang(event: threading.Event) -> None:
        both_run.wait(10)
        event.wait(10)

    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(calls.run, "count", lambda: hang(last), 0.5)]
        waits.append(pool.submit(calls.run, "count", lambda: hang(first), 0.05))
    assert [type(wait.exception()) for wait in waits] == [Unreachable, Unreachable]
    last.set()
    time.sleep(0.05)  # one of the two abandoned calls returns
    with pytest.raises(Unreachable, match="has not returned"):
        calls.run("count", lambda: 3, 10)
    first.set()
