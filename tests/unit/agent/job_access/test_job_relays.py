"""Tests of jobs' relays on the real kernel.

A relay is a process that opens TCP connections to the guests of a job's cluster for the job's user. A relay is dead if
the process has ended. A dead relay is lost when no connection through the relay is left.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.hosts.job_access_host import JOB, UID, Host, as_user, job_access, kill_relay, open_host
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.job_access import connect_program
from virtcloud.agent.job_access.connect_program import request_connection
from virtcloud.agent.job_access.job_relays import NoFreeAddress
from virtcloud.agent.job_access.relay_processes import find_listener_pid, query_relay, wait_for_end
from virtcloud.agent.job_access.relay_program import MAX_ANSWERS
from virtcloud.model.errors import Refused


def test_the_user_reaches_guests_by_name_and_address(in_namespace: Run, root: Path) -> None:

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

    def work() -> tuple[str, str]:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            path = host.relays.socket_path(JOB.key)
            by_mode = as_user(UID + 1, lambda: str(request_connection(str(path), "g1 7")))
            path.chmod(0o666)
            return by_mode, as_user(UID + 1, lambda: str(request_connection(str(path), "g1 7")))

    by_mode, by_user_id = in_namespace(work)
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
        "cluster 12.pbs: expected bridge br100 of network a, but the bridge still belongs to cluster b: try again later"
    )


def test_a_guest_reaches_nothing_through_the_relays_port(in_namespace: Run, root: Path) -> None:

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
            ping_exit_code = host.run_in_guest("vc100-1", "ping", "-c", "1", "-W", "5", port).returncode
            return [process.stdout for process in attempts], ping_exit_code

    assert in_namespace(work) == (["", ""], 0), "expected the relays' port to answer pings, but to forward no packets"


def _serve_on_all_addresses(host: Host) -> None:
    """Set up what a guest must not reach: a network to which the host forwards packets, and port 7 of the host."""
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


def test_a_user_occupies_a_limited_number_of_threads(in_namespace: Run, root: Path) -> None:
    """The agent's own requests are not limited, because the agent replaces a relay that does not answer."""

    def work() -> tuple[str, bool, int, bytes]:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            path = host.relays.ensure(JOB, UID)
            with ExitStack() as silent:
                with _effective_user(UID):
                    for _ in range(MAX_ANSWERS + 6):
                        silent.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
                    with pytest.raises(ConnectionRefusedError) as raised:
                        request_connection(str(path), "g1 7")
                is_answered = (query_relay(path, "about") or "").startswith("ok ")
                threads = len(list(Path(f"/proc/{find_listener_pid(path)}/task").iterdir()))
            with _effective_user(UID):
                return str(raised.value.strerror), is_answered, threads, _send_when_possible(host, "g1 7")

    refusal, is_answered, threads, answer = in_namespace(work)
    assert refusal == "refused: too many simultaneous requests; try again"
    assert (is_answered, threads <= MAX_ANSWERS + 2, answer) == (True, True, b"hello")


@contextmanager
def _effective_user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def _send_when_possible(host: Host, line: str) -> bytes:
    ends = time.monotonic() + 30
    while True:
        try:
            return host.send(JOB, line)
        except ConnectionRefusedError:
            assert time.monotonic() < ends
            time.sleep(0.01)


def test_a_job_reaches_its_own_guest_despite_equal_addresses(in_namespace: Run, root: Path) -> None:
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
    def work() -> tuple[int | None, int | None]:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            before = find_listener_pid(host.relays.socket_path(JOB.key))
            host.restart()
            host.relays.ensure(JOB, UID)
            return before, find_listener_pid(host.relays.socket_path(JOB.key))

    before, after = in_namespace(work)
    assert before == after is not None


