"""Tests of relays on the real kernel: the addresses that each user reaches, and what remains after a removal."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_machine import FakeUplinkRecords
from job_access_host import Host, as_user, host, is_alive, opening

from virtcloud.agent.job_access.connect_program import request_connection
from virtcloud.agent.job_access.job_relays import NoFreeAddress, find_listener_pid, start_relay
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.errors import Refused

Run = Callable[[Callable[[], object]], object]
USER = 4711
JOB = opening("12.pbs", 100, g1=["10.0.0.1/24", "fd00::1/64"])


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder with a short path, which all users may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def test_the_user_reaches_guests_by_name_and_address(in_namespace: Run, root: Path) -> None:
    """The complete answer arrives after the user closed the sending direction: each direction closes separately."""

    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24", "fd00::1/64")
            here.ways.ensure(JOB, USER)
            return as_user(
                USER, lambda: b" ".join(here.says(JOB, line) for line in ("g1 7", "10.0.0.1 7", "fd00::1 7")).decode()
            )

    assert in_namespace(work) == "hello hello hello"


def test_nobody_else_may_ask(in_namespace: Run, root: Path) -> None:
    """The socket's mode excludes other users, and the relay checks the user ID as well."""

    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24")
            here.ways.ensure(JOB, USER)
            path = here.ways.socket_path(JOB.key)
            first = as_user(USER + 1, lambda: str(request_connection(str(path), "g1 7")))
            path.chmod(0o666)
            return first, as_user(USER + 1, lambda: str(request_connection(str(path), "g1 7")))

    first, second = in_namespace(work)  # type: ignore[misc]
    assert first.endswith("Permission denied; check that the job still runs")
    assert second == "forbidden: only the job's user may send requests"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("192.0.2.1 7", "failed: 192.0.2.1 7: expected a guest's name or an address in 10.0.0.0/24 or fd00::/64"),
        ("127.0.0.1 7", "failed: 127.0.0.1 7: expected a guest's name or an address in 10.0.0.0/24 or fd00::/64"),
        ("g2 7", "failed: g2 7: 'g2' does not appear to be an IPv4 or IPv6 address"),
        ("g1 70000", "failed: g1 70000: expected HOST PORT"),
        ("g1 9", "refused: no process listens at g1 9"),
    ],
)
def test_what_is_not_of_the_cluster_is_refused_by_name(in_namespace: Run, root: Path, line: str, said: str) -> None:
    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24")
            here.ways.ensure(JOB, USER)
            with pytest.raises(OSError, match=r"refused|failed") as caught:
                request_connection(str(here.ways.socket_path(JOB.key)), line)
            return caught.value.strerror

    assert in_namespace(work) == said


def test_a_guest_gets_nowhere_through_the_port(in_namespace: Run, root: Path) -> None:
    """A guest reaches neither the host's services, nor the host's networks, nor the port's own address."""

    def work() -> object:
        with host(root) as here:
            _serve_on_all_addresses(here)
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24")
            here.ways.ensure(JOB, USER)
            port = _address_of_the_port(here)
            here.inside("vc100-1", "ip", "route", "add", "default", "via", port)
            tried = [here.inside("vc100-1", "busybox", "nc", "-w", "1", to, "7") for to in (port, "198.51.100.1")]
            pinged = here.inside("vc100-1", "ping", "-c", "1", "-W", "1", port).returncode
            return [one.stdout for one in tried], pinged

    assert in_namespace(work) == (["", ""], 0), "the port is there, and leads nowhere"


def _serve_on_all_addresses(here: Host) -> None:
    """Set up another network, forwarding, and a service on port 7 of the host, so that a path to them is detected."""
    index = here.kernel.add_bridge("lan0")
    here.kernel._socket.addr("add", index=index, address="198.51.100.1", prefixlen=24)
    here.kernel._socket.link("set", index=index, state="up")
    Path("/proc/sys/net/ipv4/conf/all/forwarding").write_text("1")
    served = here.opened.enter_context(socket.create_server(("0.0.0.0", 7)))  # noqa: S104 - in a namespace of the test
    assert served


def _address_of_the_port(here: Host) -> str:
    shown = [
        "nsenter",
        "--net",
        "--target",
        str(find_listener_pid(here.ways.socket_path(JOB.key))),
        "ip",
        "-4",
        "-br",
        "addr",
    ]
    return subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split()[-1].partition("/")[0]  # noqa: S603


