import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.dhcp6 import DUID_LL, DHCP6_Solicit, DHCP6OptClientId, DHCP6OptIA_NA
from scapy.layers.dns import DNS, DNSQR
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import ICMPv6ND_NA, ICMPv6ND_NS, ICMPv6NDOptDstLLAddr, IPv6
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from support.kernel import kernel_links
from support.kernel.network_namespaces import Run
from virtcloud.agent.host_services import dnsmasq_config
from virtcloud.agent.host_services.dnsmasq_servers import DnsmasqServers
from virtcloud.agent.host_services.server_difference import ObservedServer
from virtcloud.agent.network import names
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.model.wanted import Segment

SERVER, SERVER_MAC, BROADCAST = dnsmasq_config.ADDRESS, dnsmasq_config.MAC, "ff:ff:ff:ff:ff:ff"
GUEST_MAC, GUEST4, GUEST6 = "02:00:00:00:00:01", "10.0.0.5", "fd00::5"
LINK_LOCAL = "fe80::ff:fe00:1"
NOBODY = "0.0.0.0"  # noqa: S104 - a source address
LIMIT_S = 10.0
TRANSACTION = 0x7663
TEST_FRAME = 0x88B5  # for local experiments (IEEE 802)


def make_segment(cluster: str = "c1", vlan: int = 100, peer: str = "10.0.0.6") -> Segment:
    """Return a segment with the guest n1 and the peer n2 at ``peer``. Guest n1 is the same in all clusters."""
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
        """Return the first wanted frame within ``limit_s`` seconds, or None.

        Answer ARP requests and neighbour solicitations meanwhile.
        """
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
    """The bridges and dnsmasq servers of segments in a new network namespace."""

    def __init__(self, kernel: NetlinkKernel, folder: Path, *segments: Segment) -> None:
        self.kernel, self.folder = kernel, folder
        self.servers = DnsmasqServers(kernel, folder)
        self.bridges = [Bridge(kernel, segment) for segment in segments]

    def pid(self, cluster: str = "c1") -> int:
        found = re.search('"pid":([0-9]+)', (self.folder / cluster / "record.json").read_text())
        assert found
        return int(found.group(1))

    def read(self, servers: DnsmasqServers | None = None) -> tuple[ObservedServer, ...]:
        return (servers or self.servers).read(self.kernel.list_interfaces())

    def faults(self) -> tuple[str, ...]:
        (server,) = self.read()
        return server.faults


def make_runner(in_namespace: Run) -> Callable[..., Any]:

    def run(work: Callable[[World], object], *segments: Segment, serves: bool = True) -> object:
        @contextmanager
        def opened() -> Iterator[World]:
            # The servers run as the user dnsmasq, who must be able to read the folder. pytest's folders are private.
            with TemporaryDirectory(prefix="virtcloud-servers-") as folder, closing(NetlinkKernel()) as kernel:
                Path(folder).chmod(0o755)
                world = World(kernel, Path(folder), *segments)
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
    answer = guest.ask(query(name), lambda frame: DNS in frame and frame[DNS].qr == 1)
    return None if answer is None or not answer[DNS].ancount else str(answer[DNS].an[0].rdata)
