import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, TCP, UDP, fragment
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from support.hosts.metadata_world import (
    FIRST,
    LIMIT_S,
    NO_ANSWER,
    SECOND,
    SHORT_S,
    World,
    add_address,
    make_runner,
    make_segment,
)
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.host_services.dnsmasq_config import ADDRESS, ADDRESS6, MAC
from virtcloud.agent.host_services.guest_identity import BURST
from virtcloud.agent.host_services.metadata_program import CONNECTIONS

pytestmark = pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed")

TEST_FRAME = 0x88B5  # for local experiments (IEEE 802)
NOBODY = "0.0.0.0"  # noqa: S104 - a source address


@pytest.fixture
def in_world(in_namespace: Run, unshare: Callable[[], None]) -> Callable[..., Any]:
    return make_runner(in_namespace, unshare)


def test_each_guest_reads_its_own_seed(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        return [(guest.host_key(), guest.fetch("/latest/meta-data/local-ipv4")) for guest in world.guests]

    expected = [("key of n1 in c1", (200, FIRST)), ("key of n2 in c1", (200, SECOND))]
    assert in_world(work) == expected


def test_the_service_answers_by_ipv6(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        return [
            guest.fetch("/latest/meta-data/local-hostname", f"{ADDRESS6}%eth0", source)
            for guest, source in zip(world.guests, ("", "fd00::2"), strict=True)
        ]

    assert in_world(work) == [(200, "n1"), (200, "n2")]


def test_identical_clusters_get_their_own_seeds(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        return [guest.host_key() for guest in world.guests]

    found = in_world(work, make_segment(), make_segment("c2", 101))
    assert found == ["key of n1 in c1", "key of n2 in c1", "key of n1 in c2", "key of n2 in c2"]


def test_the_address_of_another_guest_gets_no_answer(in_world: Callable[..., Any]) -> None:
    """A guest may use any IP address. If a request comes from a wrong address, no guest receives an answer."""

    def work(world: World) -> object:
        first, second = world.guests
        second.run(lambda: add_address(f"{FIRST}/32"))
        second.run(lambda: add_address("10.0.0.77/32"))
        received: socket.socket = first.run(open_capture)
        time.sleep(SHORT_S)
        with received:
            answers = [second.fetch("/user-data", source=source, limit_s=SHORT_S) for source in (FIRST, "10.0.0.77")]
            frames = [frame for frame in list_frames(received) if frame.src == MAC and TCP in frame]
        return answers, frames, second.host_key()

    assert in_world(work) == ([NO_ANSWER] * 2, [], "key of n2 in c1")


def open_capture() -> socket.socket:
    capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    capture.bind(("eth0", 3))
    return capture


def list_frames(capture: socket.socket) -> list[Packet]:
    frames: list[Packet] = []
    with suppress(BlockingIOError):
        while True:
            frames.append(Ether(capture.recv(2048, socket.MSG_DONTWAIT)))
    return frames


def receive_until(capture: socket.socket, frame_type: int) -> list[Packet]:
    """Wait for a frame of EtherType ``frame_type``. Then return all frames that have arrived so far."""
    capture.settimeout(10)
    frames = [Ether(capture.recv(2048))]
    while frames[-1].type != frame_type:
        frames.append(Ether(capture.recv(2048)))
    capture.settimeout(None)
    return frames + list_frames(capture)


def test_arp_does_not_redirect_answers_to_another_guest(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        first, second = world.guests
        first.run(lambda: send_frame(discover()))  # dnsmasq must not replace a permanent neighbour entry
        first.host_key()
        lie = ARP(op=1, hwsrc="02:00:00:00:00:02", psrc=FIRST, pdst=FIRST)  # a gratuitous ARP request
        second.run(lambda: send_frame(Ether(src="02:00:00:00:00:02", dst=MAC) / lie))
        return first.host_key()

    assert in_world(work) == "key of n1 in c1"


def discover() -> Ether:
    """Return a DHCPDISCOVER of the first guest, without the broadcast flag, so that a server may answer by unicast."""
    header = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / IP(src=NOBODY, dst="255.255.255.255")
    bootp = BOOTP(chaddr=bytes.fromhex("020000000001"), xid=7)
    return header / UDP(sport=68, dport=67) / bootp / DHCP(options=[("message-type", "discover"), "end"])


def send_frame(frame: Packet, times: int = 5) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind(("eth0", 0))
        for _ in range(times):
            sender.send(bytes(frame))


def test_a_guest_cannot_answer_in_place_of_the_server(in_world: Callable[..., Any]) -> None:
    """A guest that answered could send a seed to other guests, and become their administrator."""

    def work(world: World) -> object:
        first, second = world.guests
        own = "02:00:00:00:00:02"
        received: socket.socket = first.run(open_capture)
        lies = (
            Ether(src=own, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=own, psrc=ADDRESS, pdst=ADDRESS),
            Ether(src=own, dst="02:00:00:00:00:01") / ARP(op=2, hwsrc=own, psrc=ADDRESS, pdst=FIRST),
            advertise(own, "fe80::ff:fe00:2"),
            Ether(src=own, dst="33:33:ff:00:00:01")
            / IPv6(src=ADDRESS6, dst="ff02::1:ff00:1")
            / ICMPv6ND_NS(tgt="fd00::1"),
            Ether(src=own, dst="33:33:00:00:00:01", type=TEST_FRAME) / b"last",
        )
        for lie in lies:
            second.run(partial(send_frame, lie))
        with received:
            frames = [frame for frame in receive_until(received, TEST_FRAME) if frame.src == own]
        arrived = [frame for frame in frames if frame.type == TEST_FRAME or claims_server(frame)]
        return {frame.type for frame in arrived}, first.host_key()

    assert in_world(work) == ({TEST_FRAME}, "key of n1 in c1")


def claims_server(frame: Packet) -> bool:
    if ARP in frame:
        return bool(frame[ARP].psrc == ADDRESS)
    claimed = frame[ICMPv6ND_NA].tgt if ICMPv6ND_NA in frame else frame[IPv6].src
    return bool(claimed == ADDRESS6)


def advertise(mac: str, source: str) -> Packet:
    header = Ether(src=mac, dst="33:33:00:00:00:01") / IPv6(src=source, dst="ff02::1")
    advertisement: Packet = header / ICMPv6ND_NA(tgt=ADDRESS6, O=1, R=0, S=0) / ICMPv6NDOptDstLLAddr(lladdr=mac)
    return advertisement


def test_a_foreign_mac_address_gets_no_answer(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        second = world.guests[1]
        second.run(lambda: pretend_to_be("02:00:00:00:00:01", f"{FIRST}/32"))
        return second.fetch("/user-data", source=FIRST, limit_s=SHORT_S), world.guests[0].host_key()

    assert in_world(work) == (NO_ANSWER, "key of n1 in c1")


def pretend_to_be(mac: str, address: str) -> None:
    kernel_links.link("set", index=kernel_links.find_index("eth0"), address=mac)
    add_address(address)


def test_idle_connections_of_a_guest_do_not_delay_other_guests(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        first, second = world.guests
        idle = first.run(lambda: [socket.create_connection((ADDRESS, 80), LIMIT_S) for _ in range(CONNECTIONS)])
        answers = first.fetch("/meta-data", limit_s=SHORT_S), second.host_key()
        for connection in idle:
            connection.close()
        return answers

    assert in_world(work) == (NO_ANSWER, "key of n2 in c1")


def test_a_flood_of_connections_does_not_delay_other_guests(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        first, second = world.guests
        accepted = first.run(lambda: count_accepted(3 * BURST))
        return BURST <= accepted < 2 * BURST, second.host_key()

    assert in_world(work) == (True, "key of n2 in c1")


def test_fragments_cannot_pass_the_limit_of_connections(in_world: Callable[..., Any]) -> None:
    """The rules recognize a new connection by TCP flags. This test sends the flags in the second fragment."""

    def work(world: World) -> object:
        first = world.guests[0]
        whole, parts = (IP(src=FIRST, dst=ADDRESS) / TCP(sport=port, dport=80, flags="S") for port in (4000, 4001))
        received: socket.socket = first.run(open_capture)
        for packet in (*fragment(parts, 8), whole):
            first.run(partial(send_frame, Ether(src="02:00:00:00:00:01", dst=MAC) / packet, 1))
        time.sleep(SHORT_S)
        with received:
            answers = {frame[TCP].dport for frame in list_frames(received) if frame.src == MAC and TCP in frame}
        return answers & {4000, 4001}

    assert in_world(work) == {4000}


def count_accepted(attempts: int) -> int:
    """Start ``attempts`` connections at once. Return how many the server answered within ``SHORT_S`` seconds."""
    opened = [socket.socket() for _ in range(attempts)]
    for connection in opened:
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.connect((ADDRESS, 80))
    time.sleep(SHORT_S)
    accepted = 0
    for connection in opened:
        with suppress(OSError):
            connection.getpeername()
            accepted += 1
        accepted += connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        connection.close()
    return accepted