def test_equal_addresses_are_reached_by_their_own_jobs_only(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            other = opening("13.pbs", 200, g1=["10.0.0.1/24"])
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24", says="sh|-c|read x; echo first")
            here.guest("vc200-1", here.bridge(200, "b"), "10.0.0.1/24", says="sh|-c|read x; echo second")
            here.ways.ensure(JOB, USER)
            here.ways.ensure(other, USER)
            return here.says(JOB, "g1 7"), here.says(other, "g1 7")

    assert in_namespace(work) == (b"first\n", b"second\n")


def test_a_relay_survives_a_restart_of_the_agent(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24")
            here.ways.ensure(JOB, USER)
            before = find_listener_pid(here.ways.socket_path(JOB.key))
            here.restart()
            here.ways.ensure(JOB, USER)
            return before, find_listener_pid(here.ways.socket_path(JOB.key))

    before, after = in_namespace(work)  # type: ignore[misc]
    assert before == after is not None


def test_a_connection_outlives_the_relay_that_made_it(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24")
            here.ways.ensure(JOB, USER)
            with request_connection(str(here.ways.socket_path(JOB.key)), "g1 7") as link:
                link.settimeout(10)
                os.kill(find_listener_pid(here.ways.socket_path(JOB.key)) or 0, 9)
                link.sendall(b"still here")
                return link.recv(100)

    assert in_namespace(work) == b"still here"


def test_a_relay_that_died_is_made_again(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/24")
            here.ways.ensure(JOB, USER)
            os.kill(find_listener_pid(here.ways.socket_path(JOB.key)) or 0, 9)
            here.ways.ensure(JOB, USER)
            return here.says(JOB, "g1 7")

    assert in_namespace(work) == b"hello"


def test_a_relay_has_no_privilege(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            here.bridge(100, "a")
            here.ways.ensure(JOB, USER)
            return Path(f"/proc/{find_listener_pid(here.ways.socket_path(JOB.key))}/status").read_text().splitlines()

    status = dict(line.partition(":\t")[::2] for line in in_namespace(work))  # type: ignore[attr-defined]
    assert (status["Uid"], status["CapEff"]) == ("65534\t65534\t65534\t65534", "0" * 16)


def test_another_agent_removes_a_relay_completely(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            here.bridge(100, "a")
            before = {link.name for link in here.kernel.list_interfaces()}
            here.ways.ensure(JOB, USER)
            process = find_listener_pid(here.ways.socket_path(JOB.key)) or 0
            here.restart()
            here.ways.ensure_none(JOB.key)
            here.ways.ensure_none(JOB.key)
            return {link.name for link in here.kernel.list_interfaces()} == before, _ends(process), list(root.iterdir())

    assert in_namespace(work) == (True, True, [])


def test_removing_the_segment_ends_the_relay(in_namespace: Run, root: Path) -> None:
    """The relay ends even if its agent was killed and the job has no record."""

    def work() -> object:
        with host(root) as here:
            here.bridge(100, "a")
            here.ways.ensure(JOB, USER)
            process = find_listener_pid(here.ways.socket_path(JOB.key)) or 0
            SegmentInterfaces(here.kernel, FakeUplinkRecords()).ensure_no_segment("a", 100)
            return sorted(link.name for link in here.kernel.list_interfaces()), _ends(process)

    assert in_namespace(work) == (["lo"], True)


def _ends(process: int) -> bool:
    for _ in range(200):
        if not is_alive(process):
            return True
        time.sleep(0.05)
    return False


def test_a_port_whose_bridge_is_gone_is_seen_and_removed(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            bridge = here.bridge(100, "a")
            here.ways.ensure(JOB, USER)
            here.kernel.delete(bridge.index)
            links = SegmentInterfaces(here.kernel, FakeUplinkRecords())
            seen = [(one.cluster, one.vlan) for one in links.read()]
            links.ensure_no_segment("a", 100)
            return seen, sorted(link.name for link in here.kernel.list_interfaces())

    assert in_namespace(work) == ([("a", 100)], ["lo"])


def test_a_detached_port_is_attached_again(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            bridge = here.bridge(100, "a")
            here.ways.ensure(JOB, USER)
            port = here.named(names.job_port_name("12.pbs", 100))
            here.kernel.change(port.index, master=0)
            faults = [one.faults for one in SegmentInterfaces(here.kernel, FakeUplinkRecords()).read()]
            here.ways.ensure(JOB, USER)
            return faults, here.named(port.name).master == bridge.index

    assert in_namespace(work) == ([("the tagged interface is missing",)], True)


def test_a_relay_without_specification_ends(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            with start_relay() as made:
                made.wait_for_namespace()
                here.kernel.add_veth_pair("vcnewj-100", "job0", made.pid, 1500)
            for _ in range(200):
                if len(here.kernel.list_interfaces()) == 1:
                    break
                time.sleep(0.05)
            return [link.name for link in here.kernel.list_interfaces()]

    assert in_namespace(work) == ["lo"]


def test_an_address_that_somebody_has_is_passed_over(in_namespace: Run, root: Path) -> None:
    """Of six addresses, one belongs to the guest and four are used by other hosts."""

    def work() -> object:
        with host(root) as here:
            bridge = here.bridge(100, "a")
            here.guest("vc100-1", bridge, "10.0.0.1/29")
            here.guest("vc100-2", bridge, *(f"10.0.0.{last}/29" for last in (2, 4, 5, 6)))
            small = opening("12.pbs", 100, g1=["10.0.0.1/29"])
            here.ways.ensure(small, USER)
            return here.inside("vc100-1", "ping", "-c", "1", "-W", "2", "10.0.0.3").returncode

    assert in_namespace(work) == 0


def test_a_subnet_without_a_free_address_is_named(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here:
            here.guest("vc100-1", here.bridge(100, "a"), "10.0.0.1/30", "10.0.0.2/30")
            with pytest.raises(NoFreeAddress) as caught:
                here.ways.ensure(opening("12.pbs", 100, g1=["10.0.0.1/30"]), USER)
            return str(caught.value)

    message = "10.0.0.0/30: no address is free for this host; do not use the last addresses of the subnet"
    assert in_namespace(work) == message


def test_a_missing_bridge_is_named(in_namespace: Run, root: Path) -> None:
    def work() -> object:
        with host(root) as here, pytest.raises(Refused) as caught:
            here.ways.ensure(JOB, USER)
        return str(caught.value)

    assert (
        in_namespace(work)
        == "cluster 12.pbs: expected bridge br100 of virtcloud for the job's port, found none on this host"
    )
