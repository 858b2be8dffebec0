"""The power of nodes: simulates a power failure of a node, and boots the node again.

Without power, only the node's disk (`LabNode.disk`) and its cables (veth pairs) remain. The fabric moves the node's end
of each cable into the fabric's network namespace, and sets this end down. Deleting this end would also delete the other
end, such as a port of a switch.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from virtcloud.lab.fabric import syscalls
from virtcloud.lab.fabric.node_init import PACKET
from virtcloud.lab.fabric.nodes import NodeFailed, NodeHandle, fork_first_process, receive_report
from virtcloud.lab.fabric.plan import LabNode, node_from_data

END_S = 30.0
POLL_S = 0.02


def create_disk(node: LabNode) -> None:
    """Create a node's disk: a file system in memory that exists until the lab ends.

    Do nothing if the node has no disk.
    """
    if not node.disk:
        return
    Path(node.disk).mkdir(parents=True, exist_ok=True)
    syscalls.mount("tmpfs", node.disk, "tmpfs", 0, "mode=755")
    for folder in node.disk_folders:
        Path(f"{node.disk}{folder}").mkdir(parents=True)


def power_off(handle: NodeHandle, ports: Iterable[str]) -> None:
    """Kill all processes of a node, and remove everything except its disk and its ``ports``. Idempotent."""
    if not handle.has_power:
        return
    with _opened(f"/proc/{handle.pid}/ns/net") as namespace:
        handle.lose_power()
        _kill_first_process(handle)
        lines = (f"link set {port} down name {_waiting_name(handle, port)} netns {os.getpid()}" for port in ports)
        _run_ip(handle, lines, namespace)
    _remove_groups(handle.group)


def power_on(handle: NodeHandle, ports: Iterable[str]) -> None:
    """Boot a node, and create its interfaces. Do not start the node's services. Idempotent."""
    if handle.has_power:
        return
    pid, channel = _boot(handle)
    lines = (f"link set {_waiting_name(handle, port)} name {port} netns {pid}" for port in ports)
    _run_ip(handle, lines)
    handle.boot(pid, channel)
    handle.network()


def _kill_first_process(handle: NodeHandle) -> None:
    process = os.pidfd_open(handle.pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], END_S)[0]:
            raise NodeFailed(f"{handle.node.name}: its processes did not end within {END_S:.0f} s")
    finally:
        os.close(process)


def _boot(handle: NodeHandle) -> tuple[int, socket.socket]:
    """Start a node's first process. Return the ID of this process, and the node's channel.

    The fabric has threads and must not fork. Therefore a program (this module) forks the process.
    """
    fabric_end, node_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with node_end:
        fabric_end.send(json.dumps(asdict(handle.node)).encode())
        command = [sys.executable, "-m", __name__, str(node_end.fileno()), str(handle.group)]
        subprocess.run(command, stdin=subprocess.DEVNULL, pass_fds=[node_end.fileno()], check=False)  # noqa: S603 - this module
    reports = [receive_report(handle.node, fabric_end) for _ in range(2)]
    return next(report["pid"] for report in reports if "pid" in report), fabric_end


def _waiting_name(handle: NodeHandle, port: str) -> str:
    """Return the name (at most 15 characters) of ``port`` in the fabric's network namespace while the node is off."""
    return f"w{handle.node.address.rpartition('.')[2]}-{port}"[:15]


def _run_ip(handle: NodeHandle, lines: Iterable[str], namespace: int | None = None) -> None:
    enter = [] if namespace is None else ["nsenter", f"--net=/proc/self/fd/{namespace}"]
    completed = subprocess.run(  # noqa: S603 - constant programs; the lines come from the plan
        [*enter, "ip", "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=False,
        pass_fds=[] if namespace is None else [namespace],
    )
    if completed.returncode:
        raise NodeFailed(f"{handle.node.name}: ip: {completed.stderr.strip()}")


def _remove_groups(group: Path) -> None:
    deadline = time.monotonic() + END_S
    while group.exists() and time.monotonic() < deadline:
        folders = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
        for folder in (*folders, group):
            with suppress(OSError):
                folder.rmdir()
        time.sleep(POLL_S)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def main(channel: socket.socket, group: Path) -> None:
    """Receive the description of a node, fork the node's first process, and send the process ID to the fabric."""
    node = node_from_data(json.loads(channel.recv(PACKET)))
    pid = fork_first_process(node, channel, group)
    channel.send(json.dumps({"pid": pid}).encode())


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
