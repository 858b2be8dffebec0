"""Tests of dnsmasq servers on the real kernel: what guests and the uplink receive, and faults of a server."""

import os
import re
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kernel_links
import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import (
    DUID_LL,
    DHCP6_Advertise,
    DHCP6_Solicit,
    DHCP6OptClientId,
    DHCP6OptIA_NA,
)
from scapy.layers.dns import DNS, DNSQR
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import (
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_RS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptPrefixInfo,
    IPv6,
)
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from virtcloud.agent.host_services import dnsmasq_config, dnsmasq_servers
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.host_services.server_difference import ObservedServer
from virtcloud.agent.network import names
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.errors import Refused
from virtcloud.model.wanted import Segment

Run = Callable[[Callable[[], object]], object]

pytestmark = pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed")

SERVER, SERVER_MAC, BROADCAST = dnsmasq_config.ADDRESS, dnsmasq_config.MAC, "ff:ff:ff:ff:ff:ff"
GUEST_MAC, GUEST4, GUEST6 = "02:00:00:00:00:01", "10.0.0.5", "fd00::5"
LINK_LOCAL = "fe80::ff:fe00:1"
NOBODY = "0.0.0.0"  # noqa: S104 - a source address
LIMIT_S = 10.0
TRANSACTION = 0x7663
TEST_FRAME = 0x88B5  # for local experiments (IEEE 802)


def make_segment(cluster: str = "c1", vlan: int = 100, peer: str = "10.0.0.6") -> Segment:
    """Return a segment with the guest n1, which is the same in all clusters. ``peer`` is the address of the name n2."""
    guest = {"name": "n1", "image": "x", "memory_mb": 64, "cpus": 1, "mac": GUEST_MAC}
    addresses = (f"{GUEST4}/24", f"{GUEST6}/64")
    peers = [{"name": "n1", "cluster": "demo", "addresses": addresses}]
    return Segment.model_validate(
        {
            "id": cluster,
            "key": "demo",
            "vlan": vlan,
            "port": "eth0",
            "guests": [{**guest, "addresses": addresses}],
            "peers": [*peers, {"name": "n2", "cluster": "demo", "addresses": [f"{peer}/24"]}],
            "host_services": ["dhcp", "dns"],
        }
    )


class Computer:
    """The device at the other end of a bridge's port: a guest, or the switch behind the uplink."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((interface, 3))

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: Packet) -> None:
        self._socket.send(bytes(frame))

    def receive(self, wanted: Callable[[Packet], bool], limit_s: float = LIMIT_S) -> Packet | None:
        """Return the first wanted frame within ``limit_s`` seconds, or None. Answer ARP requests meanwhile."""
        deadline, ready = time.monotonic() + limit_s, select.poll()
        ready.register(self._socket, select.POLLIN)
        while ready.poll(max(deadline - time.monotonic(), 0) * 1000):
            frame = Ether(self._socket.recv(2048))
            self._answer(frame)
            if wanted(frame):
                return frame
        return None

    def ask(self, request: Packet, wanted: Callable[[Packet], bool]) -> Packet | None:
        """Send a request every second until a wanted frame arrives. Return the frame, or None after ten seconds."""
        for _ in range(int(LIMIT_S)):
            self.send(request)
            if (answer := self.receive(wanted, 1.0)) is not None:
                return answer
        return None

    def _answer(self, frame: Packet) -> None:
        if ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == GUEST4:
            answer = ARP(op=2, hwsrc=GUEST_MAC, psrc=GUEST4, hwdst=frame.src, pdst=frame[ARP].psrc)
            self.send(Ether(src=GUEST_MAC, dst=frame.src) / answer)
        if ICMPv6ND_NS in frame and frame[ICMPv6ND_NS].tgt == LINK_LOCAL:
            header = IPv6(src=LINK_LOCAL, dst=frame[IPv6].src)
            advertisement = ICMPv6ND_NA(tgt=LINK_LOCAL, S=1, R=0) / ICMPv6NDOptDstLLAddr(lladdr=GUEST_MAC)
            self.send(Ether(src=GUEST_MAC, dst=frame.src) / header / advertisement)


class Bridge:
    """A cluster's bridge with the ports of a guest and an uplink."""

    def __init__(self, kernel: NetlinkKernel, segment: Segment) -> None:
        vlan = segment.vlan
        bridge = kernel.add_bridge(names.bridge_name(vlan))
        kernel.change(bridge, alias=names.ownership_alias(segment.id), up=True)
        ports = {
            f"guest{vlan}": names.guest_port_name(segment.id, "n1", vlan),
            f"switch{vlan}": names.tagged_interface_name("eth0", vlan),
        }
        for computer, port in ports.items():
            kernel_links.link("add", ifname=computer, kind="veth", peer=port)
            kernel.disable_host_ip(kernel_links.find_index(computer), computer)
            kernel.change(kernel_links.find_index(computer), up=True)
            alias = names.ownership_alias(segment.id) if computer.startswith("switch") else ""
            kernel.change(kernel_links.find_index(port), master=bridge, alias=alias, up=True)
        self.guest, self.switch = (Computer(computer) for computer in ports)


