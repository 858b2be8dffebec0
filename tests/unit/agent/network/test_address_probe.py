"""Tests of the address probe on a real bridge. The IP stack of another namespace is the guest."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address

import pytest

from virtcloud.agent.network.address_probe import ARP, AddressProbe
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.errors import Refused

Run = Callable[[Callable[[], object]], object]
FOUR, SIX, NONE = IPv4Address("10.0.0.2"), IPv6Address("fd00::ab:2"), IPv4Address("10.0.0.9")
LONG = 20.0
REQUEST = "ffffffffffff 020000000002 0806 0001 0800 06 04 0001"
CLAIM = bytes.fromhex(f"{REQUEST} 020000000002 00000000 000000000000 0a000002")
ANNOUNCED = bytes.fromhex(f"{REQUEST} 020000000002 0a000002 000000000000 0a000002")


class Clock:
    """A clock that advances by 10 ms at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout  # noqa: S603, S607


@contextmanager
def guest() -> Iterator[Callable[..., str]]:
    """Connect a network namespace to br100, which the host's IP stack does not use; yield ``ip`` of the namespace."""
    kernel = NetlinkKernel()
    kernel.disable_host_ip(kernel.add_bridge("br100"), "br100")
    kernel.close()
    inside = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"],  # noqa: S607
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert inside.stdin
    assert inside.stdout
    with inside:
        inside.stdout.readline()
        ip("link", "add", "guest", "type", "veth", "peer", "eth0", "netns", str(inside.pid))
        for link in ("guest", "br100"):
            ip("link", "set", link, "up", *(("master", "br100") if link == "guest" else ()))

        def within(*words: str) -> str:
            argv = ("nsenter", "-t", str(inside.pid), "-n", "ip", *words)
            return subprocess.run(argv, check=True, capture_output=True, text=True).stdout  # noqa: S603

        within("link", "set", "eth0", "up")
        yield within
        inside.stdin.close()


@contextmanager
def wire() -> Iterator[socket.socket]:
    """Return the other end of a port of br100, on which a test acts as the guest."""
    for words in ("br100 type bridge", "guest type veth peer eth0"):
        ip("link", "add", *words.split())
    for words in ("guest up master br100", "eth0 up", "br100 up"):
        ip("link", "set", *words.split())
    while '"state":"forwarding"' not in ip("-json", "-details", "link", "show", "guest"):
        time.sleep(0.01)  # the kernel detects the carrier after a delay; earlier frames are lost
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as played:
        played.bind(("eth0", ARP))
        played.settimeout(0)
        yield played


def frames(played: socket.socket) -> int:
    count = 0
    while True:
        try:
            played.recv(2048)
        except BlockingIOError:
            return count
        count += 1


def test_only_present_addresses_answer(in_namespace: Run) -> None:
    def work() -> object:
        with guest() as within, AddressProbe("br100") as prober:
            within("addr", "add", f"{FOUR}/24", "dev", "eth0")
            within("addr", "add", f"{SIX}/64", "dev", "eth0", "nodad")
            answered = prober.probe({FOUR, SIX}, LONG)
            return answered, prober.probe({FOUR, NONE}, 0.3)

    assert in_namespace(work) == ({FOUR, SIX}, {FOUR})


def test_a_probe_does_not_disturb_duplicate_address_detection(in_namespace: Run) -> None:
    """Duplicate address detection (RFC 4862) runs during all probes."""

    def work() -> object:
        with guest() as within, AddressProbe("br100") as prober:
            prober.probe({SIX}, 0.1)
            within("addr", "add", f"{SIX}/64", "dev", "eth0")
            ends = time.monotonic() + LONG
            while not (answered := prober.probe({SIX}, 0.05)) and time.monotonic() < ends:
                continue
            return answered, "dadfailed" in within("addr", "show", "dev", "eth0")

    assert in_namespace(work) == ({SIX}, False)


def test_the_probing_host_stays_without_address(in_namespace: Run) -> None:
    def work() -> object:
        with guest() as within, AddressProbe("br100") as prober:
            within("addr", "add", f"{FOUR}/24", "dev", "eth0")
            prober.probe({FOUR}, LONG)
            return ip("-o", "addr", "show", "dev", "br100"), within("neigh", "show")

    assert in_namespace(work) == ("", "")


def test_a_claimed_address_is_not_probed(in_namespace: Run) -> None:
    """The agent's probe would look like a claim by another host (RFC 5227 §2.1.1)."""
    clock = Clock()

    def work() -> object:
        with wire() as played, AddressProbe("br100", clock) as prober:
            for clock.now in (0, 5):
                played.send(CLAIM)
                assert prober._poll.poll(LONG * 1000), "it has not come"
                prober.probe({FOUR}, 0.1)
            during = frames(played)
            clock.now = 7
            prober.probe({FOUR}, 0.1)
            return during, frames(played) > 0

    assert in_namespace(work) == (0, True), "a claim that is said again and again does not keep us silent for ever"


def test_an_announcement_that_came_between_two_questions_is_heard(in_namespace: Run) -> None:
    def work() -> object:
        with wire() as played, AddressProbe("br100") as prober:
            played.send(ANNOUNCED)
            assert prober._poll.poll(LONG * 1000), "it has not come"
            return prober.probe({FOUR}, LONG), frames(played)

    assert in_namespace(work) == ({FOUR}, 0)


def test_a_bridge_that_is_not_there_is_named(in_namespace: Run) -> None:
    def work() -> object:
        with pytest.raises(Refused) as caught:
            AddressProbe("br100")
        return str(caught.value)

    assert in_namespace(work) == "cannot probe addresses on bridge br100 of this host: No such device"
