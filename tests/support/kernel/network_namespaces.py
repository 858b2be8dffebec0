"""Network namespaces of the real kernel, connected by veth pairs, for tests with real packets."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Final, Protocol, TypeVar

T = TypeVar("T")
CLONE_NEWNET: Final = 0x40000000


class Run(Protocol):
    """Runs a function elsewhere, for example in a new network namespace, and returns its result."""

    def __call__(self, work: Callable[[], T]) -> T: ...


class NetworkNamespace:
    """The network namespace of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._path = f"/proc/{pid}/ns/net"

    def run(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        enter = ("nsenter", f"--net={self._path}", "--", *argv)
        return subprocess.run(enter, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})  # noqa: S603

    def check(self, script: str) -> str:
        done = self.run("sh", "-ec", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def call(self, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread in the namespace. Sockets that ``work`` creates stay in the namespace."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._enter_and_call, work).result()

    def _enter_and_call(self, work: Callable[[], T]) -> T:
        descriptor = os.open(self._path, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
        os.close(descriptor)
        return work()

    def connect(self, port: str, other: "NetworkNamespace", other_port: str) -> None:
        self.check(f"ip link add {port} type veth peer name {other_port} netns {other.pid}; ip link set {port} up")
        other.check(f"ip link set {other_port} up")


@contextmanager
def network_namespaces(count: int) -> Iterator[list[NetworkNamespace]]:
    command = ("unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec cat")
    with ExitStack() as stack:
        yield [_wait_for(stack.enter_context(_start(command))) for _ in range(count)]


def _start(command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Start a process that ends when its standard input is closed. Popen closes this input when its context ends."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - a shell


def _wait_for(process: subprocess.Popen[bytes]) -> NetworkNamespace:
    assert process.stdout is not None
    process.stdout.readline()
    return NetworkNamespace(process.pid)
