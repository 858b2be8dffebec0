"""The control server of one kernel: runs programs on nodes, controls services, and returns the status.

A lab in User-mode Linux has two control servers: one on the machine, and one in User-mode Linux.
"""

import contextlib
import errno
import hmac
import json
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle
from virtcloud.lab.fabric.program_streams import execute_program
from virtcloud.lab.fabric.protocol import (
    CLOSE_TIMEOUT_S,
    read_until_end,
    receive_line,
    send_frame,
    send_line,
    wait_until_disconnected,
)
from virtcloud.lab.fabric.service_control import ServiceControl

ControlRequest = dict[str, Any]
Services = Mapping[tuple[str, str], ServiceControl]
TOO_MANY_FILES = {errno.EMFILE, errno.ENFILE}
PAUSE_S = 0.1


class ControlServer:
    """Serves the requests for the nodes of one kernel. Relays other requests to the control server of the other kernel.

    If there is no other kernel, requests for unknown nodes are errors.
    """

    def __init__(
        self,
        nodes: Mapping[str, NodeHandle],
        services: Services,
        token: str,
        power: Mapping[str, Callable[[str], None]],
        relay: Callable[[], socket.socket] | None = None,
    ) -> None:
        """``power`` contains two functions, under ``"off"`` and ``"on"``, which power a node off and on.

        Requests of clients must contain ``token``. ``relay`` connects to the control server of the other kernel, if
        there is one.
        """
        self._nodes = nodes
        self._power = power
        self._services = services
        self._token = token
        self._relay = relay

    def listen(self, listener: socket.socket) -> None:
        """Accept clients until the listener is closed. Each client is served in a separate thread.

        While this process has too many open files, clients wait.
        """
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if error.errno not in TOO_MANY_FILES:
                    raise
                time.sleep(PAUSE_S)
                continue
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
            raise NodeFailed(f"the lab has no node {request['node']}; list all nodes with: virtcloud lab status")
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
            watcher = threading.Thread(target=_reset_without_client, args=(connection, other), daemon=True)
            for thread in (sender, watcher):
                thread.start()
            _copy(other, connection)
            sender.join(CLOSE_TIMEOUT_S)  # with unread input, close() would reset the connection
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # ends both threads if the client has not disconnected
            watcher.join()


def _reset_without_client(connection: socket.socket, other: socket.socket) -> None:
    """Wait until the client disconnects. Then reset the connection with the other control server.

    A control server that does not read would never detect an orderly end, which TCP delivers only after all data.
    """
    wait_until_disconnected(connection)
    with contextlib.suppress(OSError):
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source.makefile("rb", buffering=0) as stream:
        shutil.copyfileobj(stream, _SocketWriter(target), 65536)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _SocketWriter:
    def __init__(self, target: socket.socket) -> None:
        self._target = target

    def write(self, data: bytes) -> None:
        self._target.sendall(data)


def _send_error(connection: socket.socket, request: ControlRequest, message: str) -> None:
    with contextlib.suppress(OSError):
        if request["do"] == "exec":
            send_frame(connection, b"f", json.dumps(message).encode())
            read_until_end(connection)
        else:
            send_line(connection, {"error": message})