def test_a_connection_survives_the_end_of_its_relay(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            host.relays.ensure(JOB, UID)
            with request_connection(str(host.relays.socket_path(JOB.key)), "g1 7") as connection:
                connection.settimeout(10)
                kill_relay(host.relays.socket_path(JOB.key))
                connection.sendall(b"still here")
                return connection.recv(100)

    assert in_namespace(work) == b"still here"


def test_a_dead_relay_is_lost_when_its_last_connection_ends(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            path, before = host.relays.ensure(JOB, UID), host.relays.is_lost(JOB.key)
            with request_connection(str(path), "g1 7") as connection:
                kill_relay(path)
                wait_for_end(path, find_listener_pid(path))
                connected = host.relays.is_lost(JOB.key)
                host.restart()
                with pytest.raises(Refused) as raised:
                    host.relays.ensure(JOB, UID)
                connection.settimeout(10)
                connection.sendall(b"still here")
                received = connection.recv(100)
            _wait_until_lost(host)
            host.relays.ensure(JOB, UID)
            return before, connected, str(raised.value), received, host.send(JOB, "g1 7")

    assert in_namespace(work) == (
        False,
        False,
        (
            "cluster 12.pbs: the job's relay has ended, but connections through the relay still exist; the "
            "relay will be created again after the end of these connections"
        ),
        b"still here",
        b"hello",
    )


def _wait_until_lost(host: Host) -> None:
    ends = time.monotonic() + 30
    while not host.relays.is_lost(JOB.key):  # the kernel deletes the namespace in the background
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_changed_access_replaces_a_dead_relay_with_connections(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            path = host.relays.ensure(JOB, UID)
            with request_connection(str(path), "g1 7"):
                kill_relay(path)
                wait_for_end(path, find_listener_pid(path))
                host.relays.ensure_none(JOB.key)
                host.relays.ensure(job_access("12.pbs", 100, g1=["10.0.0.1/24"]), UID)
            return host.send(JOB, "g1 7")

    assert in_namespace(work) == b"hello"


def test_a_live_relay_is_replaced_when_its_specification_changes(in_namespace: Run, root: Path) -> None:
    def work() -> tuple[bool, bytes]:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            path = host.relays.ensure(JOB, UID)
            before = find_listener_pid(path)
            with request_connection(str(path), "g1 7"):
                host.relays.ensure(job_access("12.pbs", 100, g2=["10.0.0.1/24"]), UID)
            return find_listener_pid(path) == before, host.send(JOB, "g2 7")

    assert in_namespace(work) == (False, b"hello")


def test_a_dead_relay_is_created_again(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/24")
            path = host.relays.ensure(JOB, UID)
            kill_relay(path)
            wait_for_end(path, find_listener_pid(path))
            _wait_until_lost(host)
            host.relays.ensure(JOB, UID)
            return host.send(JOB, "g1 7")

    assert in_namespace(work) == b"hello"


def test_a_relay_has_no_privileges(in_namespace: Run, root: Path) -> None:
    def work() -> list[str]:
        with open_host(root) as host:
            host.bridge(100, "a")
            host.relays.ensure(JOB, UID)
            return Path(f"/proc/{find_listener_pid(host.relays.socket_path(JOB.key))}/status").read_text().splitlines()

    status = dict(line.partition(":\t")[::2] for line in in_namespace(work))
    assert (status["Uid"], status["CapEff"]) == ("65534\t65534\t65534\t65534", "0" * 16)


def test_an_address_in_use_is_skipped(in_namespace: Run, root: Path) -> None:

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

    message = (
        "10.0.0.0/30: expected a free address for this host, found none: do not give guests the last addresses of the "
        "subnet"
    )
    assert in_namespace(work) == message


def test_a_relay_reaches_guests_in_subnets_with_a_free_address(in_namespace: Run, root: Path) -> None:
    def work() -> tuple[bytes, bool]:
        with open_host(root) as host:
            host.guest("vc100-1", host.bridge(100, "a"), "10.0.0.1/30", "10.0.0.2/30", "10.1.0.1/24")
            access = job_access("12.pbs", 100, g1=["10.0.0.1/30", "10.1.0.1/24"])
            path = host.relays.ensure(access, UID)
            before = find_listener_pid(path)
            host.restart()
            return host.send(access, "g1 7"), find_listener_pid(host.relays.ensure(access, UID)) == before

    assert in_namespace(work) == (b"hello", True)


def test_a_missing_bridge_is_named(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with open_host(root) as host, pytest.raises(Refused) as raised:
            host.relays.ensure(JOB, UID)
        return str(raised.value)

    assert in_namespace(work) == "cluster 12.pbs: expected bridge br100 of virtcloud, found none on this host"


def test_input_after_the_guest_has_closed_is_ignored() -> None:
    module = connect_program.__name__
    code = (
        f"import socket; from {module} import _copy_input; "
        "program, guest = socket.socketpair(); guest.close(); _copy_input(program)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"data", capture_output=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, b"")
