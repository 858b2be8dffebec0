"""The services of nodes: start, stop, kill, and the detection of services that ended unexpectedly."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle, RunningProgram
from virtcloud.lab.fabric.plan import NodeService
from virtcloud.lab.fabric.zygote import Zygote

READY_S = 120.0
STOP_S = 15.0
POLL_S = 0.05
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/run/home",
}


class ServiceControl:
    """Starts and stops one service on a node."""

    def __init__(self, handle: NodeHandle, service: NodeService, log: Path, zygote: Zygote | None) -> None:
        """Create the control of a stopped service. The service appends its output to the file ``log``."""
        self._handle = handle
        self._service = service
        self._log = log
        self._zygote = zygote
        self._running: RunningProgram | None = None
        self._stopped = True

    @property
    def state(self) -> str:
        """The service's state: ``running``, ``stopped``, ``died (EXIT CODE)``, or ``powered off``.

        A service that ended without a request to stop has ``died``.
        """
        if not self._handle.has_power:
            return "powered off"
        if self._running is None or (self._stopped and self._running.exit is not None):
            return "stopped"
        return "running" if self._running.exit is None else f"died ({self._running.exit})"

    def start(self) -> None:
        """Start the service unless it is running, and wait until it is ready.

        Raise NodeFailed if the node is powered off, or if the service ends or is not ready within `READY_S` seconds.
        """
        if self.state != "running":
            self._stopped = False
            self._running = self._begin()
        self._await_ready()

    def stop(self) -> None:
        """Terminate the service. If the service has not ended after `STOP_S` seconds, kill the service."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the service, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        self._stopped = True
        if self._running is None or self._running.exit is not None:
            return
        self._send(number)
        if not self._running.ended.wait(STOP_S):
            self._send(signal.SIGKILL)
            self._running.ended.wait(STOP_S)

    def _send(self, number: int) -> None:
        running = self._running
        if running is None:
            return
        if self._service.module:
            os.kill(running.pid, number)
        else:
            self._handle.signal(running.pid, number)

    def _begin(self) -> RunningProgram:
        environment = {**ENVIRONMENT, **self._service.environment}
        if self._service.module and self._zygote:
            return self._zygote.start(self._handle, self._service, str(self._log), environment)
        with _streams(self._log) as streams:
            return self._handle.spawn(self._service.argv, streams, environment)

    def _await_ready(self) -> None:
        check = readiness_check(self._service.ready, self._handle.pid if self._handle.node.isolated else None)
        deadline = time.monotonic() + READY_S
        while not check():
            if self._running and self._running.exit is not None:
                raise NodeFailed(
                    f"{self._name} ended with exit code {self._running.exit} at its start; see {self._log}"
                )
            if time.monotonic() > deadline:
                raise NodeFailed(f"{self._name} was not ready after {READY_S:.0f} s; see {self._log}")
            time.sleep(POLL_S)

    @property
    def _name(self) -> str:
        return f"{self._handle.node.name}: {self._service.name}"


@contextmanager
def _streams(log: Path) -> Iterator[tuple[int, int, int]]:
    empty_input = os.open("/dev/null", os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        yield (empty_input, output, output)
    finally:
        os.close(empty_input)
        os.close(output)


def readiness_check(ready: str, pid: int | None) -> Callable[[], bool]:
    """Return a function that returns whether the address ``ready`` accepts connections.

    A path in ``ready`` is a path in the mount namespace of process ``pid``. If ``ready`` is "", the function always
    returns True.
    """
    kind, _, rest = ready.partition(":")
    if kind == "unix":
        root = f"/proc/{pid}/root" if pid else ""
        return lambda: _accepts_unix(root + rest)
    if kind == "tcp":
        address, _, port = rest.rpartition(":")
        return lambda: _accepts_tcp(address, int(port))
    return lambda: True


def _accepts_unix(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(path)
        except OSError:
            return False
    return True


def _accepts_tcp(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True
