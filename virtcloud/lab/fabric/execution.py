"""Runs one program on a node for someone at the other end of a connection."""

import contextlib
import json
import os
import pty
import signal
import socket
import threading
from collections.abc import Mapping
from typing import Any

from virtcloud.lab.fabric.container import set_window
from virtcloud.lab.fabric.frames import receive_frame, send_frame
from virtcloud.lab.fabric.nodes import NodeHandle, NotStarted, Running
from virtcloud.lab.fabric.services import ENVIRONMENT

CHUNK = 65536
END_S = 5.0


def execute(connection: socket.socket, handle: NodeHandle, request: Mapping[str, Any]) -> None:
    """Run ``request["argv"]``; the streams go over the connection, and the exit code last."""
    session = _terminal(request) if request.get("tty") else _pipes()
    environment = {**ENVIRONMENT, **request.get("environment", {})}
    try:
        running = handle.spawn(request["argv"], session.child_ends, environment, tty=bool(request.get("tty")))
    except NotStarted as fault:
        session.close()
        send_frame(connection, b"r", f"{fault}\n".encode())
        send_frame(connection, b"x", json.dumps(fault.exit).encode())
        _await_end(connection)
        return
    finally:
        session.close_child_ends()
    lock = threading.Lock()
    pumps = [
        threading.Thread(target=_pump, args=(connection, lock, letter, end), daemon=True)
        for letter, end in session.outputs.items()
    ]
    threading.Thread(target=_feed, args=(connection, session, handle, running), daemon=True).start()
    for pump in pumps:
        pump.start()
    running.ended.wait()
    for pump in pumps:
        pump.join(timeout=1)  # a daemon it left behind may hold the pipe open
    with lock, contextlib.suppress(OSError):
        send_frame(connection, b"x", json.dumps(running.exit).encode())


def _await_end(connection: socket.socket) -> None:
    """Read what the other side still sends: closing before would reset the connection, and our last words be lost."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(END_S)
        while connection.recv(CHUNK):
            continue


class Session:
    """The ends of a program's standard streams, the program's and ours."""

    def __init__(self, child_ends: tuple[int, int, int], stdin: int, outputs: dict[bytes, int]) -> None:
        """Hold descriptors; ``outputs`` maps the frame's letter to the end we read."""
        self.child_ends = child_ends
        self.stdin = stdin
        self.outputs = outputs

    def close_child_ends(self) -> None:
        """Close what the program has got by now."""
        for end in set(self.child_ends):
            os.close(end)

    def close(self) -> None:
        """Close our ends."""
        for end in {self.stdin, *self.outputs.values()}:
            os.close(end)

    def close_stdin(self) -> None:
        """Say that no more input comes; a terminal gets its end-of-file character."""
        if self.stdin in self.outputs.values():
            os.write(self.stdin, b"\x04")
        elif self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1


def _pipes() -> Session:
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
    return Session((stdin, stdout, stderr), to_stdin, {b"o": from_stdout, b"r": from_stderr})


def _terminal(request: Mapping[str, Any]) -> Session:
    ours, theirs = pty.openpty()
    rows, columns = request.get("window", (24, 80))
    set_window(ours, rows, columns)
    return Session((theirs, theirs, theirs), ours, {b"o": ours})


def _pump(connection: socket.socket, lock: threading.Lock, letter: bytes, end: int) -> None:
    with contextlib.suppress(OSError):  # a terminal whose program ended reads as an error
        while data := os.read(end, CHUNK):
            with lock:
                send_frame(connection, letter, data)
    os.close(end)


def _feed(connection: socket.socket, session: Session, handle: NodeHandle, running: Running) -> None:
    """Pass input on until the other side is gone; then the program is, too."""
    try:
        while True:
            letter, payload = receive_frame(connection)
            with contextlib.suppress(OSError):  # the program closed its input; that is its affair
                _input(session, letter, payload)
    except OSError:
        if running.exit is None:
            handle.signal(running.pid, signal.SIGHUP, group=True)
            if not running.ended.wait(1):
                handle.signal(running.pid, signal.SIGKILL, group=True)


def _input(session: Session, letter: bytes, payload: bytes) -> None:
    if letter == b"w":
        rows, columns = json.loads(payload)
        set_window(session.stdin, rows, columns)
    elif letter == b"e":
        session.close_stdin()
    else:
        while payload:
            payload = payload[os.write(session.stdin, payload) :]
