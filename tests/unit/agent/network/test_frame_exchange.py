import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.frame_exchange import (
    ETHER_TYPE,
    EVERYBODY,
    BridgeSocket,
    CheckFrame,
    FrameCounts,
    FrameKind,
    build_check_frame,
    parse_check_frame,
)
from virtcloud.model.errors import Refused
from virtcloud.model.path_check import BridgeEnd, FrameExchange, FrameReport

SECRET, OTHER_SECRET = "ab" * 32, "cd" * 32
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
CABLE = {"bra": "cablea", "brb": "cableb"}
OCTETS = tuple(bytes.fromhex(mac.replace(":", "")) for mac in MACS)


def make_exchange(
    number: int, macs: tuple[str, ...] = MACS, *, secret: str = SECRET, seconds: float = 5
) -> FrameExchange:
    peers = [{"number": peer, "mac": mac} for peer, mac in enumerate(macs) if peer != number]
    keys = {"check": "01" * 8, "secret": secret, "mtu": 1500, "round_s": 0.1, "seconds": seconds}
    return FrameExchange.model_validate({**keys, "number": number, "peers": peers})


FRAME = CheckFrame(FrameKind.FULL, 0, 1, 7)
BROADCAST = CheckFrame(FrameKind.BROADCAST, 0, EVERYBODY, 0)


def build(frame: CheckFrame = FRAME, *, secret: str = SECRET, source: bytes = OCTETS[0]) -> bytes:
    return build_check_frame(make_exchange(0, secret=secret), frame, source, OCTETS[1])


def count(*frames: bytes) -> FrameReport:
    counts = FrameCounts(make_exchange(1), OCTETS[1])
    for octets in frames:
        counts.add(octets)
    return counts.report(None)


def test_a_full_frame_has_the_clusters_mtu() -> None:
    assert (len(build()), build()[12:14]) == (14 + 1500, b"\x88\xb5")


def test_a_frame_is_parsed_as_it_was_built() -> None:
    assert parse_check_frame(make_exchange(1), build()) == FRAME


def test_octets_that_a_switch_appends_are_ignored() -> None:
    assert parse_check_frame(make_exchange(1), build() + bytes(4)) == FRAME


@pytest.mark.parametrize(
    "octets",
    [build(secret=OTHER_SECRET), build()[:-1], build()[:-1] + b"\x01", b"\x00" * 20],
    ids=["without the key", "truncated", "damaged", "short"],
)
def test_forged_and_damaged_frames_do_not_count(octets: bytes) -> None:
    assert parse_check_frame(make_exchange(1), octets) is None


def test_a_frame_from_another_source_address_does_not_count() -> None:
    assert count(build(source=OCTETS[1])).received[1].full == 0


def test_a_frame_that_arrives_twice_is_a_duplicate() -> None:
    (frames,) = [one for one in count(build(), build()).received if one.number == 0]
    assert (frames.full, frames.duplicates) == (1, 1)


def test_a_repeated_broadcast_is_counted_once() -> None:
    (frames,) = [one for one in count(build(BROADCAST), build(BROADCAST)).received if one.number == 0]
    assert (frames.broadcast, frames.duplicates) == (1, 0)


def test_an_own_broadcast_that_comes_back_is_reported() -> None:
    own = FrameCounts(make_exchange(0), OCTETS[0])
    own.add(build(BROADCAST))
    assert [(one.number, one.broadcast) for one in own.report(None).received] == [(0, 1), (1, 0)]


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S603, S607


def connect_bridges(*, mtu: int = 1500) -> None:
    lines = ["cablea type veth peer cableb", "port type veth peer guest", "bra type bridge", "brb type bridge"]
    for line in lines:
        ip("link", "add", *line.split())
    for line in ("cablea master bra", "cableb master brb", "port master bra", f"cableb mtu {mtu}"):
        ip("link", "set", *line.split())
    for link in ("cablea", "cableb", "port", "guest", "bra", "brb"):
        ip("link", "set", link, "up")
    for bridge in ("bra", "brb"):
        ip("link", "set", bridge, "type", "bridge", "stp_state", "0")
        while '"operstate":"UP"' not in ip("-json", "link", "show", bridge):
            continue


