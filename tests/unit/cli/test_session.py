"""Tests of the sessions that the command line copies to the standard streams."""

import os
import threading
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from virtcloud.cli.session import attach_terminal, copy_standard_streams
from virtcloud.client.session_stream import SessionStream

TIMEOUT_S = 5
Feed = Callable[[bytes], None]


class QuietGuest:
    """A session with a guest that writes nothing. The session ends only when the user closes it."""

    def __init__(self) -> None:
        self.received = b""
        self.closed = threading.Event()
        self.input_ended = threading.Event()

    def send(self, data: bytes) -> None:
        self.received += data

    def send_end(self) -> None:
        self.input_ended.set()

    def receive(self) -> bytes:
        self.closed.wait(2 * TIMEOUT_S)
        return b""

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def feed() -> Iterator[Feed]:
    """A function that replaces standard input by bytes, which an end of input follows."""
    former = os.dup(0)

    def replace(data: bytes) -> None:
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        os.dup2(reader, 0)
        os.close(reader)

    yield replace
    os.dup2(former, 0)
    os.close(former)


@pytest.mark.parametrize("data", [b"", b"root\n", b"root\n\x1dlater"])
def test_the_end_of_input_or_the_escape_ends_a_console(feed: Feed, data: bytes) -> None:
    guest = QuietGuest()
    feed(data)
    attach_terminal(cast("SessionStream", guest))
    assert (guest.closed.is_set(), guest.received) == (True, data.partition(b"\x1d")[0])


def test_the_end_of_input_does_not_end_a_connection(feed: Feed) -> None:
    """The guest can answer after the end of input."""
    guest = QuietGuest()
    feed(b"question")
    user = threading.Thread(target=copy_standard_streams, args=(guest,))
    user.start()
    assert guest.input_ended.wait(TIMEOUT_S)
    assert not guest.closed.is_set()
    guest.close()
    user.join()
