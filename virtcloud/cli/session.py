"""Copies bytes between a session with a guest and the standard streams or the terminal."""

import codecs
import os
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import click

from virtcloud.client.session_stream import SessionStream
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.message_text import printable

CHUNK = 1 << 16
ESCAPE = b"\x1d"
"""Ctrl-] ends a console's session, as in telnet and virsh."""


def copy_standard_streams(stream: SessionStream) -> None:
    """Copy standard input to the session, and the session to standard output, until the guest closes the session."""
    threading.Thread(target=_copy_input, args=(stream, None), daemon=True).start()
    while data := stream.receive():
        _write(data)


def attach_terminal(stream: SessionStream) -> None:
    """Connect the terminal with a console until the guest or the input ends, or until the user presses Ctrl-]."""
    with _raw_terminal():
        threading.Thread(target=_copy_input, args=(stream, ESCAPE), daemon=True).start()
        while data := stream.receive():
            _write(data)


def print_log(pieces: Iterator[bytes]) -> None:
    """Print the log of a console. On a terminal, replace control characters, because a guest may write any bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    is_terminal = sys.stdout.isatty()
    for piece in pieces:
        _write(printable(decoder.decode(piece).replace("\r", "")).encode() if is_terminal else piece)
    if is_terminal:
        _write(decoder.decode(b"", final=True).encode())  # an incomplete last character becomes U+FFFD


def _copy_input(stream: SessionStream, escape: bytes | None) -> None:
    try:
        while data := os.read(0, CHUNK):
            if escape is not None and escape in data:
                stream.send(data.partition(escape)[0])
                stream.close()
                return
            stream.send(data)
        stream.send_end() if escape is None else stream.close()
    except (VirtcloudError, OSError):
        return  # the session has ended, and the main thread reports the reason


def _write(data: bytes) -> None:
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # otherwise Python writes to the closed pipe again at its exit
        click.get_current_context().exit(1)


@contextmanager
def _raw_terminal() -> Iterator[None]:
    if not os.isatty(0):
        yield
        return
    former = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, former)
