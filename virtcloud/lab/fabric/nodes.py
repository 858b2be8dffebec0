"""The fabric's handles of nodes.

The fabric forks the first process of each node, in new namespaces if the node is isolated. The node's channel, a Unix
socket (SOCK_SEQPACKET), carries the fabric's requests to the first process.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any, NoReturn

from virtcloud.lab.fabric import syscalls
from virtcloud.lab.fabric.node_init import CGROUPS, PACKET, NodeInit, delegate_controllers, set_up_node
from virtcloud.lab.fabric.plan import LabNode

NAMESPACES = syscalls.NEWNS | syscalls.NEWNET | syscalls.NEWUTS | syscalls.NEWIPC | syscalls.NEWCGROUP
BRANCH = CGROUPS / "virtcloud-lab"
Message = dict[str, Any]
CHANNEL_ENDED = {errno.EPIPE, errno.ECONNRESET, errno.EBADF}
"""Errors of a node's channel after the end of the node's first process."""


class NodeFailed(Exception):
    """A node could not be created, or a request to a node failed. The message contains the node's error."""


class ProgramNotStarted(NodeFailed):
    """A program could not be started. ``exit`` is the exit code that a shell would return: 127 or 126 (POSIX)."""

    def __init__(self, message: str, code: int) -> None:
        """Store the message and the exit code."""
        super().__init__(message)
        self.exit = code


class RunningProgram:
    """A program on a node. ``exit`` is None until the program ends. ``-N`` means that signal N killed the program."""

    def __init__(self, pid: int) -> None:
        """Store the process ID of the program."""
        self.pid = pid
        self.exit: int | None = None
        self.ended = threading.Event()

    def end(self, code: int) -> None:
        """Record the exit code of the program."""
        self.exit = code
        self.ended.set()


class NodeHandle:
    """The fabric's handle of one node. Thread-safe.

    A request raises NodeFailed if the request fails or the node has no power.
    """

    def __init__(self, node: LabNode, pid: int, channel: socket.socket, group: Path) -> None:
        """Store a node, its first process ``pid``, its channel, and the path of its control group.

        The control group exists only if the node is isolated and the machine has cgroup v2.
        """
        self.node = node
        self.pid = pid
        self.group = group
        self.has_power = True
        self._channel = channel
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, Queue[Message]] = {}
        self._running: dict[int, RunningProgram] = {}

    def listen(self) -> None:
        """Start a thread that receives the node's answers. Call this method once for each boot, after all forks."""
        arguments = self._channel, self._answers, self._running
        threading.Thread(target=self._listen, args=arguments, daemon=True, name=f"node {self.node.name}").start()

    def lose_power(self) -> None:
        """Record that the node has no power: its first process is about to be killed."""
        self.has_power = False

    def boot(self, pid: int, channel: socket.socket) -> None:
        """Store the first process of a node that was powered on again, and its channel."""
        with self._lock:
            self.pid, self._channel = pid, channel
            self._answers, self._running = {}, {}
            self.has_power = True
        self.listen()

    def network(self) -> None:
        """Create the node's interfaces."""
        self._call({"do": "network"}, ())

    def spawn(
        self, argv: Sequence[str], streams: Sequence[int], environment: Mapping[str, str], *, tty: bool = False
    ) -> RunningProgram:
        """Start a program with these three standard streams, or raise ProgramNotStarted."""
        request = {"do": "spawn", "argv": list(argv), "environment": dict(environment), "tty": tty}
        running: RunningProgram = self._call(request, streams)["running"]
        return running

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        """Send a signal to a program, or to its process group."""
        self._call({"do": "signal", "pid": pid, "number": number, "group": group}, ())

    def _call(self, request: Message, streams: Sequence[int]) -> Message:
        with self._lock:
            if not self.has_power:
                raise NodeFailed(self._describe_end())
            number = next(self._numbers)
            answers = self._answers[number] = Queue()
            packet = json.dumps({**request, "id": number}).encode()
            try:
                socket.send_fds(self._channel, [packet], list(streams))
            except OSError as error:
                self._answers.pop(number, None)
                raise NodeFailed(self._describe_end()) if error.errno in CHANNEL_ENDED else error from error
        answer = answers.get()
        self._answers.pop(number, None)
        if "ended" in answer:
            raise NodeFailed(self._describe_end())
        if "code" in answer:
            raise ProgramNotStarted(f"{self.node.name}: {answer['error']}", answer["code"])
        if "error" in answer:
            raise NodeFailed(f"{self.node.name}: {answer['error']}")
        return answer

    def _describe_end(self) -> str:
        name = self.node.name
        if not self.has_power:
            return f"{name} is powered off; power it on with: virtcloud lab power {name} on"
        return f"{name}: its first process has ended; to start the lab again: virtcloud lab down, then virtcloud lab up"

    def _listen(
        self, channel: socket.socket, pending: dict[int, Queue[Message]], programs: dict[int, RunningProgram]
    ) -> None:
        with channel, contextlib.suppress(ConnectionResetError):  # the node ended with an unread request
            while packet := channel.recv(PACKET):
                _take(json.loads(packet), pending, programs)
        for answers in list(pending.values()):
            answers.put({"ended": True})
        for running in list(programs.values()):
            running.end(-signal.SIGKILL)


