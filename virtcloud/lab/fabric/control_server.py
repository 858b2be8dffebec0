"""The control server of one kernel: runs programs on nodes, controls services, and returns the status.

A lab in User-mode Linux has two control servers: one on the machine, and one in User-mode Linux.
"""

import contextlib
import hmac
import json
import os
import pty
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from virtcloud.lab.fabric.node_init import set_window
from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle, ProgramNotStarted, RunningProgram
from virtcloud.lab.fabric.protocol import receive_frame, receive_line, send_frame, send_line
from virtcloud.lab.fabric.service_control import ENVIRONMENT, ServiceControl

CHUNK = 65536
CLOSE_TIMEOUT_S = 5.0


def execute_program(connection: socket.socket, handle: NodeHandle, request: Mapping[str, Any]) -> None:
    """Run the program ``request["argv"]``. Send its output over the connection, and finally its exit code.

    The program's input comes from the same connection. Return when the client has disconnected, at the latest
    `CLOSE_TIMEOUT_S` seconds after the exit code. Raise NodeFailed if the node cannot start programs.
    """
    streams = _open_terminal(request) if request.get("tty") else _open_pipes()
    environment = {**ENVIRONMENT, **request.get("environment", {})}
    try:
        running = handle.spawn(request["argv"], streams.child_ends, environment, tty=bool(request.get("tty")))
    except ProgramNotStarted as error:
        streams.close()
        send_frame(connection, b"r", f"{error}\n".encode())
        send_frame(connection, b"x", json.dumps(error.exit).encode())
        _read_until_end(connection)
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
    """Copy the program's input and output until the program has ended and the client has received the exit code."""
    lock = threading.Lock()
    pumps = [
        threading.Thread(target=_send_output, args=(connection, lock, letter, end), daemon=True)
        for letter, end in streams.outputs.items()
    ]
    receiver = threading.Thread(target=_receive_input, args=(connection, streams, handle, running), daemon=True)
    for thread in (receiver, *pumps):
        thread.start()
    running.ended.wait()
    for pump in pumps:
        pump.join(timeout=1)  # a daemon that the program started may still have the pipe open
    with lock, contextlib.suppress(OSError):
        send_frame(connection, b"x", json.dumps(running.exit).encode())
        connection.shutdown(socket.SHUT_WR)
    receiver.join(CLOSE_TIMEOUT_S)  # with unread input, close() would reset the connection
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # ends the receiver if the client has not disconnected


def _read_until_end(connection: socket.socket) -> None:
    """Read the client's remaining input until the client disconnects.

    With unread input, close() would reset the connection, and the client would lose the last frames.
    """
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(CLOSE_TIMEOUT_S)
        while connection.recv(CHUNK):
            continue


class ProgramStreams:
    """The file descriptors of a program's standard streams: the program's ends, and this process's ends.

    ``stdin`` differs from the descriptors in ``outputs``, also for a terminal: the thread that writes or reads a
    descriptor also closes this descriptor.
    """

    def __init__(
        self, child_ends: tuple[int, int, int], stdin: int, outputs: dict[bytes, int], *, terminal: bool = False
    ) -> None:
        """Store the descriptors. ``child_ends`` are the program's ends.

        ``stdin`` is the descriptor to which this process writes the program's input. ``outputs`` maps the letter of a
        frame (``protocol.py``) to the descriptor from which this process reads the program's output. ``terminal`` is
        true if the streams are a terminal.
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
        """Close the descriptor to which this process writes the program's input. Idempotent."""
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


def _send_output(connection: socket.socket, lock: threading.Lock, letter: bytes, end: int) -> None:
    with contextlib.suppress(OSError):  # reading a terminal raises OSError after its program has ended
        while data := os.read(end, CHUNK):
            with lock:
                send_frame(connection, letter, data)
    os.close(end)


def _receive_input(
    connection: socket.socket, streams: ProgramStreams, handle: NodeHandle, running: RunningProgram
) -> None:
    """Pass the client's input to the program until the client disconnects. Then terminate the program.

    Finally, close the program's input.
    """
    try:
        while True:
            letter, payload = receive_frame(connection)
            with contextlib.suppress(OSError):  # the program closed its input
                _write_input(streams, letter, payload)
    except OSError:
        if running.exit is None:
            handle.signal(running.pid, signal.SIGHUP, group=True)
            if not running.ended.wait(1):
                handle.signal(running.pid, signal.SIGKILL, group=True)
    finally:
        streams.close_stdin()


