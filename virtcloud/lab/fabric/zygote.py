"""The zygote: a process that has imported the modules of services. Its forks run these modules on nodes.

The imports of SBF or of an agent take seconds of processor time; a fork takes much less.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from virtcloud.lab.fabric import syscalls
from virtcloud.lab.fabric.node_init import PACKET
from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle, RunningProgram
from virtcloud.lab.fabric.plan import NodeService

NAMESPACES = ("cgroup", "ipc", "uts", "net", "mnt")
ENDED = "the zygote has ended; to start the lab again: virtcloud lab down, then virtcloud lab up"


class Zygote:
    """The fabric's handle of the zygote process. The handle starts one service at a time."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        """Fork the zygote, which imports ``modules``. Call this method before any thread runs."""
        self._channel, zygote_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._running: dict[int, RunningProgram] = {}
        self._answered = threading.Event()
        self._answer: dict[str, Any] = {}
        if os.fork() == 0:
            self._channel.close()
            _run_and_exit(lambda: _serve(zygote_end, modules))
        zygote_end.close()

    def listen(self) -> None:
        """Start a thread that receives the zygote's answers."""
        threading.Thread(target=self._listen, daemon=True, name="zygote").start()

    def start(self, handle: NodeHandle, service: NodeService, log: str, environment: dict[str, str]) -> RunningProgram:
        """Wait until the zygote's imports are complete. Then start a service's module inside a node.

        Raise NodeFailed if the zygote cannot import the module or enter the node, or has ended.
        """
        request = {
            "group": str(handle.group / "init"),
            "pid": handle.pid if handle.node.isolated else 0,
            "module": service.module,
            "argv": service.argv,
            "log": log,
            "environment": environment,
        }
        with self._lock:
            self._answered.clear()
            try:
                self._channel.send(json.dumps(request).encode())
            except OSError as error:
                raise NodeFailed(f"{handle.node.name}: {service.name}: {ENDED}") from error
            self._answered.wait()
            if "error" in self._answer:
                raise NodeFailed(f"{handle.node.name}: {service.name}: {self._answer['error']}")
            running: RunningProgram = self._answer["running"]
            return running

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionResetError):  # the zygote ended with an unread request
            while packet := self._channel.recv(PACKET):
                self._take(json.loads(packet))
        self._take({"error": ENDED})

    def _take(self, message: dict[str, Any]) -> None:
        if "exit" in message:
            self._running.pop(message["pid"]).end(message["exit"])
            return
        if "pid" in message:
            message["running"] = self._running[message["pid"]] = RunningProgram(message["pid"])
        self._answer = message
        self._answered.set()


def _run_and_exit(function: Callable[[], object]) -> NoReturn:
    try:
        function()
    except BaseException:  # noqa: BLE001 - a forked copy must never return into its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _serve(channel: socket.socket, modules: tuple[str, ...]) -> None:
    os.setsid()
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, 4096)
    gc.disable()  # garbage collections would take a sixth of the imports' time and free almost no memory
    failed = _import(modules)
    gc.freeze()  # a garbage collection in a child would copy the memory of all imported modules
    gc.enable()
    children: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([channel.fileno(), *children], [], [])
        for process in children.keys() & readable:
            _report_end(channel, children, process)
        if channel.fileno() in readable:
            packet = channel.recv(PACKET)
            if not packet:
                return
            channel.send(json.dumps(_start(json.loads(packet), failed, children)).encode())


def _import(modules: tuple[str, ...]) -> dict[str, str]:
    failed = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - the error is reported when the service is started
            failed[name] = f"cannot import {name}: {error}"
    return failed


def _start(request: dict[str, Any], failed: dict[str, str], children: dict[int, int]) -> dict[str, Any]:
    if request["module"] in failed:
        return {"error": failed[request["module"]]}
    try:
        pid = syscalls.fork_into_pid_namespace_of(request["pid"]) if request["pid"] else os.fork()
    except OSError as error:
        return {"error": f"could not enter the node: {error}"}
    if pid == 0:
        _run_and_exit(lambda: _run_in_node(request))
    children[os.pidfd_open(pid)] = pid
    return {"pid": pid}


def _run_in_node(request: dict[str, Any]) -> None:
    """Enter the node's namespaces, and run the module. This process is already in the node's PID namespace.

    The station shares all namespaces with the fabric.
    """
    os.setsid()
    os.closerange(3, 4096)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1), os.dup2(log, 2)
    group = Path(request["group"], "cgroup.procs")
    if group.exists():
        group.write_text("0")
    for kind in NAMESPACES if request["pid"] else ():
        syscalls.setns(f"/proc/{request['pid']}/ns/{kind}")
    _run(request)


def _run(request: dict[str, Any]) -> None:
    os.chdir("/")
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = list(request["argv"])
    try:
        sys.exit(importlib.import_module(request["module"]).main(sys.argv[1:]))
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1)


def _report_end(channel: socket.socket, children: dict[int, int], process: int) -> None:
    """Send the exit code of an ended child to the fabric. ``children`` maps pidfds to pids. ``process`` is a pidfd."""
    pid = children.pop(process)
    os.close(process)
    _, status = os.waitpid(pid, 0)
    channel.send(json.dumps({"pid": pid, "exit": os.waitstatus_to_exitcode(status)}).encode())
