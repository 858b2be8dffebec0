"""Answers those who want something of a node: run a program, control a service, tell the state."""

import contextlib
import hmac
import json
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from virtcloud.lab.fabric.execution import execute
from virtcloud.lab.fabric.frames import receive_line, send_frame, send_line
from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle
from virtcloud.lab.fabric.services import ServiceControl

Request = dict[str, Any]
Services = Mapping[tuple[str, str], ServiceControl]


class Server:
    """Serves the nodes of one kernel; what it does not have it relays to the other one (``relay``), if there is one."""

    def __init__(
        self,
        nodes: Mapping[str, NodeHandle],
        services: Services,
        token: str,
        relay: Callable[[], socket.socket] | None = None,
    ) -> None:
        """Serve ``nodes`` and ``services`` to callers that know ``token``."""
        self._nodes = nodes
        self._services = services
        self._token = token
        self._relay = relay

    def listen(self, listener: socket.socket) -> None:
        """Accept callers until the listener is closed, each in its own thread."""
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            request = receive_line(connection)
            if not hmac.compare_digest(str(request.get("token", "")), self._token):
                send_line(connection, {"error": "the lab does not know this caller"})
                return
            try:
                self._answer(connection, request)
            except (NodeFailed, OSError) as error:
                _complain(connection, request, str(error))

    def _answer(self, connection: socket.socket, request: Request) -> None:
        if request["do"] == "status":
            send_line(connection, self._status())
        elif request["node"] not in self._nodes and self._relay:
            self._pass_on(connection, request)
        elif request["do"] == "exec":
            execute(connection, self._node(request), request)
        else:
            self._service(request)
            send_line(connection, {"ok": True})

    def _node(self, request: Request) -> NodeHandle:
        if request["node"] not in self._nodes:
            raise NodeFailed(f"node {request['node']} is not known; virtcloud lab status lists all nodes")
        return self._nodes[request["node"]]

    def _service(self, request: Request) -> None:
        self._node(request)
        control = self._services.get((request["node"], request["service"]))
        if control is None:
            known = ", ".join(name for node, name in self._services if node == request["node"]) or "none"
            raise NodeFailed(f"node {request['node']} has no service {request['service']}; it has: {known}")
        {"start": control.start, "stop": control.stop, "kill": control.kill}[request["do"]]()

    def _status(self) -> Request:
        own = {
            name: {
                "kind": handle.node.kind,
                "address": handle.node.address,
                "services": {which: one.state for (node, which), one in self._services.items() if node == name},
            }
            for name, handle in self._nodes.items()
        }
        return {"nodes": {**own, **self._far_status()}}

    def _far_status(self) -> Request:
        if self._relay is None:
            return {}
        with self._relay() as far:
            send_line(far, {"token": self._token, "do": "status"})
            nodes: Request = receive_line(far)["nodes"]
            return nodes

    def _pass_on(self, connection: socket.socket, request: Request) -> None:
        if self._relay is None:
            return
        with self._relay() as far:
            send_line(far, request)
            there = threading.Thread(target=_copy, args=(connection, far), daemon=True)
            there.start()
            _copy(far, connection)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source.makefile("rb", buffering=0) as stream:
        shutil.copyfileobj(stream, _Sender(target), 65536)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Sender:
    """A socket as something to write to."""

    def __init__(self, target: socket.socket) -> None:
        self._target = target

    def write(self, data: bytes) -> None:
        self._target.sendall(data)


def _complain(connection: socket.socket, request: Request, words: str) -> None:
    with contextlib.suppress(OSError):
        if request["do"] == "exec":
            send_frame(connection, b"f", json.dumps(words).encode())
        else:
            send_line(connection, {"error": words})
