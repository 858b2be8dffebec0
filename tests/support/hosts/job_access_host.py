"""A host with clusters on the real kernel, for tests of relays.

The host is a network namespace. Each cluster has a bridge and guests. Each guest is a separate network namespace.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.agent.job_access.access import JobAccess
from virtcloud.agent.job_access.connect_program import request_connection
from virtcloud.agent.job_access.job_relays import JobRelays
from virtcloud.agent.job_access.relay_processes import find_listener_pid
from virtcloud.agent.network import names
from virtcloud.agent.network.address_probe import AddressProbe, IpAddress
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.kernel import NetlinkKernel

GUEST = """
echo apart
read addresses
ip link set lo up
for one in $addresses; do
  case "$one" in *:*) ip addr add "$one" dev eth0 nodad ;; *) ip addr add "$one" dev eth0 ;; esac
done
ip link set eth0 up
echo up
exec busybox nc -ll -p 7 -e "$@"
"""


def require_listener_pid(path: Path) -> int:
    """Return the ID of the process that listens at ``path``. Raise AssertionError if no process listens there."""
    pid = find_listener_pid(path)
    assert pid is not None, f"no relay listens at {path}"
    return pid


def kill_relay(path: Path) -> None:
    os.kill(require_listener_pid(path), signal.SIGKILL)


@dataclass
class Host:
    """The host, used from inside its network namespace. ``relays`` are the relays of the host's agent."""

    root: Path
    kernel: NetlinkKernel
    exit_stack: ExitStack
    relays: JobRelays
    guests: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def restart(self) -> None:
        self.relays = make_relays(self.root)

    def bridge(self, vlan: int, cluster: str) -> KernelInterface:
        index = self.kernel.add_bridge(names.bridge_name(vlan))
        self.kernel.change(index, alias=names.ownership_alias(cluster))
        self.kernel.disable_host_ip(index, names.bridge_name(vlan))
        self.kernel.change(index, up=True)
        return self.interface(names.bridge_name(vlan))

    def guest(self, name: str, bridge: KernelInterface, *addresses: str, service: str = "cat") -> subprocess.Popen[str]:
        """Start a guest. For each connection to its port 7, the guest runs the command ``service``.

        In ``service``, the character ``|`` separates the command's arguments.
        """
        argv = ["unshare", "--net", "--kill-child", "sh", "-c", GUEST, "guest", *service.split("|")]
        process = subprocess.Popen(argv, stdin=-1, stdout=-1, text=True)  # noqa: S603
        self.exit_stack.enter_context(process)
        self.exit_stack.callback(process.kill)
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "apart\n"
        index = self.kernel.add_veth_pair(name, "eth0", process.pid, 1500)
        self.kernel.change(index, master=bridge.index, up=True)
        process.stdin.write(" ".join(addresses) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "up\n"
        self.guests[name] = process
        return process

    def run_in_guest(self, guest: str, *argv: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "--net", "--target", str(self.guests[guest].pid), *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)  # noqa: S603

    def interface(self, name: str) -> KernelInterface:
        return next(interface for interface in self.kernel.list_interfaces() if interface.name == name)

    def send(self, access: JobAccess, line: str, text: bytes = b"hello") -> bytes:
        with request_connection(str(self.relays.socket_path(access.key)), line) as connection:
            connection.settimeout(10)
            connection.sendall(text)
            connection.shutdown(1)
            return b"".join(iter(lambda: connection.recv(100), b""))


class QuickProbe(AddressProbe):
    """A prober with short waits, because this test setup neither loses nor delays frames."""

    def probe(self, addresses: Iterable[IpAddress], seconds: float) -> frozenset[IpAddress]:
        return super().probe(addresses, min(seconds, 0.1))


def make_relays(root: Path) -> JobRelays:
    return JobRelays(lambda: closing(NetlinkKernel()), root, QuickProbe)


@contextmanager
def open_host(root: Path) -> Iterator[Host]:
    """Create the host. The calling thread must already be in a separate network namespace."""
    with closing(NetlinkKernel()) as kernel, ExitStack() as exit_stack:
        yield Host(root, kernel, exit_stack, make_relays(root))


def job_access(key: str, vlan: int, **guests: list[str]) -> JobAccess:
    guest_specs = [{"name": name, "host": "h1", "image": "x", "addresses": given} for name, given in guests.items()]
    return JobAccess.model_validate({"key": key, "user": "nobody", "vlan": vlan, "guests": guest_specs})


def is_alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def as_user(uid: int, work: Callable[[], str]) -> str:
    """Call a function as another user in a child process. Return the function's result or the error message."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            result = work()
        except OSError as error:
            result = error.strerror or str(error)
        os.write(writable, result.encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        result = answer.read()
    os.waitpid(child, 0)
    return result


UID = 4711
"""The user ID of the job's user."""
JOB = job_access("12.pbs", 100, g1=["10.0.0.1/24", "fd00::1/64"])