class World:
    """Servers in a new network namespace."""

    def __init__(self, kernel: NetlinkKernel, folder: Path, *segments: Segment) -> None:
        self.kernel, self.folder = kernel, folder
        self.servers = DnsmasqServers(kernel, folder)
        self.bridges = [Bridge(kernel, segment) for segment in segments]

    def pid(self, cluster: str = "c1") -> int:
        """Return the process ID in a server's record."""
        found = re.search('"pid":([0-9]+)', (self.folder / cluster / "record.json").read_text())
        assert found
        return int(found.group(1))

    def read(self, servers: DnsmasqServers | None = None) -> tuple[ObservedServer, ...]:
        """Return the observed servers."""
        return (servers or self.servers).read(self.kernel.list_interfaces())

    def faults(self) -> tuple[str, ...]:
        """Return the faults of the only server."""
        (server,) = self.read()
        return server.faults


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that dnsmasq's user can read. pytest's own folders are private."""
    with TemporaryDirectory(prefix="virtcloud-servers-") as temporary:
        Path(temporary).chmod(0o755)
        yield Path(temporary)


@pytest.fixture
def in_world(in_namespace: Run, folder: Path) -> Callable[..., Any]:
    """Return a function that starts servers for segments, runs code, and removes the servers."""

    def run(work: Callable[[World], object], *segments: Segment, serves: bool = True) -> object:
        @contextmanager
        def opened() -> Iterator[World]:
            with closing(NetlinkKernel()) as kernel:
                world = World(kernel, folder, *segments)
                try:
                    for segment in segments if serves else ():
                        world.servers.ensure_server(segment)
                    yield world
                finally:
                    for segment in segments:
                        world.servers.ensure_no_server(segment.id)
                    for bridge in world.bridges:
                        bridge.guest.close()
                        bridge.switch.close()

        def run_opened() -> object:
            with opened() as world:
                return work(world)

        return in_namespace(run_opened)

    return run


def discover(mac: str = GUEST_MAC) -> Packet:
    bootp = BOOTP(chaddr=bytes.fromhex(mac.replace(":", "")), xid=TRANSACTION)
    options = DHCP(options=[("message-type", "discover"), ("param_req_list", [1, 3, 6, 12, 15]), "end"])
    header = Ether(src=mac, dst=BROADCAST) / IP(src=NOBODY, dst="255.255.255.255") / UDP(sport=68, dport=67)
    return header / bootp / options


def solicit() -> Packet:
    header = Ether(src=GUEST_MAC, dst="33:33:00:01:00:02") / IPv6(src=LINK_LOCAL, dst="ff02::1:2")
    message = DHCP6_Solicit(trid=TRANSACTION) / DHCP6OptClientId(duid=DUID_LL(lladdr=GUEST_MAC)) / DHCP6OptIA_NA(iaid=1)
    return header / UDP(sport=546, dport=547) / message


def query(name: str) -> Packet:
    header = Ether(src=GUEST_MAC, dst=SERVER_MAC) / IP(src=GUEST4, dst=SERVER) / UDP(sport=5353, dport=53)
    return header / DNS(rd=1, qd=DNSQR(qname=name))


def is_offer(frame: Packet) -> bool:
    return DHCP in frame and ("message-type", 2) in frame[DHCP].options


def from_server(frame: Packet) -> bool:
    return bool(frame.src == SERVER_MAC)


def resolve(guest: Computer, name: str) -> str | None:
    """Return the address that the DNS server answers to a guest, or None."""
    answer = guest.ask(query(name), lambda frame: DNS in frame and frame[DNS].qr == 1)
    return None if answer is None or not answer[DNS].ancount else str(answer[DNS].an[0].rdata)


def test_a_guest_gets_the_addresses_of_the_spec(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        guest = world.bridges[0].guest
        offer = guest.ask(discover(), is_offer)
        advertisement = guest.ask(solicit(), lambda frame: DHCP6_Advertise in frame)
        assert offer
        assert advertisement
        options = {option[0]: option[1] for option in offer[DHCP].options if isinstance(option, tuple)}
        (address,) = advertisement[DHCP6OptIA_NA].ianaopts
        found = [options[name] for name in ("hostname", "domain", "name_server", "classless_static_routes")]
        return offer[BOOTP].yiaddr, *found, address.addr

    route = [f"{SERVER}/32:{NOBODY}"]
    assert in_world(work, make_segment()) == (GUEST4, b"n1", b"demo.internal", SERVER, route, GUEST6)


def test_a_router_advertisement_announces_dhcp_and_no_router(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        request = Ether(src=GUEST_MAC, dst="33:33:00:00:00:02") / IPv6(src=LINK_LOCAL, dst="ff02::2") / ICMPv6ND_RS()
        frame = world.bridges[0].guest.ask(request, lambda frame: ICMPv6ND_RA in frame)
        assert frame
        prefix = frame[ICMPv6NDOptPrefixInfo]
        return frame[ICMPv6ND_RA].M, frame[ICMPv6ND_RA].routerlifetime, prefix.prefix, prefix.L, prefix.A

    assert in_world(work, make_segment()) == (1, 0, "fd00::", 1, 0)


def test_identical_clusters_side_by_side_get_their_own_answers(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        return [
            (offer and offer[BOOTP].yiaddr, resolve(bridge.guest, "n2.demo.internal"))
            for bridge in world.bridges
            for offer in [bridge.guest.ask(discover(), is_offer)]
        ]

    found = in_world(work, make_segment(), make_segment("c2", 101, "10.0.0.7"))
    assert found == [(GUEST4, "10.0.0.6"), (GUEST4, "10.0.0.7")]


def test_no_frame_of_the_server_leaves_the_host(in_world: Callable[..., Any]) -> None:
    """The switch receives the guest's broadcasts. So the switch would also receive the server's frames."""

    def work(world: World) -> object:
        (bridge,) = world.bridges
        bridge.guest.ask(discover(), is_offer)
        bridge.guest.send(Ether(src=GUEST_MAC, dst=BROADCAST) / ARP(hwsrc=GUEST_MAC, psrc=GUEST4, pdst=SERVER))
        bridge.guest.receive(lambda frame: ARP in frame and frame[ARP].op == 2)
        bridge.guest.ask(solicit(), from_server)
        bridge.guest.send(Ether(src=GUEST_MAC, dst=BROADCAST, type=TEST_FRAME) / b"last")
        received = []
        while (frame := bridge.switch.receive(lambda _: True)) is not None and frame.type != TEST_FRAME:
            received.append(frame)
        return frame is not None, any(DHCP in frame for frame in received), any(map(from_server, received))

    assert in_world(work, make_segment()) == (True, True, False)


def test_a_request_from_the_uplink_does_not_reach_the_server(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        (bridge,) = world.bridges
        bridge.switch.send(discover())
        bridge.switch.send(solicit())
        arrived = bridge.guest.receive(lambda frame: DHCP in frame) is not None  # the bridge forwards the request
        return arrived, bridge.switch.receive(from_server, 1.0), bridge.guest.ask(discover(), is_offer) is not None

    assert in_world(work, make_segment()) == (True, None, True)


def test_an_unknown_computer_gets_no_address(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        guest = world.bridges[0].guest
        guest.send(discover("02:00:00:00:00:99"))
        first = guest.ask(discover(), is_offer)
        return first and first[BOOTP].chaddr[:6].hex(":")

    assert in_world(work, make_segment()) == GUEST_MAC


def test_a_running_server_learns_new_names_and_is_not_restarted(in_world: Callable[..., Any]) -> None:
    """While a guest has a lease, dnsmasq 2.90 crashes if it rereads a file of reservations.

    Therefore the agent writes only the names to a file that dnsmasq rereads.
    """

    def work(world: World) -> object:
        guest, pid = world.bridges[0].guest, world.pid()
        guest.ask(discover(), is_offer)
        world.servers.ensure_server(make_segment(peer="10.0.0.8"))
        found = resolve(guest, "n2.demo.internal")
        return found, world.faults(), world.pid() == pid

    assert in_world(work, make_segment()) == ("10.0.0.8", (), True)


def test_a_restarted_agent_keeps_running_servers(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid, other = world.pid(), DnsmasqServers(world.kernel, world.folder)
        observed = world.read(other)
        other.ensure_server(make_segment())
        return world.pid() == pid, observed[0].faults, observed == world.read(other)

    assert in_world(work, make_segment()) == (True, (), True)


def test_a_killed_server_is_observed_and_started_again(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        os.kill(world.pid(), signal.SIGKILL)
        deadline = time.monotonic() + LIMIT_S
        while len(world.faults()) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        faults = world.faults()
        world.servers.ensure_server(make_segment())
        return faults, world.faults(), resolve(world.bridges[0].guest, "n2.demo.internal")

    expected = (("dnsmasq has ended", "vs100 is missing"), (), "10.0.0.6")
    assert in_world(work, make_segment()) == expected


def test_a_port_that_lost_its_isolation_is_corrected(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid = world.pid()
        for port in ("vs100", "eth0.100"):
            kernel_links.brport("set", index=kernel_links.find_index(port), isolated=0)
        faults = world.faults()
        world.servers.ensure_server(make_segment())
        return faults, world.faults(), world.pid() == pid

    expected = ("vs100 is not isolated", "eth0.100 is not isolated")
    assert in_world(work, make_segment()) == (expected, (), True)


def test_another_boots_record_is_no_running_server(in_world: Callable[..., Any]) -> None:
    """After a reboot, the recorded process ID may belong to any other process of the host."""

    def work(world: World) -> object:
        (other_boot,) = world.read(DnsmasqServers(world.kernel, world.folder, boot="another"))
        path = world.folder / "c1/record.json"
        path.write_text(re.sub('"pid":[0-9]+', f'"pid":{os.getpid()}', path.read_text()))
        return world.faults(), other_boot.faults

    assert in_world(work, make_segment()) == (("dnsmasq has ended",),) * 2


def test_nothing_of_a_removed_server_remains(in_world: Callable[..., Any]) -> None:
    def work(world: World) -> object:
        pid = world.pid()
        world.servers.ensure_no_server("c1")
        world.servers.ensure_no_server("c1")
        interfaces = [interface.name for interface in world.kernel.list_interfaces()]
        return world.read(), list(world.folder.iterdir()), "vs100" in interfaces, is_running(pid)

    assert in_world(work, make_segment()) == ((), [], False, False)


def test_dnsmasq_has_only_the_rights_that_it_needs(in_world: Callable[..., Any]) -> None:
    """The files of dnsmasq and their folder belong to root, so dnsmasq cannot change what the agent writes."""

    def work(world: World) -> object:
        status = Path(f"/proc/{world.pid()}/status").read_text()
        rights = [
            re.findall(rf"^{key}:\s*(\S+)", status, re.MULTILINE)[0] for key in ("CapPrm", "CapBnd", "NoNewPrivs")
        ]
        uids = set(re.findall(r"^Uid:\s*(.*)", status, re.MULTILINE)[0].split())
        folder = world.folder / "c1"
        owners = {(path.stat().st_uid, path.stat().st_mode & 0o022) for path in (folder, *folder.iterdir())}
        return rights, "0" in uids, owners

    caps = f"{1 << 10 | 1 << 12 | 1 << 13:016x}"  # CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW
    assert in_world(work, make_segment()) == ([caps, caps, "1"], False, {(0, 0)})


def test_a_refused_start_is_explained_and_leaves_nothing(
    in_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnsmasq_config, "_COMMON_LINES", ("nonsense=1",))

    def work(world: World) -> object:
        with pytest.raises(Refused, match=r"cannot start dnsmasq: .*bad option at line 1"):
            world.servers.ensure_server(make_segment())
        deadline = time.monotonic() + 10
        while "dnsmasq has ended" not in (observed := world.read()[0]).faults and time.monotonic() < deadline:
            time.sleep(0.01)  # dnsmasq prints its error some time before the process ends
        return observed, "vs100" in [interface.name for interface in world.kernel.list_interfaces()]

    expected = ObservedServer("c1", 100, "", "", ("dnsmasq has ended", "vs100 is missing"))
    assert in_world(work, make_segment(), serves=False) == (expected, False)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("SEARCH_PATH", "/nowhere", "the program dnsmasq, which is not"), ("USER", "nobodys", "this host has no user")],
)
def test_a_host_without_dnsmasq_names_the_package(
    in_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setattr(dnsmasq_servers, name, value)

    def work(world: World) -> None:
        with pytest.raises(Refused, match=rf"{reason}.*apt-get install dnsmasq-base"):
            world.servers.ensure_server(make_segment())

    in_world(work, make_segment(), serves=False)


def is_running(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"
