"""Tests of metadata services on the real kernel: what guests with a real IP stack receive, and what attackers get."""

import http.client
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kernel_links
import pytest
from pyroute2 import IPRoute
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, TCP, UDP, fragment
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet
from seed_documents import SEED, seeded_guest, seeded_segment

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.host_services.dnsmasq_config import ADDRESS, ADDRESS6, MAC
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.host_services.guest_identity import BURST
from virtcloud.agent.host_services.metadata_program import CONNECTIONS
from virtcloud.agent.host_services.server_difference import ObservedServer
from virtcloud.agent.network import names
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import FilterGuests
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import HostWanted, Segment

pytestmark = pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed")

Answer = tuple[int, str]
NO_ANSWER: Answer = (0, "")
LIMIT_S, SHORT_S = 5.0, 0.4
TEST_FRAME = 0x88B5  # for local experiments (IEEE 802)
FIRST, SECOND = "10.0.0.1", "10.0.0.2"
NOBODY = "0.0.0.0"  # noqa: S104 - a source address


def make_segment(cluster: str = "c1", vlan: int = 100, **changes: Any) -> Segment:  # noqa: ANN401 - keys of a segment
    """Return a segment with the guests n1 and n2. Each guest of each cluster has a different host key."""
    guests = [
        seeded_guest(
            name=f"n{i}",
            mac=f"02:00:00:00:00:0{i}",
            addresses=[f"10.0.0.{i}/24", f"fd00::{i}/64"],
            seed={**SEED, "host_key": f"key of n{i} in {cluster}"},
        )
        for i in (1, 2)
    ]
    keys = {"id": cluster, "vlan": vlan, "host_services": ("dhcp", "metadata"), "members": {}}
    segment: Segment = seeded_segment(guests[0], **{**keys, "guests": guests, **changes})
    return segment


