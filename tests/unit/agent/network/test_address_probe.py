"""Tests of address probes on a real bridge.

The guest is another network namespace (`attached_guest`), or a socket for raw Ethernet frames (`guest_socket`).
"""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.address_probe import ARP, AddressProbe
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.errors import Refused

IPV4_ADDRESS, IPV6_ADDRESS, ABSENT_ADDRESS = IPv4Address("10.0.0.2"), IPv6Address("fd00::ab:2"), IPv4Address("10.0.0.9")
TIMEOUT_S = 20.0
REQUEST = "ffffffffffff 020000000002 0806 0001 0800 06 04 0001"
CLAIM = bytes.fromhex(f"{REQUEST} 020000000002 00000000 000000000000 0a000002")
ANNOUNCEMENT = bytes.fromhex(f"{REQUEST} 020000000002 0a000002 000000000000 0a000002")


class Clock:
    """A clock that advances by 10 ms whenever the time is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S603, S607


@contextmanager
def attached_guest() -> Iterator[Callable[..., str]]:
    """Connect a network namespace to br100. Yield a function that runs ``ip`` in the namespace.

    The host's IP stack does not use br100.
    """
    kernel = NetlinkKernel()
    kernel.disable_host_ip(kernel.add_bridge("br100"), "br100")
    kernel.close()
    namespace = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"],  # noqa: S607
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert namespace.stdin
    assert namespace.stdout
    with namespace:
        namespace.stdout.readline()
        ip("link", "add", "guest", "type", "veth", "peer", "eth0", "netns", str(namespace.pid))
        for link in ("guest", "br100"):
            ip("link", "set", link, "up", *(("master", "br100") if link == "guest" else ()))

        def run_ip_in_guest(*arguments: str) -> str:
            argv = ("nsenter", "-t", str(namespace.pid), "-n", "ip", *arguments)
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout  # noqa: S603

        run_ip_in_guest("link", "set", "eth0", "up")
        yield run_ip_in_guest
        namespace.stdin.close()


@contextmanager
def guest_socket() -> Iterator[socket.socket]:
    for arguments in ("br100 type bridge", "guest type veth peer eth0"):
        ip("link", "add", *arguments.split())
    for arguments in ("guest up master br100", "eth0 up", "br100 up"):
        ip("link", "set", *arguments.split())
    while '"state":"forwarding"' not in ip("-json", "-details", "link", "show", "guest"):
        time.sleep(0.01)  # the kernel drops frames until it has detected the carrier
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as link:
        link.bind(("eth0", ARP))
        link.settimeout(0)
        yield link


def count_frames(link: socket.socket) -> int:
    count = 0
    while True:
        try:
            link.recv(2048)
        except BlockingIOError:
            return count
        count += 1


def test_only_present_addresses_answer(in_namespace: Run) -> None:
    def work() -> object:
        with attached_guest() as run_ip_in_guest, AddressProbe("br100") as prober:
            run_ip_in_guest("addr", "add", f"{IPV4_ADDRESS}/24", "dev", "eth0")
            run_ip_in_guest("addr", "add", f"{IPV6_ADDRESS}/64", "dev", "eth0", "nodad")
            answered = prober.probe({IPV4_ADDRESS, IPV6_ADDRESS}, TIMEOUT_S)
            return answered, prober.probe({IPV4_ADDRESS, ABSENT_ADDRESS}, 0.3)

    assert in_namespace(work) == ({IPV4_ADDRESS, IPV6_ADDRESS}, {IPV4_ADDRESS})


def test_a_probe_does_not_disturb_duplicate_address_detection(in_namespace: Run) -> None:
    """The guest's duplicate address detection (RFC 4862) runs while the agent probes the address."""

    def work() -> object:
        with attached_guest() as run_ip_in_guest, AddressProbe("br100") as prober:
            prober.probe({IPV6_ADDRESS}, 0.1)
            run_ip_in_guest("addr", "add", f"{IPV6_ADDRESS}/64", "dev", "eth0")
            deadline = time.monotonic() + TIMEOUT_S
            while not (answered := prober.probe({IPV6_ADDRESS}, 0.05)) and time.monotonic() < deadline:
                continue
            return answered, "dadfailed" in run_ip_in_guest("addr", "show", "dev", "eth0")

    assert in_namespace(work) == ({IPV6_ADDRESS}, False)


def test_the_probing_host_has_no_address(in_namespace: Run) -> None:
    def work() -> object:
        with attached_guest() as run_ip_in_guest, AddressProbe("br100") as prober:
            run_ip_in_guest("addr", "add", f"{IPV4_ADDRESS}/24", "dev", "eth0")
            prober.probe({IPV4_ADDRESS}, TIMEOUT_S)
            return ip("-o", "addr", "show", "dev", "br100"), run_ip_in_guest("neigh", "show")

    assert in_namespace(work) == ("", "")


def test_a_claimed_address_is_not_probed(in_namespace: Run) -> None:
    """The agent's probe would look like a claim by another host (RFC 5227 §2.1.1)."""
    clock = Clock()

    def work() -> object:
        with guest_socket() as link, AddressProbe("br100", clock) as prober:
            for clock.now in (0, 5):
                link.send(CLAIM)
                assert prober._poll.poll(TIMEOUT_S * 1000), "expected the frame of the guest"
                prober.probe({IPV4_ADDRESS}, 0.1)
            while_claimed = count_frames(link)
            clock.now = 7
            prober.probe({IPV4_ADDRESS}, 0.1)
            return while_claimed, count_frames(link) > 0

    assert in_namespace(work) == (0, True), (
        "expected no probe within 6 s of the first claim, and a probe afterwards despite the repeated claim"
    )


def test_an_announcement_between_two_probes_is_received(in_namespace: Run) -> None:
    def work() -> object:
        with guest_socket() as link, AddressProbe("br100") as prober:
            link.send(ANNOUNCEMENT)
            assert prober._poll.poll(TIMEOUT_S * 1000), "expected the frame of the guest"
            return prober.probe({IPV4_ADDRESS}, TIMEOUT_S), count_frames(link)

    assert in_namespace(work) == ({IPV4_ADDRESS}, 0)


def test_a_missing_bridge_is_named(in_namespace: Run) -> None:
    def work() -> object:
        with pytest.raises(Refused) as raised:
            AddressProbe("br100")
        return str(raised.value)

    assert in_namespace(work) == "cannot probe addresses on bridge br100 of this host: No such device"
