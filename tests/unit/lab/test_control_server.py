import json
import os
import pty
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from virtcloud.lab import control_client
from virtcloud.lab.control_client import run_attached, run_program
from virtcloud.lab.fabric import control_server, program_streams, protocol
from virtcloud.lab.fabric.control_server import ControlServer
from virtcloud.lab.fabric.nodes import NodeHandle
from virtcloud.lab.fabric.plan import LabNode
from virtcloud.lab.fabric.protocol import receive_frame, receive_line, send_frame, send_line
from virtcloud.lab.state import LabState

FIRST_PROCESS = """
import socket, sys
from virtcloud.lab.fabric.node_init import NodeInit
NodeInit(None, socket.socket(fileno=int(sys.argv[1]))).run()
"""


@pytest.fixture
def node() -> Iterator[NodeHandle]:
    fabric_end, node_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-c", FIRST_PROCESS, str(node_end.fileno())]
    with node_end, subprocess.Popen(argv, pass_fds=[node_end.fileno()]) as process:  # noqa: S603 - this test's program
        node_end.close()
        handle = NodeHandle(LabNode("h1", "host", isolated=False), process.pid, fabric_end, Path("/nonexistent"))
        handle.listen()
        yield handle
        fabric_end.shutdown(socket.SHUT_RDWR)


def connect(server: ControlServer) -> tuple[socket.socket, threading.Thread]:
    link, server_end = socket.socketpair()
    thread = threading.Thread(target=server._serve, args=(server_end,))
    thread.start()
    return link, thread


class Client:
    """A client's connection, and the control server's thread that serves this connection."""

    def __init__(self, node: NodeHandle, *, relayed: bool = False, **request: object) -> None:
        server = ControlServer({"h1": node}, {}, "token", {})
        if relayed:
            far, server = server, ControlServer({}, {}, "token", {}, lambda: connect(far)[0])
        self.link, self.thread = connect(server)
        send_line(self.link, {"token": "token", "do": "exec", "node": "h1", **request})

    def receive_end(self) -> tuple[bytes, object]:
        letter, payload = receive_frame(self.link)
        while letter in (b"o", b"r"):
            letter, payload = receive_frame(self.link)
        return letter, json.loads(payload)

    def disconnect(self) -> None:
        self.link.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_a_program_without_end_of_input_leaves_no_descriptor(node: NodeHandle) -> None:
    before = descriptors()
    client = Client(node, argv=["true"])
    assert client.receive_end() == (b"x", 0)
    client.disconnect()
    assert descriptors() <= before


@pytest.mark.parametrize("tty", [False, True])
def test_a_node_without_power_leaves_no_descriptor(node: NodeHandle, tty: bool) -> None:
    node.lose_power()
    before = descriptors()
    client = Client(node, argv=["true"], tty=tty)
    assert client.receive_end() == (b"f", "h1 is powered off; power it on with: virtcloud lab power h1 on")
    client.disconnect()
    assert descriptors() <= before


