"""Tests of relays on the real kernel: permitted callers, reachable addresses, and complete removal."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import kernel_links
import pytest
from fake_machine import FakeUplinkRecords
from job_access_host import Host, as_user, is_alive, job_access, open_host
from mount_namespace import dead_file_server, run_with_own_mounts

from virtcloud.agent.job_access import relay_processes
from virtcloud.agent.job_access.connect_program import request_connection
from virtcloud.agent.job_access.job_relays import NoFreeAddress
from virtcloud.agent.job_access.relay_processes import find_listener_pid, start_relay
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.errors import Refused

Run = Callable[[Callable[[], object]], object]
UID = 4711
HANGING_RELAY = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
os.listdir(sys.argv[2])
"""
JOB = job_access("12.pbs", 100, g1=["10.0.0.1/24", "fd00::1/64"])


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder that has a short path and that all users may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def test_the_user_reaches_guests_by_name_and_address(in_namespace: Run, root: Path) -> None:
    """The complete answer arrives, although the user closes the sending direction first."""

    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24", "fd00::1/64")
            host.relays.ensure(JOB, UID)
            return as_user(
                UID, lambda: b" ".join(host.send(JOB, line) for line in ("g1 7", "10.0.0.1 7", "fd00::1 7")).decode()
            )

    assert in_namespace(work) == "hello hello hello"


def test_other_users_are_refused(in_namespace: Run, root: Path) -> None:
    """The mode of the socket excludes other users. In addition, the relay checks the user ID."""

    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            path = host.relays.socket_path(JOB.key)
            by_mode = as_user(UID + 1, lambda: str(request_connection(str(path), "g1 7")))
            path.chmod(0o666)
            return by_mode, as_user(UID + 1, lambda: str(request_connection(str(path), "g1 7")))

    by_mode, by_user_id = in_namespace(work)  # type: ignore[misc]
    assert by_mode.endswith("Permission denied; check that the job still runs")
    assert by_user_id == "forbidden: only the job's user may send requests"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("192.0.2.1 7", "failed: 192.0.2.1 7: expected a guest's name or an address in 10.0.0.0/24 or fd00::/64"),
        ("127.0.0.1 7", "failed: 127.0.0.1 7: expected a guest's name or an address in 10.0.0.0/24 or fd00::/64"),
        ("g2 7", "failed: g2 7: 'g2' does not appear to be an IPv4 or IPv6 address"),
        ("g1 70000", "failed: g1 70000: expected HOST PORT"),
        ("g1 9", "refused: no process listens at g1 9"),
    ],
)
def test_a_relay_refuses_addresses_outside_the_cluster(in_namespace: Run, root: Path, line: str, answer: str) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            with pytest.raises(OSError, match=r"refused|failed") as raised:
                request_connection(str(host.relays.socket_path(JOB.key)), line)
            return raised.value.strerror

    assert in_namespace(work) == answer


def test_no_relay_enters_the_network_of_another_cluster(in_namespace: Run, root: Path) -> None:
    """While the agent did not run, the cluster ended, and its VLAN ID passed to another cluster."""

    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "b"), "10.0.0.1/24")
            with pytest.raises(Refused) as raised:
                host.relays.ensure(JOB.model_copy(update={"network": "a"}), UID)
            return str(raised.value)

    assert in_namespace(work) == (
        "cluster 12.pbs: expected bridge br100 of network a, but the bridge belongs to cluster b"
    )


def test_a_guest_reaches_nothing_through_the_port(in_namespace: Run, root: Path) -> None:
    """A guest reaches no service of the host, neither at the address of the job's port nor in other networks."""

    def work() -> object:
        with open_host(root) as host:
            _serve_on_all_addresses(host)
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            port = _address_of_the_port(host)
            host.run_in_guest("vc100-1", "ip", "route", "add", "default", "via", port)
            attempts = [
                host.run_in_guest("vc100-1", "busybox", "nc", "-w", "1", to, "7") for to in (port, "198.51.100.1")
            ]
            ping_exit_code = host.run_in_guest("vc100-1", "ping", "-c", "1", "-W", "1", port).returncode
            return [process.stdout for process in attempts], ping_exit_code

    assert in_namespace(work) == (["", ""], 0), "the port answers pings, but forwards nothing"


def _serve_on_all_addresses(host: Host) -> None:
    """Set up what a guest must not reach: another network with forwarding, and a service on port 7 of the host."""
    index = host.kernel.add_bridge("lan0")
    kernel_links.addr("add", index=index, address="198.51.100.1", prefixlen=24)
    kernel_links.link("set", index=index, state="up")
    Path("/proc/sys/net/ipv4/conf/all/forwarding").write_text("1")
    server = host.exit_stack.enter_context(socket.create_server(("0.0.0.0", 7)))  # noqa: S104 - in a namespace of the test
    assert server