def _take(message: Message, pending: dict[int, Queue[Message]], programs: dict[int, RunningProgram]) -> None:
    number = message["id"]
    if "exit" in message:
        programs.pop(number).end(message["exit"])
        return
    if "spawned" in message:
        message["running"] = programs[number] = RunningProgram(message["spawned"])
    pending[number].put(message)


def lab_cgroup(state: str) -> Path:
    """Return the control group of the lab with the folder ``state``. Several labs may run on one machine."""
    return BRANCH / hashlib.sha256(state.encode()).hexdigest()[:12]


def start_node(node: LabNode, groups: Path) -> NodeHandle:
    """Start a node's first process, in a control group below ``groups``. Return the node's handle.

    Call this function before any thread runs: a process with threads must not fork.
    """
    fabric_end, node_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = fork_first_process(node, node_end, groups / node.name)
    node_end.close()
    return NodeHandle(node, pid, fabric_end, groups / node.name)


def fork_first_process(node: LabNode, channel: socket.socket, group: Path) -> int:
    """Fork a node's first process, and return its process ID. The first process reports on ``channel``."""
    pid = syscalls.fork_into_new_pid_namespace() if node.isolated else os.fork()
    if pid == 0:
        _run_first_process(node, channel, group)
    return pid


def wait_until_set_up(handle: NodeHandle) -> None:
    """Wait until a started node has created its file tree."""
    receive_report(handle.node, handle._channel)  # noqa: SLF001


def receive_report(node: LabNode, channel: socket.socket) -> Message:
    """Receive the report of a starting node. Raise NodeFailed if the report is an error."""
    packet = b""
    with contextlib.suppress(ConnectionResetError):  # the process died with an unread message
        packet = channel.recv(PACKET)
    message: Message = json.loads(packet or b'{"error": "its first process died"}')
    if "error" in message:
        raise NodeFailed(f"{node.name}: {message['error']}")
    return message


def _run_first_process(node: LabNode, channel: socket.socket, group: Path) -> NoReturn:
    try:
        os.setsid()
        _close_all_except(channel.fileno())
        if node.isolated:
            _enter_namespaces(group)
            set_up_node(node)
        else:
            syscalls.adopt_orphans()
        channel.send(b"{}")
    except BaseException as error:  # noqa: BLE001 - the error is sent to the fabric, which raises it
        channel.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    NodeInit(node, channel).run()


def _enter_namespaces(group: Path) -> None:
    has_cgroups = _enter_new_group(group)
    syscalls.unshare(NAMESPACES)
    if has_cgroups:
        _enter_group(group / "init")  # cgroup v2 permits controllers for subgroups only in a group without processes


def _enter_new_group(group: Path) -> bool:
    if not (CGROUPS / "cgroup.procs").exists():
        return False
    group.mkdir(parents=True, exist_ok=True)
    for parent in (CGROUPS, BRANCH, group.parent):
        delegate_controllers(parent)
    _enter_group(group)
    return True


def _enter_group(group: Path) -> None:
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text("0")


def _close_all_except(descriptor: int) -> None:
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 4096)