def test_keystrokes_after_a_programs_end_reach_no_other_file(node: NodeHandle, tmp_path: Path) -> None:
    client = Client(node, argv=["true"], tty=True)
    assert client.receive_end() == (b"x", 0)
    others = [(tmp_path / "other").open("ab", buffering=0) for _ in range(8)]
    send_frame(client.link, b"i", b"secret\n")
    send_frame(client.link, b"e")
    client.disconnect()
    for other in others:
        other.close()
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize("relayed", [False, True])
def test_input_after_the_end_does_not_lose_the_exit_code(
    node: NodeHandle, relayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (control_server, program_streams, protocol):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT_S", 60.0)  # a loaded machine needs seconds for the input
    client = Client(node, relayed=relayed, argv=["sh", "-c", "exit 3"])
    client.link.recv(1, socket.MSG_PEEK)  # wait until the program has ended: the first frame contains its exit code
    send_frame(client.link, b"i", bytes(1 << 24))
    assert client.receive_end() == (b"x", 3)
    client.disconnect()


def test_the_last_output_arrives_although_the_sending_threads_are_slow(
    node: NodeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_output, has_ended = program_streams._send_output, threading.Event()

    def send_late(*arguments: object) -> None:
        has_ended.wait(60)
        send_output(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(program_streams, "_send_output", send_late)
    monkeypatch.setattr(program_streams, "LATE_S", 0.0)
    client = Client(node, argv=["echo", "last words"])
    frames = [receive_frame(client.link), receive_frame(client.link)]
    has_ended.set()
    client.disconnect()
    assert frames == [(b"o", b"last words\n"), (b"x", b"0")]


def test_a_disconnected_client_ends_its_program(node: NodeHandle) -> None:
    client = Client(node, argv=["sh", "-c", "echo $$; exec sleep 100"])
    pid = int(receive_frame(client.link)[1])
    client.disconnect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("relayed", [False, True])
def test_unread_input_does_not_hide_a_disconnection(node: NodeHandle, relayed: bool) -> None:
    client = Client(node, relayed=relayed, argv=["sh", "-c", "echo $$; exec sleep 100"])
    program = os.pidfd_open(int(receive_frame(client.link)[1]))
    writable, ended = select.poll(), select.poll()
    writable.register(client.link, select.POLLOUT)
    ended.register(program, select.POLLIN)
    data = memoryview((protocol.HEADER.pack(b"i", protocol.CHUNK) + bytes(protocol.CHUNK)) * 500)
    while writable.poll(200):  # until all buffers between the client and the program are full
        data = data[client.link.send(data, socket.MSG_DONTWAIT) :]
    client.disconnect()
    assert ended.poll(10_000)
    os.close(program)


@pytest.fixture
def state(node: NodeHandle, tmp_path: Path) -> Iterator[LabState]:
    state = LabState(tmp_path)
    state.write_metadata({"token": "token"})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(state.socket))
        listener.listen()

        def serve() -> None:
            with suppress(OSError):
                ControlServer({"h1": node}, {}, "token", {}).listen(listener)

        server = threading.Thread(target=serve)
        server.start()
        yield state
        listener.shutdown(socket.SHUT_RDWR)
        server.join()


def test_much_input_and_much_output_pass_together(state: LabState) -> None:
    data = bytes(1 << 22)
    assert run_program(state, "h1", ["cat"], data, timeout_s=60).stdout == data


def test_unread_input_does_not_hide_the_exit_code(state: LabState, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/zero").open() as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert run_attached(state, "h1", ["sh", "-c", "exit 3"], terminal=False) == 3


def test_a_closed_standard_input_is_an_empty_input(state: LabState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sets ``sys.stdin`` to None if a shell closed the input (``<&-``)."""
    monkeypatch.setattr(sys, "stdin", None)
    assert run_attached(state, "h1", ["cat"], terminal=False) == 0


def test_clients_are_served_after_a_lack_of_descriptors(state: LabState, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = threading.Event()
    monkeypatch.setattr(time, "sleep", lambda _: lacking.set())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
            # The server's accept() reserved a descriptor before the limit changed, so only the second client lacks one.
            for client in (first, second):
                client.connect(str(state.socket))
            lacking.wait(10)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        second.settimeout(10)
        send_line(second, {"token": "wrong"})
        assert receive_line(second) == {"error": "the token is wrong"}


def test_a_new_window_size_does_not_stop_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread sends input. The node reads this input only after the node's output was read."""
    terminal, program_end = pty.openpty()
    sending, output_was_read = threading.Lock(), threading.Event()
    read_in_time = list[bool]()

    def send_input() -> None:
        with sending:
            holds.set()
            read_in_time.append(output_was_read.wait(5))

    holds, link = threading.Event(), socket.socketpair()
    sender = threading.Thread(target=send_input)
    with os.fdopen(terminal), os.fdopen(program_end) as stdin, link[0], link[1]:
        monkeypatch.setattr(sys, "stdin", stdin)
        with control_client._raw_terminal(link[0], sending):
            sender.start()
            holds.wait(5)
            signal.raise_signal(signal.SIGWINCH)
            output_was_read.set()
            assert receive_frame(link[1]) == (b"w", json.dumps(control_client._window_size()).encode())
    sender.join()
    assert read_in_time == [True]


def test_window_sizes_after_the_end_of_the_connection_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread may still write output when the node has closed the connection."""
    terminal, program_end = pty.openpty()
    read_again, link = threading.Semaphore(0), socket.socketpair()
    monkeypatch.setattr(control_client, "_window_size", lambda: read_again.release() or (24, 80))
    with os.fdopen(terminal), os.fdopen(program_end) as stdin, link[0]:
        monkeypatch.setattr(sys, "stdin", stdin)
        link[1].close()
        with control_client._raw_terminal(link[0], threading.Lock()):
            for _ in range(2):
                signal.raise_signal(signal.SIGWINCH)
                assert read_again.acquire(timeout=10)
