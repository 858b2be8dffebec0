"""Tests of guests' filters on the real kernel: attacks of a guest on the network around it, and faults of the table."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from virtcloud.agent.local_host import _open_filters
from virtcloud.agent.network import names, nftables
from virtcloud.agent.network.guest_filters import BROADCASTS_PER_S, RULES, ObservedFilters, render_table
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters, _run
from virtcloud.agent.settings import AgentSettings
from virtcloud.model.errors import Refused

Run = Callable[[Callable[[], object]], object]

GUEST, STRANGER, SWITCH = "020000000001", "020000000002", "020000000009"
PORT, OTHER_PORT = names.guest_port_name("a", "g1", 100), names.guest_port_name("a", "g2", 100)
GUEST_MAC = "02:00:00:00:00:01"
BROADCAST = "ffffffffffff"
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
RECEIVE_BUFFER = 16 << 20  # bytes; a frame takes about 800 bytes in the kernel
IPV4, TEST_FRAME = "0800", "88b5"
ATTACKS = {
    "a foreign source address": SWITCH + STRANGER + TEST_FRAME,
    "an 802.1Q tag": SWITCH + GUEST + "81000065" + TEST_FRAME,
    "an 802.1ad tag": SWITCH + GUEST + "88a80065" + TEST_FRAME,
    "two tags": SWITCH + GUEST + "8100006581000066" + TEST_FRAME,
    "an old double tag": SWITCH + GUEST + "91000065" + TEST_FRAME,
    "a spanning tree BPDU": "0180c2000000" + GUEST + "0026424203" + "00" * 35,
    "a BPDU of Cisco's PVST": "01000ccccccd" + GUEST + "0032aaaa0300000c010b" + "00" * 42,
    "CDP": "01000ccccccc" + GUEST + "0020aaaa0300000c2000" + "00" * 24,
    "an Ethernet II frame to Cisco's group": "01000ccccccc" + GUEST + TEST_FRAME,
    "LLDP to one switch": SWITCH + GUEST + "88cc",
    "LACP to one switch": SWITCH + GUEST + "8809",
    "EAPOL to one switch": SWITCH + GUEST + "888e",
    "a pause frame to one switch": SWITCH + GUEST + "8808",
    "GARP to the bridges' group": "0180c2000021" + GUEST + TEST_FRAME,
}
FILTERS = {
    "a foreign source address": ("@guests",),
    "an 802.1Q tag": ("8021q",),
    "an 802.1ad tag": ("8021q",),
    "two tags": ("8021q",),
    "an old double tag": ("8021q",),
    "a spanning tree BPDU": ("< 0x0600", "01:80:c2"),
    "a BPDU of Cisco's PVST": ("< 0x0600", "01:00:0c"),
    "CDP": ("< 0x0600", "01:00:0c"),
    "an Ethernet II frame to Cisco's group": ("01:00:0c",),
    "LLDP to one switch": ("0x88cc",),
    "LACP to one switch": ("0x88cc",),
    "EAPOL to one switch": ("0x88cc",),
    "a pause frame to one switch": ("0x88cc",),
    "GARP to the bridges' group": ("01:80:c2",),
}
"""Parts of the rules that drop the frames of each attack."""


class Wire:
    """A guest and a switch on one bridge. Frames of the guest arrive at the switch unless they are dropped."""

    def __init__(self, guest: socket.socket, switch: socket.socket) -> None:
        self._guest, self._switch = guest, switch

    def passes(self, frame: str) -> bool:
        """Send a frame as the guest. Return whether the frame arrives before a harmless frame that follows it."""
        serial = os.urandom(8)
        self._guest.send((bytes.fromhex(frame) + serial).ljust(60, b"\0"))
        return serial in self._frames_until(BROADCAST + GUEST + TEST_FRAME)

    def count_broadcasts(self, number: int) -> int:
        serial = os.urandom(8)
        for _ in range(number):
            self._guest.send((bytes.fromhex(BROADCAST + GUEST + TEST_FRAME) + serial).ljust(60, b"\0"))
        return self._frames_until(SWITCH + GUEST + TEST_FRAME).count(serial)

    def _frames_until(self, last: str) -> bytes:
        mark, received = os.urandom(8), b""
        self._guest.send((bytes.fromhex(last) + mark).ljust(60, b"\0"))
        with suppress(TimeoutError):
            while mark not in received:
                received += self._switch.recv(2048)
        return received


def nft(*arguments: str) -> str:
    """Return the output of the program ``nft``."""
    return subprocess.run(["nft", *arguments], text=True, capture_output=True, check=True).stdout  # noqa: S603, S607 - Debian's nft


@contextmanager
def connected() -> Iterator[Wire]:
    """Connect a guest and a switch by a bridge. The guest's port has a guest's name."""
    with closing(NetlinkKernel()) as kernel:
        bridge = kernel.add_bridge("br100")
        for name, peer in (("guest", PORT), ("switch", "uplink")):
            kernel._socket.link("add", ifname=name, kind="veth", peer=peer)
            kernel.disable_host_ip(kernel._index(name), name)
            kernel.change(kernel._index(name), up=True)
            kernel.change(kernel._index(peer), master=bridge, up=True)
        kernel.change(bridge, up=True)
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as guest,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3)) as switch,
        ):
            switch.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
            guest.bind(("guest", 0))
            switch.bind(("switch", 0))
            switch.settimeout(0.2)
            wire = Wire(guest, switch)
            deadline = time.monotonic() + 10
            while not wire.passes(BROADCAST + GUEST + TEST_FRAME):  # a new port does not forward frames immediately
                assert time.monotonic() < deadline
            switch.settimeout(10)
            yield wire


def set_filters(*removed: str) -> None:
    """Replace the table by the table for one guest, without the rules that contain a text of ``removed``."""
    rules = {
        chain: tuple(rule for rule in of_chain if not any(part in rule for part in removed))
        for chain, of_chain in RULES.items()
    }
    _run(render_table([(PORT, GUEST_MAC)], rules))


@pytest.fixture(scope="module")
def passes(in_namespace: Run) -> dict[str, list[bool]]:
    """Whether each attack passes without filters, with all filters, and without its own filter."""

    def work() -> object:
        with connected() as wire:
            passes = {attack: [wire.passes(frame)] for attack, frame in ATTACKS.items()}
            set_filters()
            for attack, frame in ATTACKS.items():
                passes[attack].append(wire.passes(frame))
            for attack, frame in ATTACKS.items():
                set_filters(*FILTERS[attack])
                passes[attack].append(wire.passes(frame))
            return passes

    return in_namespace(work)  # type: ignore[return-value]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_guest_cannot_send(passes: dict[str, list[bool]], attack: str) -> None:
    """The frame passes without its filter: no other filter hides the result."""
    assert passes[attack] == [True, False, True]


def test_a_guest_may_send_ordinary_frames(in_namespace: Run) -> None:
    frames = {
        "unicast": SWITCH + GUEST + IPV4,
        "ARP": BROADCAST + GUEST + "0806",
        "IPv4 multicast": "01005e000001" + GUEST + IPV4,
        "IPv6 multicast": "333300000001" + GUEST + "86dd",
    }

    def work() -> object:
        with connected() as wire:
            set_filters()
            return {name: wire.passes(frame) for name, frame in frames.items()}

    assert in_namespace(work) == dict.fromkeys(frames, True)


def test_a_broadcast_storm_is_limited(in_namespace: Run) -> None:
    number = 5 * BROADCASTS_PER_S

    def work() -> object:
        with connected() as wire:
            before = wire.count_broadcasts(number)
            set_filters()
            start = time.monotonic()
            return before, wire.count_broadcasts(number), time.monotonic() - start

    before, after, seconds = in_namespace(work)  # type: ignore[misc]
    assert before == number
    assert BROADCASTS_PER_S <= after <= BROADCASTS_PER_S * (1 + seconds)


def test_replacing_the_filters_is_read_back(in_namespace: Run) -> None:
    first, second = ((PORT, GUEST_MAC),), ((PORT, GUEST_MAC), (OTHER_PORT, "02:00:00:00:00:02"))

    def work() -> object:
        filters = NftablesFilters()
        observed = [filters.read()]
        for ports in (first, second, second, (), ()):
            filters.replace(ports)
            observed.append(filters.read())
        return observed

    expected = [(), first, second, second, (), ()]
    assert in_namespace(work) == [ObservedFilters(frozenset(ports)) for ports in expected]


@pytest.mark.parametrize(
    "command",
    [
        "flush chain bridge virtcloud guest",
        "delete rule bridge virtcloud ingress handle HANDLE",
        "insert rule bridge virtcloud guest accept",
        "flush set bridge virtcloud ports",
        "flush set bridge virtcloud guests",
        "flush ruleset",
        "add chain bridge virtcloud ingress { policy drop; }",
    ],
)
def test_a_change_by_somebody_else_is_found(in_namespace: Run, command: str) -> None:
    ports = ((PORT, GUEST_MAC),)

    def work() -> object:
        filters = NftablesFilters()
        filters.replace(ports)
        listing = nft("-a", "list chain bridge virtcloud ingress")
        handle = next(line.rpartition(" ")[2] for line in listing.splitlines() if "jump" in line)
        nft(command.replace("HANDLE", handle))
        return filters.read() == ObservedFilters(frozenset(ports))

    assert in_namespace(work) is False


def test_without_nf_tables_the_filters_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_commands: str) -> object:
        raise Refused("the kernel refused the filters of guests")

    monkeypatch.setattr(nftables, "_run", refuse)
    settings = AgentSettings.model_validate({"element": "h1", "sbf": "http://sbf", "guests": {"filters": "off"}})
    assert _open_filters(settings) is None


def test_tables_of_others_are_left_alone(in_namespace: Run) -> None:
    def work() -> object:
        nft("add table bridge filter; add table inet virtcloud")
        filters = NftablesFilters()
        filters.replace(((PORT, GUEST_MAC),))
        filters.replace(())
        return nft("list tables")

    assert in_namespace(work) == "table bridge filter\ntable inet virtcloud\n"