def _write_input(streams: ProgramStreams, letter: bytes, payload: bytes) -> None:
    if letter == b"w":
        rows, columns = json.loads(payload)
        set_window(streams.stdin, rows, columns)
    elif letter == b"e":
        streams.end_input()
    else:
        while payload:
            payload = payload[os.write(streams.stdin, payload) :]


ControlRequest = dict[str, Any]
Services = Mapping[tuple[str, str], ServiceControl]


class ControlServer:
    """Serves the requests for the nodes of one kernel. Relays requests for other nodes to the other control server."""

    def __init__(
        self,
        nodes: Mapping[str, NodeHandle],
        services: Services,
        token: str,
        power: Mapping[str, Callable[[str], None]],
        relay: Callable[[], socket.socket] | None = None,
    ) -> None:
        """Serve ``nodes`` and ``services`` to clients whose requests contain ``token``.

        ``power`` contains two functions, under ``"off"`` and ``"on"``, which power a node off and on. ``relay``
        connects to the control server of the other kernel, if there is one.
        """
        self._nodes = nodes
        self._power = power
        self._services = services
        self._token = token
        self._relay = relay

    def listen(self, listener: socket.socket) -> None:
        """Accept clients until the listener is closed. Each client is served in a separate thread."""
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = receive_line(connection)
            if not hmac.compare_digest(str(request.get("token", "")), self._token):
                send_line(connection, {"error": "the token is wrong"})
                return
            try:
                self._answer(connection, request)
            except (NodeFailed, OSError) as error:
                _send_error(connection, request, str(error))

    def _answer(self, connection: socket.socket, request: ControlRequest) -> None:
        if request["do"] == "status":
            send_line(connection, self._status())
        elif request["node"] not in self._nodes and self._relay:
            self._pass_on(connection, request)
        elif request["do"] == "exec":
            execute_program(connection, self._node(request), request)
        elif request["do"] == "power":
            self._power[request["power"]](self._node(request).node.name)
            send_line(connection, {"ok": True})
        else:
            self._service(request)
            send_line(connection, {"ok": True})

    def _node(self, request: ControlRequest) -> NodeHandle:
        if request["node"] not in self._nodes:
            raise NodeFailed(f"the lab has no node {request['node']}; virtcloud lab status lists all nodes")
        return self._nodes[request["node"]]

    def _service(self, request: ControlRequest) -> None:
        self._node(request)
        control = self._services.get((request["node"], request["service"]))
        if control is None:
            names = ", ".join(name for node, name in self._services if node == request["node"]) or "none"
            raise NodeFailed(f"node {request['node']} has no service {request['service']}; its services are: {names}")
        {"start": control.start, "stop": control.stop, "kill": control.kill}[request["do"]]()

    def _status(self) -> ControlRequest:
        local_nodes = {
            name: {
                "kind": handle.node.kind,
                "address": handle.node.address,
                "services": {
                    service: control.state for (node, service), control in self._services.items() if node == name
                },
            }
            for name, handle in self._nodes.items()
        }
        return {"nodes": {**local_nodes, **self._far_status()}}

    def _far_status(self) -> ControlRequest:
        if self._relay is None:
            return {}
        with self._relay() as connection:
            send_line(connection, {"token": self._token, "do": "status"})
            nodes: ControlRequest = receive_line(connection)["nodes"]
            return nodes

    def _pass_on(self, connection: socket.socket, request: ControlRequest) -> None:
        if self._relay is None:
            return
        with self._relay() as other:
            send_line(other, request)
            sender = threading.Thread(target=_copy, args=(connection, other), daemon=True)
            sender.start()
            _copy(other, connection)
            sender.join(CLOSE_TIMEOUT_S)  # with unread input, close() would reset the connection


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source.makefile("rb", buffering=0) as stream:
        shutil.copyfileobj(stream, _Sender(target), 65536)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Sender:
    """A file-like object. It sends all data that a caller writes to it over the socket ``target``."""

    def __init__(self, target: socket.socket) -> None:
        self._target = target

    def write(self, data: bytes) -> None:
        self._target.sendall(data)


def _send_error(connection: socket.socket, request: ControlRequest, message: str) -> None:
    with contextlib.suppress(OSError):
        if request["do"] == "exec":
            send_frame(connection, b"f", json.dumps(message).encode())
            _read_until_end(connection)
        else:
            send_line(connection, {"error": message})
