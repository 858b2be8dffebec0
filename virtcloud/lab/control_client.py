"""Client of a running lab's control server: runs programs on nodes, controls services, and queries the status."""

import contextlib
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO

from virtcloud.lab.errors import LabFailed, LabIsDown, UnknownInLab
from virtcloud.lab.fabric.protocol import receive_frame, receive_line, send_frame, send_line
from virtcloud.lab.state import LabState

CHUNK = 65536


def check_node_exists(state: LabState, node: str, service: str | None = None) -> None:
    """Raise UnknownInLab if the running lab has no such node, or if the node has no such service."""
    nodes = state.metadata.get("nodes", {})
    if nodes and node not in nodes:
        raise UnknownInLab(f"the lab has no node {node}; its nodes are: {', '.join(nodes)}")
    if service is not None and service not in nodes.get(node, [service]):
        names = ", ".join(nodes[node]) or "none"
        raise UnknownInLab(f"node {node} has no service {service}; its services are: {names}")


@contextmanager
def connect_to_lab(state: LabState, timeout_s: float | None = None) -> Iterator[socket.socket]:
    """Connect to the lab's control server, and yield the connection. Raise LabIsDown if no lab is running.

    Within the context, raise LabFailed if the connection is lost, or if an answer takes longer than ``timeout_s``
    seconds.
    """
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(state.socket))
        except OSError as error:
            raise LabIsDown("no lab is up; start one with: virtcloud lab up") from error
        link.settimeout(timeout_s)
        try:
            yield link
        except (ConnectionError, TimeoutError) as error:
            raise LabFailed(f"the lab does not answer: {error}; see {state.folder}/supervisor.log") from error


def send_request(state: LabState, request: dict[str, Any], timeout_s: float = 90.0) -> dict[str, Any]:
    """Send a request and return the answer. Raise LabIsDown if no lab is running.

    Raise LabFailed if the request fails, or if the answer takes longer than ``timeout_s`` seconds.
    """
    with connect_to_lab(state, timeout_s) as link:
        send_line(link, {**request, "token": state.metadata.get("token", "")})
        answer = receive_line(link)
    if "error" in answer:
        raise LabFailed(answer["error"])
    return answer


def run_program(
    state: LabState, node: str, argv: Sequence[str], stdin: bytes = b"", timeout_s: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program on a node and wait for its end. The exit code ``-N`` means that signal N killed the program.

    If the program cannot be started, the exit code is 126 or 127, as in a shell. Raise UnknownInLab for an unknown
    node, and LabIsDown if no lab is running. Raise LabFailed if the program prints nothing for ``timeout_s`` seconds.
    """
    outputs = {b"o": bytearray(), b"r": bytearray()}
    with connect_to_lab(state, timeout_s) as link:
        _request_program(link, state, node, argv)
        _start_sending(link, threading.RLock(), io.BytesIO(stdin).read)
        while True:
            letter, payload = receive_frame(link)
            if letter in outputs:
                outputs[letter] += payload
            else:
                return subprocess.CompletedProcess(
                    list(argv), _exit_code(letter, payload), bytes(outputs[b"o"]), bytes(outputs[b"r"])
                )


def run_attached(state: LabState, node: str, argv: Sequence[str], *, terminal: bool) -> int:
    """Run a program on a node with this process's standard streams.

    Return the program's exit code, or 128 plus the number of the signal that killed the program. Raise UnknownInLab for
    an unknown node, and LabIsDown if no lab is running.
    """
    with connect_to_lab(state) as link:
        _request_program(link, state, node, argv, tty=terminal)
        sending = threading.RLock()
        with _raw_terminal(link, sending) if terminal else contextlib.nullcontext():
            _start_sending(link, sending, _read_stdin)
            code = _write_outputs(link)
    return code if code >= 0 else 128 - code


def _request_program(
    link: socket.socket, state: LabState, node: str, argv: Sequence[str], *, tty: bool = False
) -> None:
    check_node_exists(state, node)
    request: dict[str, Any] = {"do": "exec", "node": node, "argv": list(argv), "token": state.metadata.get("token", "")}
    if tty:
        environment = {"TERM": os.environ.get("TERM", "linux"), "PS1": f"{node}:\\w# "}
        request |= {"tty": True, "window": _window_size(), "environment": environment}
    send_line(link, request)


def _exit_code(letter: bytes, payload: bytes) -> int:
    if letter == b"x":
        return int(json.loads(payload))
    raise LabFailed(str(json.loads(payload)))


def _start_sending(link: socket.socket, sending: AbstractContextManager[object], read: Callable[[int], bytes]) -> None:
    """Send the program's input in a thread, because some programs read no input until their output was received.

    ``sending`` is the lock of all threads that send frames. ``read`` returns the next input, at most the given number
    of bytes, or ``b""`` at the end. The thread ends when it next tries to send after the program's end.
    """

    def send() -> None:
        with contextlib.suppress(OSError):  # the caller, who receives, notices the end of the connection
            while data := read(CHUNK):
                with sending:
                    send_frame(link, b"i", data)
            with sending:
                send_frame(link, b"e")

    threading.Thread(target=send, name="input of a program", daemon=True).start()


def _read_stdin(size: int) -> bytes:
    if sys.stdin is None:  # the shell closed it: <&-
        return b""
    try:
        select.select([sys.stdin], [], [])  # without select(), read() would stop a process in the background (SIGTTIN)
        return os.read(sys.stdin.fileno(), size)
    except (OSError, ValueError):
        return b""


def _write_outputs(link: socket.socket) -> int:
    """Write the program's output to this process's output. Return the program's exit code.

    Return ``-SIGPIPE`` if this process's output is closed before the program has ended.
    """
    outputs: dict[bytes, BinaryIO] = {b"o": sys.stdout.buffer, b"r": sys.stderr.buffer}
    while True:
        letter, payload = receive_frame(link)
        if letter not in outputs:
            return _exit_code(letter, payload)
        if not _write_output(outputs[letter], payload):
            return -signal.SIGPIPE


def _write_output(output: BinaryIO, payload: bytes) -> bool:
    try:
        output.write(payload)
        output.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return False
    return True


def _window_size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.lines, size.columns


@contextmanager
def _raw_terminal(link: socket.socket, sending: AbstractContextManager[object]) -> Iterator[None]:
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    attributes = termios.tcgetattr(sys.stdin)
    changed, change = os.pipe()
    threading.Thread(target=_send_sizes, args=(changed, link, sending), name="window sizes", daemon=True).start()
    handler = signal.signal(signal.SIGWINCH, lambda *_: os.write(change, b"w"))
    try:
        tty.setraw(sys.stdin, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, attributes)
        signal.signal(signal.SIGWINCH, handler)
        os.close(change)


def _send_sizes(changed: int, link: socket.socket, sending: AbstractContextManager[object]) -> None:
    """Send the window's size each time bytes arrive in the pipe ``changed``, to which the handler of SIGWINCH writes.

    The handler itself must not send, because another thread can hold the lock ``sending`` until the main thread has
    read the program's output.
    """
    with open(changed, "rb", buffering=0) as changes:
        # The loop ends when the main thread closes the pipe, not when the connection is lost: a write to a pipe without
        # a reader would raise an error in the signal handler.
        while changes.read(CHUNK):
            with contextlib.suppress(OSError), sending:  # the main thread notices the end of the connection
                send_frame(link, b"w", json.dumps(_window_size()).encode())