def exchange_all(*, seconds: float = 5, before: Callable[[], object] = lambda: None) -> list[FrameReport]:
    """Exchange frames between both bridges, after calling ``before``. Return the last report of each bridge."""
    reports: dict[int, FrameReport] = {}
    ended, reported = threading.Event(), threading.Semaphore(0)
    with ExitStack() as stack:
        sockets = [stack.enter_context(BridgeSocket(bridge, 1500, port)) for bridge, port in CABLE.items()]
        macs = tuple(str(one.end.mac) for one in sockets)

        def start(number: int) -> threading.Thread:
            def report(found: FrameReport) -> None:
                reports[number] = found
                reported.release()

            exchange = make_exchange(number, macs, seconds=seconds)
            return threading.Thread(target=sockets[number].exchange, args=(exchange, report, ended))

        before()
        threads = [start(0), start(1)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert reported.acquire(timeout=20)
        ended.set()
        for thread in threads:
            thread.join()
    return [reports[0], reports[1]]


def kinds(report: FrameReport, sender: int) -> tuple[bool, bool, bool]:
    (frames,) = [one for one in report.received if one.number == sender]
    return frames.broadcast > 0, frames.small > 0, frames.full > 0


def test_bridges_with_a_cable_receive_frames_of_each_kind(in_namespace: Run) -> None:
    def work() -> object:
        connect_bridges()
        first, second = exchange_all()
        return kinds(first, 1), kinds(second, 0)

    assert in_namespace(work) == ((True, True, True), (True, True, True))


def test_a_guest_that_stops_does_not_disturb_the_check(in_namespace: Run) -> None:
    """A bridge has the lowest MAC address of its ports, here the address of the guest's port.

    So the address of the bridge changes when the guest's port is deleted.
    """

    def work() -> object:
        connect_bridges()
        ip("link", "add", "other", "address", "00:00:00:00:00:01", "type", "veth", "peer", "eth0")
        ip("link", "set", "other", "master", "bra")
        ip("link", "set", "other", "up")
        return kinds(exchange_all(before=lambda: ip("link", "del", "other"))[0], 1)

    assert in_namespace(work) == (True, True, True)


def test_a_cable_with_a_lower_mtu_carries_small_frames_only(in_namespace: Run) -> None:
    def work() -> object:
        connect_bridges(mtu=1400)
        return kinds(exchange_all(seconds=0.5)[1], 0)

    assert in_namespace(work) == (True, True, False)


def test_guests_receive_only_the_broadcasts_of_a_check(in_namespace: Run) -> None:
    """A guest receives only the broadcasts, so it cannot repeat or delay the frames that decide the result."""

    def work() -> object:
        connect_bridges()
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as guest:
            guest.bind(("guest", ETHER_TYPE))
            guest.settimeout(0)
            exchange_all()
            targets = set()
            while True:
                try:
                    targets.add(guest.recv(2048)[:6])
                except BlockingIOError:
                    return targets

    assert in_namespace(work) == {b"\xff" * 6}


KILLED = """
import sys, threading
sys.path[:] = {path!r}
from virtcloud.agent.network.frame_exchange import BridgeSocket
from virtcloud.model.path_check import FrameExchange
exchange = FrameExchange.model_validate_json({exchange!r})
threading.Thread(target=print, args=("open",), kwargs=dict(flush=True)).start()
BridgeSocket("bra", 1500, "cablea").exchange(exchange, print, threading.Event())
"""


def test_nothing_remains_on_the_host_after_kill_9(in_namespace: Run) -> None:
    def list_links() -> list[object]:
        links = json.loads(ip("-json", "-details", "link"))
        return [
            [link.get(key) for key in ("ifname", "flags", "mtu", "address", "master", "promiscuity")] for link in links
        ]

    def work() -> object:
        connect_bridges()
        before = list_links()
        exchange = make_exchange(0).model_dump_json(context={"secrets": True})
        code = KILLED.format(path=sys.path, exchange=exchange)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:  # noqa: S603
            assert agent.stdout
            agent.stdout.readline()
            with BridgeSocket("brb", 1500, "cableb") as other:
                assert other._poll.poll(20_000), "expected a frame of the agent"
            agent.send_signal(signal.SIGKILL)
        return list_links() == before, Path("/proc/thread-self/net/packet").read_text().count("\n")

    assert in_namespace(work) == (True, 1)  # one line: the table of packet sockets has only its heading


def test_a_missing_bridge_is_refused(in_namespace: Run) -> None:
    with pytest.raises(Refused, match="cannot open bridge br100 of this host: No such device"):
        in_namespace(lambda: BridgeSocket("br100", 1500, "eth0"))


def test_a_bridge_with_a_lower_mtu_is_named(in_namespace: Run) -> None:
    def work() -> object:
        connect_bridges()
        ip("link", "set", "bra", "mtu", "1400")
        return exchange_all(seconds=0.3)[0].error

    assert in_namespace(work) == "bridge bra of this host refuses packets of 1500 bytes: its MTU is too small"


def test_the_agent_reports_the_address_of_the_uplink(in_namespace: Run) -> None:
    def work() -> object:
        connect_bridges()
        with BridgeSocket("bra", 1500, "cablea") as opened:
            (link,) = json.loads(ip("-json", "link", "show", "cablea"))
            return opened.end == BridgeEnd(mac=link["address"], mtu=1500)

    assert in_namespace(work)
