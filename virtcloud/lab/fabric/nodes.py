"""Nodes as the fabric sees them: started by fork into fresh namespaces, reached over a packet socket."""

import hashlib
import itertools
import json
import os
import signal
import socket
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Queue
from typing import Any, NoReturn

from virtcloud.lab.fabric import syscalls
from virtcloud.lab.fabric.node_init import CGROUPS, PACKET, NodeInit, delegate_controllers, set_up_node
from virtcloud.lab.fabric.plan import LabNode

NAMESPACES = syscalls.NEWNS | syscalls.NEWNET | syscalls.NEWUTS | syscalls.NEWIPC | syscalls.NEWPID | syscalls.NEWCGROUP
BRANCH = CGROUPS / "virtcloud-lab"
Message = dict[str, Any]


class NodeFailed(Exception):
    """A node could not be made or could not do what it was told; the message carries its words."""


class ProgramNotStarted(NodeFailed):
    """A program could not be started; ``exit`` is the code with which a shell says so (POSIX: 127 or 126)."""

    def __init__(self, message: str, code: int) -> None:
        """Keep the message and the exit code."""
        super().__init__(message)
        self.exit = code


class RunningProgram:
    """A program on a node: ``exit`` is filled once it ended (negative: the signal it died of)."""

    def __init__(self, pid: int) -> None:
        """Stand for the program with this process id."""
        self.pid = pid
        self.exit: int | None = None
        self.ended = threading.Event()

    def end(self, code: int) -> None:
        """Note how it ended."""
        self.exit = code
        self.ended.set()


class NodeHandle:
    """One node; its methods may be called from any thread."""

    def __init__(self, node: LabNode, pid: int, channel: socket.socket, group: Path) -> None:
        """Take over a node whose first process is ``pid``; ``group`` is its control group, where there are any."""
        self.node = node
        self.pid = pid
        self.group = group
        self._channel = channel
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, Queue[Message]] = {}
        self._running: dict[int, RunningProgram] = {}

    def listen(self) -> None:
        """Start to take in the node's answers; to be called once, when all forking is done."""
        threading.Thread(target=self._listen, daemon=True, name=f"node {self.node.name}").start()

    def network(self) -> None:
        """Let the node set up its interfaces."""
        self._call({"do": "network"}, ())

    def spawn(
        self, argv: Sequence[str], streams: Sequence[int], environment: Mapping[str, str], *, tty: bool = False
    ) -> RunningProgram:
        """Start a program with these three standard streams; raises :class:`NotStarted` when it cannot be."""
        request = {"do": "spawn", "argv": list(argv), "environment": dict(environment), "tty": tty}
        running: RunningProgram = self._call(request, streams)["running"]
        return running

    def signal(self, pid: int, number: int, *, group: bool = False) -> None:
        """Send a signal to a program, or to its whole process group."""
        self._call({"do": "signal", "pid": pid, "number": number, "group": group}, ())

    def _call(self, request: Message, streams: Sequence[int]) -> Message:
        with self._lock:
            number = next(self._numbers)
            answers = self._answers[number] = Queue()
            packet = json.dumps({**request, "id": number}).encode()
            socket.send_fds(self._channel, [packet], list(streams))
        answer = answers.get()
        self._answers.pop(number, None)
        if "code" in answer:
            raise ProgramNotStarted(f"{self.node.name}: {answer['error']}", answer["code"])
        if "error" in answer:
            raise NodeFailed(f"{self.node.name}: {answer['error']}")
        return answer

    def _listen(self) -> None:
        while packet := self._channel.recv(PACKET):
            self._take(json.loads(packet))
        for answers in list(self._answers.values()):
            answers.put({"error": "the node is gone"})
        for running in list(self._running.values()):
            running.end(-signal.SIGKILL)

    def _take(self, message: Message) -> None:
        number = message["id"]
        if "exit" in message:
            self._running.pop(number).end(message["exit"])
            return
        if "spawned" in message:
            message["running"] = self._running[number] = RunningProgram(message["spawned"])
        self._answers[number].put(message)


def lab_cgroup(state: str) -> Path:
    """Give the control group of the lab that lives in the folder ``state``: several may run on one machine."""
    return BRANCH / hashlib.sha256(state.encode()).hexdigest()[:12]


def start_node(node: LabNode, groups: Path) -> NodeHandle:
    """Start a node's first process, in a control group below ``groups``. To be called before any thread runs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    numbers, told = os.pipe()
    child = os.fork()
    if child == 0:
        ours.close()
        _be_parent(node, theirs, told, groups / node.name)
    theirs.close()
    os.close(told)
    pid = int(os.read(numbers, 32) or b"0")
    os.close(numbers)
    if node.isolated:
        os.waitpid(child, 0)
    return NodeHandle(node, pid, ours, groups / node.name)


def wait_until_set_up(handle: NodeHandle) -> None:
    """Wait until a started node says that its file tree stands."""
    message = json.loads(handle._channel.recv(PACKET) or b'{"error": "its first process died"}')  # noqa: SLF001
    if "error" in message:
        raise NodeFailed(f"{handle.node.name}: {message['error']}")


def _be_parent(node: LabNode, channel: socket.socket, told: int, group: Path) -> NoReturn:
    """Enter new namespaces, leave a first process in them, and say its number to the fabric."""
    try:
        os.setsid()
        if not node.isolated:
            syscalls.adopt_orphans()
            os.write(told, str(os.getpid()).encode())
            _be_first(node, channel)
        grouped = _own_group(group)
        syscalls.unshare(NAMESPACES)
        if grouped:
            _enter(group / "init")  # the node's own root group must hold no process before it can be divided
        pid = os.fork()
        if pid == 0:
            _be_first(node, channel)
        os.write(told, str(pid).encode())
    except BaseException:  # noqa: BLE001 - a forked copy must never return into its parent's code
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _own_group(group: Path) -> bool:
    """Put this process into the node's own control group where there is cgroup v2; says whether there is."""
    if not (CGROUPS / "cgroup.procs").exists():
        return False
    group.mkdir(parents=True, exist_ok=True)
    for above in (CGROUPS, BRANCH, group.parent):
        delegate_controllers(above)
    _enter(group)
    return True


def _enter(group: Path) -> None:
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text("0")


def _be_first(node: LabNode, channel: socket.socket) -> NoReturn:
    try:
        _keep_only(channel.fileno())
        if node.isolated:
            set_up_node(node)
        channel.send(b"{}")
    except BaseException as error:  # noqa: BLE001 - told to the fabric, which raises it
        channel.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    NodeInit(node, channel).run()


def _keep_only(descriptor: int) -> None:
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 4096)