class GuestComputer:
    """A guest: a network namespace with an interface on the bridge. A thread runs the guest's programs."""

    def __init__(self, kernel: NetlinkKernel, segment: Segment, number: int, unshare: Callable[[], None]) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=unshare)
        guest = segment.guests[number]
        port = names.guest_port_name(segment.id, guest.name, segment.vlan)
        index = kernel.add_veth_pair(port, "eth0", self.run(threading.get_native_id), 1500, guest.mac)
        kernel.disable_host_ip(index, port)
        kernel.change(index, master=kernel_links.find_index(names.bridge_name(segment.vlan)), up=True)
        self.run(lambda: configure(*guest.addresses))

    def run(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - the result of the work
        """Run a function in the guest's network namespace."""
        return self._thread.submit(work).result()

    def fetch(self, path: str, server: str = ADDRESS, source: str = "", limit_s: float = LIMIT_S) -> Answer:
        """Return the status and the text of an answer, or `NO_ANSWER` if none arrives within ``limit_s`` seconds."""
        answer: Answer = self.run(lambda: fetch(path, server, source, limit_s))
        return answer

    def host_key(self) -> str:
        """Return the private key in the guest's user-data."""
        _, text = self.fetch("/user-data")
        return "".join(re.findall("key of n. in c.", text))

    def close(self) -> None:
        self._thread.shutdown()


def configure(*addresses: str) -> None:
    """Set the addresses of eth0 in the namespace of this thread."""
    Path("/proc/sys/net/ipv6/conf/eth0/accept_dad").write_text("0")
    kernel_links.link("set", index=kernel_links.find_index("eth0"), state="up")
    for address in addresses:
        add_address(address)
    with IPRoute() as route:
        route.route("add", dst=f"{ADDRESS}/32", oif=kernel_links.find_index("eth0"))


def add_address(address: str) -> None:
    host, _, length = address.partition("/")
    kernel_links.addr("add", index=kernel_links.find_index("eth0"), address=host, prefixlen=int(length))


def fetch(path: str, server: str, source: str, limit_s: float) -> Answer:
    connection = http.client.HTTPConnection(server, 80, timeout=limit_s, source_address=(source, 0) if source else None)
    with closing(connection):
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return NO_ANSWER


class World:
    """The guests and services of segments in a new network namespace, with the filters of guests."""

    def __init__(self, kernel: NetlinkKernel, folder: Path) -> None:
        self.kernel, self.folder = kernel, folder
        self.servers = DnsmasqServers(kernel, folder)
        self.guests: list[GuestComputer] = []

    def add(self, segment: Segment, unshare: Callable[[], None]) -> None:
        """Build a bridge with guests, and start the service."""
        bridge = self.kernel.add_bridge(names.bridge_name(segment.vlan))
        self.kernel.change(bridge, alias=names.ownership_alias(segment.id), up=True)
        self.guests += [GuestComputer(self.kernel, segment, number, unshare) for number in range(len(segment.guests))]
        self.servers.ensure_server(segment)

    def pid(self, record: str = "metadata.json", cluster: str = "c1") -> int:
        """Return the process ID in a record."""
        found = re.search('"pid":([0-9]+)', (self.folder / cluster / record).read_text())
        assert found
        return int(found.group(1))

    def read(self, servers: DnsmasqServers | None = None) -> ObservedServer:
        """Return the first observed server."""
        return (servers or self.servers).read(self.kernel.list_interfaces())[0]


def set_filters(segments: tuple[Segment, ...]) -> None:
    steps = compute_difference(HostWanted(segments=segments), ObservedHost(filters=ObservedFilters()))
    NftablesFilters().replace(next(step.ports for step in steps if isinstance(step, FilterGuests)))


@pytest.fixture
def in_world(in_namespace: Callable[..., Any], unshare: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that builds segments with guests and services, runs code, and removes the services."""

    @contextmanager
    def opened(*segments: Segment) -> Iterator[World]:
        with TemporaryDirectory(prefix="virtcloud-servers-") as temporary, closing(NetlinkKernel()) as kernel:
            Path(temporary).chmod(0o755)
            world = World(kernel, Path(temporary))
            with ExitStack() as stack:
                set_filters(segments)
                for segment in segments:
                    stack.callback(world.servers.ensure_no_server, segment.id)
                    world.add(segment, unshare)
                yield world
            for guest in world.guests:
                guest.close()

    def run(work: Callable[[World], object], *segments: Segment) -> object:
        def run_opened() -> object:
            with opened(*(segments or (make_segment(),))) as world:
                return work(world)

        return in_namespace(run_opened)

    return run


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
    """A guest may use any IP address. If the guest connects from a wrong address, no guest gets an answer."""

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
    """Return the captured frames."""
    frames = []
    with suppress(BlockingIOError):
        while True:
            frames.append(Ether(capture.recv(2048, socket.MSG_DONTWAIT)))
    return frames


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
    """Return a DHCPDISCOVER of the first guest without the broadcast flag: a server may answer by unicast."""
    header = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / IP(src=NOBODY, dst="255.255.255.255")
    bootp = BOOTP(chaddr=bytes.fromhex("020000000001"), xid=7)
    return header / UDP(sport=68, dport=67) / bootp / DHCP(options=[("message-type", "discover"), "end"])


def send_frame(frame: Ether, times: int = 5) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind(("eth0", 0))
        for _ in range(times):
            sender.send(bytes(frame))


def test_a_guest_cannot_answer_in_place_of_the_server(in_world: Callable[..., Any]) -> None:
    """A guest that answered in the server's place could send a seed to other guests, and become their administrator."""

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
            second.run(lambda lie=lie: send_frame(lie))
        with received:
            frames = [frame for frame in list_frames(received) if frame.src == own]
        arrived = [frame for frame in frames if frame.type == TEST_FRAME or claims_server(frame)]
        return {frame.type for frame in arrived}, first.host_key()

    assert in_world(work) == ({TEST_FRAME}, "key of n1 in c1")


def claims_server(frame: Packet) -> bool:
    if ARP in frame:
        return bool(frame[ARP].psrc == ADDRESS)
    claimed = frame[ICMPv6ND_NA].tgt if ICMPv6ND_NA in frame else frame[IPv6].src
    return bool(claimed == ADDRESS6)


def advertise(mac: str, source: str) -> Packet:
    """Return an advertisement of the server's IPv6 address."""
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


def test_idle_connections_of_a_guest_do_not_stop_others(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        first, second = world.guests
        idle = first.run(lambda: [socket.create_connection((ADDRESS, 80), LIMIT_S) for _ in range(CONNECTIONS)])
        answers = first.fetch("/meta-data", limit_s=SHORT_S), second.host_key()
        for connection in idle:
            connection.close()
        return answers

    assert in_world(work) == (NO_ANSWER, "key of n2 in c1")


def test_a_flood_of_connections_does_not_stop_others(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        first, second = world.guests
        accepted = first.run(lambda: count_accepted(3 * BURST))
        return BURST <= accepted < 2 * BURST, second.host_key()

    assert in_world(work) == (True, "key of n2 in c1")


def test_fragments_cannot_pass_the_limit_of_connections(in_world: Callable[..., Any]) -> None:
    """The rules recognize a new connection by TCP flags, which would be in the second fragment."""

    def work(world: World) -> object:
        first = world.guests[0]
        whole, parts = (IP(src=FIRST, dst=ADDRESS) / TCP(sport=port, dport=80, flags="S") for port in (4000, 4001))
        received: socket.socket = first.run(open_capture)
        for packet in (*fragment(parts, 8), whole):
            first.run(lambda packet=packet: send_frame(Ether(src="02:00:00:00:00:01", dst=MAC) / packet, 1))
        time.sleep(SHORT_S)
        with received:
            answers = {frame[TCP].dport for frame in list_frames(received) if frame.src == MAC and TCP in frame}
        return answers & {4000, 4001}

    assert in_world(work) == {4000}


def count_accepted(attempts: int) -> int:
    """Start connections at the same time. Return the number of connections that the kernel answered in ``SHORT_S``."""
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


def test_changed_documents_replace_only_the_metadata_service(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        dnsmasq = world.pid("record.json")
        peers = [{"name": "m1", "cluster": "other", "addresses": ["10.0.0.9/24"]}]
        world.servers.ensure_server(make_segment(peers=peers))
        _, text = world.guests[0].fetch("/user-data")
        return "10.0.0.9 m1.other.internal" in text, world.read().faults, world.pid("record.json") == dnsmasq

    assert in_world(work) == (True, (), True)


def test_a_killed_service_is_observed_and_started_again(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        dnsmasq = world.pid("record.json")
        os.kill(world.pid(), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while not world.read().faults and time.monotonic() < deadline:
            time.sleep(0.02)
        faults = world.read().faults
        world.servers.ensure_server(make_segment())
        return faults, world.read().faults, world.guests[0].host_key(), world.pid("record.json") == dnsmasq

    assert in_world(work) == (("the metadata service has ended",), (), "key of n1 in c1", True)


def test_a_service_starts_again_after_its_dnsmasq(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        former = world.pid()
        os.kill(world.pid("record.json"), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while not world.read().faults and time.monotonic() < deadline:
            time.sleep(0.02)
        world.servers.ensure_server(make_segment())
        return world.read().faults, world.guests[0].host_key(), world.pid() == former

    assert in_world(work) == ((), "key of n1 in c1", False)


def test_a_restarted_agent_keeps_running_services(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid, other = world.pid(), DnsmasqServers(world.kernel, world.folder)
        observed = world.read(other)
        other.ensure_server(make_segment())
        return world.pid() == pid, observed.faults, observed == world.read(other)

    assert in_world(work) == (True, (), True)


def test_nothing_of_a_removed_service_remains(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid = world.pid()
        world.servers.ensure_no_server("c1")
        return list(world.folder.iterdir()), Path(f"/proc/{pid}/exe").exists()

    assert in_world(work) == ([], False)


def test_the_service_has_no_rights_and_a_secret_memory(in_world: Callable[..., Any]) -> None:
    """The services of all clusters run as one user. This user must not be able to read the memory of the services.

    If a user may not inspect a process of their own, /proc/PID/environ belongs to root.
    """

    def work(world: World) -> object:
        process = Path(f"/proc/{world.pid()}")
        status = (process / "status").read_text()
        rights = [re.findall(rf"^{key}:\s*(\S+)", status, re.MULTILINE)[0] for key in ("CapPrm", "NoNewPrivs")]
        uids = set(re.findall(r"^Uid:\s*(.*)", status, re.MULTILINE)[0].split())
        stored = "".join(path.read_text() for path in (world.folder / "c1").iterdir())
        return rights, "0" in uids, (process / "environ").stat().st_uid, "key of" in stored

    assert in_world(work) == (["0" * 16, "1"], False, 0, False)


def test_a_host_without_filters_offers_no_metadata(tmp_path: Path) -> None:
    servers = DnsmasqServers(NO_KERNEL, tmp_path, "boot", has_filters=False)
    with pytest.raises(Refused, match=r"needs the filters of guests, .* turn off: set filters = \"strict\""):
        servers.ensure_server(make_segment())


NO_KERNEL: Any = None