def _address_of_the_port(host: Host) -> str:
    command = [
        "nsenter",
        "--net",
        "--target",
        str(find_listener_pid(host.relays.socket_path(JOB.key))),
        "ip",
        "-4",
        "-br",
        "addr",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1].partition("/")[0]  # noqa: S603


def test_equal_addresses_are_reached_by_the_own_job_only(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            other = job_access("13.pbs", 200, g1=["10.0.0.1/24"])
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24", service="sh|-c|read x; echo first")
            host.guest("vc200-1", host.bridge(200, "b"), "10.0.0.1/24", service="sh|-c|read x; echo second")
            host.relays.ensure(JOB, UID)
            host.relays.ensure(other, UID)
            return host.send(JOB, "g1 7"), host.send(other, "g1 7")

    assert in_namespace(work) == (b"first\n", b"second\n")


def test_a_relay_survives_a_restart_of_the_agent(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            before = find_listener_pid(host.relays.socket_path(JOB.key))
            host.restart()
            host.relays.ensure(JOB, UID)
            return before, find_listener_pid(host.relays.socket_path(JOB.key))

    before, after = in_namespace(work)  # type: ignore[misc]
    assert before == after is not None


def test_a_connection_survives_the_end_of_its_relay(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            with request_connection(str(host.relays.socket_path(JOB.key)), "g1 7") as connection:
                connection.settimeout(10)
                os.kill(find_listener_pid(host.relays.socket_path(JOB.key)) or 0, 9)
                connection.sendall(b"still here")
                return connection.recv(100)

    assert in_namespace(work) == b"still here"


def test_a_dead_relay_is_created_again(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            os.kill(find_listener_pid(host.relays.socket_path(JOB.key)) or 0, 9)
            host.relays.ensure(JOB, UID)
            return host.send(JOB, "g1 7")

    assert in_namespace(work) == b"hello"


def test_a_relay_has_no_privileges(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            return Path(f"/proc/{find_listener_pid(host.relays.socket_path(JOB.key))}/status").read_text().splitlines()

    status = dict(line.partition(":\t")[::2] for line in in_namespace(work))  # type: ignore[attr-defined]
    assert (status["Uid"], status["CapEff"]) == ("65534\t65534\t65534\t65534", "0" * 16)


def test_another_agent_removes_a_relay_completely(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            before = {interface.name for interface in host.kernel.list_interfaces()}
            host.relays.ensure(JOB, UID)
            process = find_listener_pid(host.relays.socket_path(JOB.key)) or 0
            host.restart()
            host.relays.ensure_none(JOB.key)
            host.relays.ensure_none(JOB.key)
            return (
                {interface.name for interface in host.kernel.list_interfaces()} == before,
                _ends_soon(process),
                list(root.iterdir()),
            )

    assert in_namespace(work) == (True, True, [])


def test_removing_the_segment_ends_the_relay(in_namespace: Run, root: Path) -> None:
    """The relay ends even if the agent was killed and the job has no record."""

    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            process = find_listener_pid(host.relays.socket_path(JOB.key)) or 0
            SegmentInterfaces(host.kernel, FakeUplinkRecords()).ensure_no_segment("a", 100)
            return sorted(interface.name for interface in host.kernel.list_interfaces()), _ends_soon(process)

    assert in_namespace(work) == (["lo"], True)


def _ends_soon(process: int) -> bool:
    for _ in range(200):
        if not is_alive(process):
            return True
        time.sleep(0.05)
    return False


def test_a_port_without_bridge_is_found_and_removed(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            bridge = host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            host.kernel.delete(bridge.index)
            segments = SegmentInterfaces(host.kernel, FakeUplinkRecords())
            segments_found = [(segment.cluster, segment.vlan) for segment in segments.read()]
            segments.ensure_no_segment("a", 100)
            return segments_found, sorted(interface.name for interface in host.kernel.list_interfaces())

    assert in_namespace(work) == ([("a", 100)], ["lo"])


def test_a_detached_port_is_attached_again(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            bridge = host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            port = host.interface(names.job_port_name("12.pbs", 100))
            host.kernel.change(port.index, master=0)
            faults = [segment.faults for segment in SegmentInterfaces(host.kernel, FakeUplinkRecords()).read()]
            host.relays.ensure(JOB, UID)
            return faults, host.interface(port.name).master == bridge.index

    assert in_namespace(work) == ([("the tagged interface is missing",)], True)


def test_a_relay_without_specification_ends(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            with start_relay() as relay:
                relay.wait_for_namespace()
                host.kernel.add_veth_pair("vcnewj-100", "job0", relay.pid, 1500)
            for _ in range(200):
                if len(host.kernel.list_interfaces()) == 1:
                    break
                time.sleep(0.05)
            return [interface.name for interface in host.kernel.list_interfaces()]

    assert in_namespace(work) == ["lo"]


def test_an_address_in_use_is_skipped(in_namespace: Run, root: Path) -> None:
    """Of six addresses, one belongs to the guest and four are used by another host. The relay uses the sixth."""

    def work() -> object:
        with open_host(root) as host:
            bridge = host.bridge(100, "a")
            host.guest("vc100-1", bridge, "10.0.0.1/29")
            host.guest("vc100-2", bridge, *(f"10.0.0.{last}/29" for last in (2, 4, 5, 6)))
            small_subnet = job_access("12.pbs", 100, g1=["10.0.0.1/29"])
            host.relays.ensure(small_subnet, UID)
            return host.run_in_guest("vc100-1", "ping", "-c", "1", "-W", "2", "10.0.0.3").returncode

    assert in_namespace(work) == 0


def test_a_subnet_without_a_free_address_is_named(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/30", "10.0.0.2/30")
            with pytest.raises(NoFreeAddress) as raised:
                host.relays.ensure(job_access("12.pbs", 100, g1=["10.0.0.1/30"]), UID)
            return str(raised.value)

    message = "10.0.0.0/30: no address is free for this host; do not use the last addresses of the subnet"
    assert in_namespace(work) == message


def test_a_missing_bridge_is_named(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host, pytest.raises(Refused) as raised:
            host.relays.ensure(JOB, UID)
        return str(raised.value)

    assert in_namespace(work) == "cluster 12.pbs: expected bridge br100 of virtcloud, found none on this host"


def test_a_relay_that_ignores_its_end_is_killed(in_namespace: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_processes, "RELAY_END_S", 0.1)

    def work() -> object:
        with open_host(root) as host:
            host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            process = find_listener_pid(host.relays.socket_path(JOB.key)) or 0
            os.kill(process, signal.SIGSTOP)
            host.relays.ensure_none(JOB.key)
            return _ends_soon(process), list(root.iterdir())

    assert in_namespace(work) == (True, [])


def test_a_relay_that_cannot_be_killed_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay's process hangs at a file server. The agent waits only a limited time for the process's end."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: file systems of the real kernel need root")
    monkeypatch.setattr(relay_processes, "RELAY_END_S", 0.1)
    monkeypatch.setattr(relay_processes, "RELAY_KILL_S", 0.1)
    path = root / ".relay-12.pbs"
    dead = root / "dead"
    dead.mkdir()

    def work() -> str:
        with dead_file_server(dead) as processes:
            relay = processes.enter_context(
                subprocess.Popen([sys.executable, "-c", HANGING_RELAY, path, dead], stdout=subprocess.PIPE)  # noqa: S603
            )
            assert relay.stdout
            assert relay.stdout.readline() == b"listening\n"
            with pytest.raises(Refused) as raised, open_host(root) as host:
                host.relays.ensure_none("12.pbs")
            return str(raised.value).replace(str(relay.pid), "PID")

    assert run_with_own_mounts(work) == (
        f"relay {path}: expected process PID to end 0.1 s after SIGKILL, but it still runs; find the reason with: "
        "cat /proc/PID/status /proc/PID/stack; the removal will be tried again"
    )


def test_a_relay_that_accepts_no_connection_is_named(
    in_namespace: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's queue of connections to a stopped process is full."""
    monkeypatch.setattr(relay_processes, "RELAY_QUERY_S", 0.1)

    def work() -> str:
        path = root / ".relay-12.pbs"
        with socket.socket(socket.AF_UNIX) as stopped, open_host(root) as host, ExitStack() as callers:
            stopped.bind(str(path))
            stopped.listen(0)
            callers.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
            with pytest.raises(Refused) as raised:
                host.relays.ensure_none("12.pbs")
            return str(raised.value)

    assert in_namespace(work) == (
        f"relay {root}/.relay-12.pbs: expected the process to accept a connection within 0.1 s; find the process with: "
        f"ss -xlp src {root}/.relay-12.pbs; the removal will be tried again"
    )


def test_a_relay_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_processes, "RELAY_START_S", 0.1)
    monkeypatch.setattr(relay_processes.relay_program, "__file__", "/dev/stdin")  # a program that prints nothing
    message = "expected 'apart' and its process ID, got 'no output within 0 s'; see the agent's log"
    with pytest.raises(Refused, match=message), start_relay() as relay:
        relay.wait_for_namespace()
