"""The streams of a program on a node: pipes or a terminal, whose data the control server exchanges with the client."""

import contextlib
import json
import os
import pty
import select
import signal
import socket
import threading
from collections.abc import Mapping
from typing import Any

from virtcloud.lab.fabric.node_init import set_window
from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle, ProgramNotStarted, RunningProgram
from virtcloud.lab.fabric.protocol import (
    CHUNK,
    CLOSE_TIMEOUT_S,
    read_until_end,
    receive_frame,
    send_frame,
    wait_until_disconnected,
)
from virtcloud.lab.fabric.service_control import ENVIRONMENT

LATE_S = 1.0
"""Time limit in seconds, after a program has ended, for each output stream to end too.

A process that the program started can still write output. The control server sends this output until the time limit.
"""


def execute_program(connection: socket.socket, handle: NodeHandle, request: Mapping[str, Any]) -> None:
    """Run the program ``request["argv"]``. Send its output over the connection, and finally its exit code.

    The program's input comes from the same connection. Return when the client has disconnected, or `CLOSE_TIMEOUT_S`
    seconds after the exit code was sent. Raise NodeFailed if the node cannot start programs.
    """
    streams = _open_terminal(request) if request.get("tty") else _open_pipes()
    environment = {**ENVIRONMENT, **request.get("environment", {})}
    try:
        running = handle.spawn(request["argv"], streams.child_ends, environment, tty=bool(request.get("tty")))
    except ProgramNotStarted as error:
        streams.close()
        send_frame(connection, b"r", f"{error}\n".encode())
        send_frame(connection, b"x", json.dumps(error.exit).encode())
        read_until_end(connection)
        return
    except (NodeFailed, OSError):
        streams.close()
        raise
    finally:
        streams.close_child_ends()
    _copy_streams(connection, streams, handle, running)


def _copy_streams(
    connection: socket.socket, streams: "ProgramStreams", handle: NodeHandle, running: RunningProgram
) -> None:
    lock = threading.Lock()
    pumps = [
        threading.Thread(target=_send_output, args=(connection, lock, letter, streams), daemon=True)
        for letter in streams.outputs
    ]
    receiver = threading.Thread(target=_receive_input, args=(connection, streams), daemon=True)
    watcher = threading.Thread(target=_end_without_client, args=(connection, handle, running), daemon=True)
    for thread in (receiver, watcher, *pumps):
        thread.start()
    running.ended.wait()
    for pump in pumps:
        pump.join(LATE_S)  # a daemon that the program started may still have the pipe open
    with lock, contextlib.suppress(OSError):
        _send_rest(connection, streams)
        send_frame(connection, b"x", json.dumps(running.exit).encode())
        connection.shutdown(socket.SHUT_WR)
    receiver.join(CLOSE_TIMEOUT_S)  # with unread input, close() would reset the connection
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # ends receiver and watcher if the client has not disconnected
    watcher.join()


class ProgramStreams:
    """The file descriptors of a program's standard streams: the program's ends, and this process's ends.

    ``stdin`` and ``outputs`` have different descriptors even for the same terminal, because different threads close
    them.
    """

    def __init__(
        self, child_ends: tuple[int, int, int], stdin: int, outputs: dict[bytes, int], *, terminal: bool = False
    ) -> None:
        """``child_ends`` are the program's ends. This process writes the program's input to ``stdin``.

        ``outputs`` maps the letter of a frame (``protocol.py``) to the descriptor of the program's output. ``terminal``
        is true if the streams are a terminal.
        """
        self.child_ends = child_ends
        self.stdin = stdin
        self.outputs = outputs
        self.terminal = terminal

    def close_child_ends(self) -> None:
        """Close this process's copies of the ends that the program inherited."""
        for end in set(self.child_ends):
            os.close(end)

    def close(self) -> None:
        """Close the ends that belong to this process."""
        for end in (self.stdin, *self.outputs.values()):
            os.close(end)

    def end_input(self) -> None:
        """Close the program's input. If the input is a terminal, write the end-of-file character instead."""
        if self.terminal:
            os.write(self.stdin, b"\x04")
        else:
            self.close_stdin()

    def close_stdin(self) -> None:
        """Close the descriptor of the program's input. Idempotent."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1


def _open_pipes() -> ProgramStreams:
    (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
    return ProgramStreams((stdin, stdout, stderr), to_stdin, {b"o": from_stdout, b"r": from_stderr})


def _open_terminal(request: Mapping[str, Any]) -> ProgramStreams:
    server_end, program_end = pty.openpty()
    rows, columns = request.get("window", (24, 80))
    set_window(server_end, rows, columns)
    return ProgramStreams(
        (program_end, program_end, program_end), os.dup(server_end), {b"o": server_end}, terminal=True
    )


def _send_output(connection: socket.socket, lock: threading.Lock, letter: bytes, streams: ProgramStreams) -> None:
    """Send the output of one stream until its end. The lock also covers the reading: `_send_rest` reads too."""
    end = streams.outputs[letter]
    output = select.poll()
    output.register(end, select.POLLIN)
    with contextlib.suppress(OSError):
        while output.poll():
            with lock:
                data = _read_available(end)
                if data == b"":
                    break
                if data:
                    send_frame(connection, letter, data)
    with lock:
        del streams.outputs[letter]
        os.close(end)


def _send_rest(connection: socket.socket, streams: ProgramStreams) -> None:
    """Send the last output of an ended program, which `_send_output` has not sent to a slow client yet.

    A pipe contains at most `CHUNK` bytes. Output after these bytes comes from a daemon that the program started, so do
    not send this output.
    """
    for letter, end in streams.outputs.items():
        size = 0
        while size < CHUNK and (data := _read_available(end)):
            send_frame(connection, letter, data)
            size += len(data)


def _read_available(end: int) -> bytes | None:
    output = select.poll()
    output.register(end, select.POLLIN)
    if not output.poll(0):
        return None
    try:
        return os.read(end, CHUNK)
    except OSError:  # reading a terminal raises OSError after the program has ended
        return b""


def _receive_input(connection: socket.socket, streams: ProgramStreams) -> None:
    try:
        while True:
            letter, payload = receive_frame(connection)
            with contextlib.suppress(OSError):  # the program closed its input
                _write_input(streams, letter, payload)
    except OSError:
        return  # the client disconnected
    finally:
        streams.close_stdin()


def _end_without_client(connection: socket.socket, handle: NodeHandle, running: RunningProgram) -> None:
    """Terminate the program when the client has disconnected.

    This function needs a separate thread: the thread that passes the input waits while the program does not read.
    """
    wait_until_disconnected(connection)
    if running.exit is None:
        with contextlib.suppress(NodeFailed):  # the node ends, and the program with it
            handle.signal(running.pid, signal.SIGHUP, group=True)
            if not running.ended.wait(1):
                handle.signal(running.pid, signal.SIGKILL, group=True)


def _write_input(streams: ProgramStreams, letter: bytes, payload: bytes) -> None:
    if letter == b"w":
        rows, columns = json.loads(payload)
        set_window(streams.stdin, rows, columns)
    elif letter == b"e":
        streams.end_input()
    else:
        while payload:
            payload = payload[os.write(streams.stdin, payload) :]
