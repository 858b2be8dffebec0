import os
import signal
import threading
from collections.abc import Iterator

import pytest

from virtcloud.agent.stopping import Stop, Stopped


@pytest.fixture
def handlers() -> Iterator[None]:
    """Put the signal handlers back that were there."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_ends_a_wait_at_once(handlers: None) -> None:
    waiting = threading.Event()

    def sleep(_seconds: float) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        waiting.wait(60)

    stop = Stop(sleep)
    stop.on_signals()
    with pytest.raises(Stopped):
        stop.pause(60)


def test_a_signal_does_not_break_what_is_not_a_wait(handlers: None) -> None:
    stop = Stop()
    stop.on_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
    with pytest.raises(Stopped):
        stop.check()


def test_a_wait_that_begins_after_the_signal_ends_at_once() -> None:
    stop = Stop(lambda _: pytest.fail("it waited"))
    stop.request()
    with pytest.raises(Stopped):
        stop.pause(60)
