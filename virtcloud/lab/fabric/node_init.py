"""The first process of a node: creates the node's file tree and network, and runs programs on request.

The process exchanges messages with the fabric over a Unix socket (SOCK_SEQPACKET). Each message is one JSON object.
Requests are ``network``, ``spawn`` and ``signal``. A ``spawn`` message also carries the file descriptors of the
program's standard streams.
"""

import array
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import termios
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from virtcloud.lab.fabric import syscalls
from virtcloud.lab.fabric.plan import LabNode

PACKET = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")
BOOT_ID, WHOLE_PROC = Path("/proc/sys/kernel/random/boot_id"), Path("/run/proc")


def set_up_node(node: LabNode) -> None:
    """Mount the node's writable folders in this mount namespace, write the node's files, and set its host name."""
    syscalls.mount_private()
    binds = (*((f"{node.disk}{folder}", folder) for folder in node.disk_folders), *node.binds)
    sources = [(os.open(source, os.O_PATH), target) for source, target in binds if Path(source).exists()]
    for place in node.tmpfs:
        if Path(place).is_dir():
            syscalls.mount("tmpfs", place, "tmpfs", 0, "mode=1777" if place.endswith("tmp") else "mode=755")
    for descriptor, target in sources:
        syscalls.bind(f"/proc/self/fd/{descriptor}", target)
        os.close(descriptor)
    for name, text in node.files.items():
        _write(Path(name), text)
    for name in sorted(node.files):
        if name.startswith("/run/etc/") and Path(name.removeprefix("/run")).exists():
            syscalls.bind(name, name.removeprefix("/run"))
    syscalls.mount("proc", "/proc", "proc")
    if node.disk:
        _create_boot_id()
    syscalls.mount("sysfs", "/sys", "sysfs")
    _mount_cgroups()
    socket.sethostname(node.name)
    for name, value in node.sysctls.items():
        with contextlib.suppress(OSError):
            Path("/proc/sys", name.replace(".", "/")).write_text(value)


def _create_boot_id() -> None:
    """Mount a new boot ID over the kernel's boot ID in /proc, so that each boot has a different ID.

    Also mount a second /proc: a container may mount /proc only if the node has a /proc without other mounts in it.
    """
    _write(Path("/run/boot_id"), f"{uuid.uuid4()}\n")
    syscalls.bind("/run/boot_id", str(BOOT_ID))
    WHOLE_PROC.mkdir()
    syscalls.mount("proc", str(WHOLE_PROC), "proc")


def _mount_cgroups() -> None:
    with contextlib.suppress(OSError):  # without cgroup v2, guests have no resource limits
        syscalls.mount("cgroup2", str(CGROUPS), "cgroup2")
        delegate_controllers(CGROUPS)


def delegate_controllers(group: Path) -> None:
    """Enable all controllers of a control group for the groups below it."""
    for controller in (group / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # continue if a controller cannot be enabled
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600 if "key" in path.name else 0o644)


def run_batch(program: str, lines: tuple[str, ...]) -> str:
    """Run ``ip``, ``bridge`` or ``tc`` once for many lines. Return the error message of the program, or ""."""
    if not lines:
        return ""
    completed = subprocess.run(  # noqa: S603 - constant programs; the lines come from the plan
        [program, "-batch", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    return f"{program}: {completed.stderr.strip()}" if completed.returncode else ""


def _disable_offloads(port: str) -> str:
    command = ["ethtool", "-K", port, "tx", "off", "txvlan", "off", "rxvlan", "off"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the port comes from the plan
    return f"ethtool: {completed.stderr.strip()}" if completed.returncode else ""


class NodeInit:
    """Starts and reaps the programs of one node."""

    def __init__(self, node: LabNode, channel: socket.socket) -> None:
        """Store the node and the ``channel`` to the fabric."""
        self._node = node
        self._channel = channel
        self._calls: dict[int, int] = {}
        self._wakeup = socket.socketpair()
        self._verbs: Mapping[str, Callable[[dict[str, Any], list[int]], None]] = {
            "network": self._network,
            "spawn": self._spawn,
            "signal": self._signal,
        }

    def run(self) -> NoReturn:
        """Answer the fabric's requests until the fabric ends."""
        for end in self._wakeup:
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            readable, _, _ = select.select([self._channel, self._wakeup[0]], [], [])
            if self._wakeup[0] in readable:
                self._wakeup[0].recv(4096)
                self._reap()
            if self._channel in readable:
                self._answer()

    def _answer(self) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._channel, PACKET, 8)
        if not packet:
            os._exit(0)
        request = json.loads(packet)
        try:
            self._verbs[request["do"]](request, descriptors)
        except ProgramNotExecutable as error:
            self._send({"id": request["id"], "error": str(error), "code": error.exit})
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._send({"id": request["id"], "error": str(error)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.send(json.dumps(message).encode())

    def _network(self, request: dict[str, Any], _: list[int]) -> None:
        node = self._node
        errors = [
            *(_disable_offloads(port) for port in node.no_offload_ports),
            run_batch("ip", node.ip),
            run_batch("bridge", node.bridge),
            run_batch("tc", node.tc),
        ]
        error = "; ".join(message for message in errors if message)
        self._send({"id": request["id"], "error": error} if error else {"id": request["id"]})

    def _spawn(self, request: dict[str, Any], descriptors: list[int]) -> None:
        child = _start_program(request, descriptors)
        child.returncode = 0  # _reap() waits for the process, so the Popen object must not wait for it
        self._calls[child.pid] = request["id"]
        self._send({"id": request["id"], "spawned": child.pid})

    def _signal(self, request: dict[str, Any], _: list[int]) -> None:
        target = -request["pid"] if request.get("group") else request["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(target, request["number"])
        self._send({"id": request["id"]})

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                request_id = self._calls.pop(ended[0], None)
                if request_id is not None:
                    self._send({"id": request_id, "exit": os.waitstatus_to_exitcode(ended[1])})


class ProgramNotExecutable(Exception):
    """A program could not be started. ``exit`` is the exit code that a shell would return: 127 or 126 (POSIX)."""

    def __init__(self, program: str, error: OSError) -> None:
        """Format the message as a shell does."""
        missing = isinstance(error, FileNotFoundError)
        super().__init__(f"{program}: {'not found' if missing else error.strerror}")
        self.exit = 127 if missing else 126


def _start_program(request: dict[str, Any], streams: list[int]) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = streams
    try:
        return subprocess.Popen(  # noqa: S603 - this function must run any program
            request["argv"],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd="/",
            env=request["environment"],
            start_new_session=True,
            preexec_fn=_acquire_terminal if request.get("tty") else None,  # noqa: PLW1509 - this process has no threads
        )
    except OSError as error:
        raise ProgramNotExecutable(request["argv"][0], error) from error


def _acquire_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def set_window(descriptor: int, rows: int, columns: int) -> None:
    """Set a terminal's size in characters."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, array.array("H", [rows, columns, 0, 0]))
