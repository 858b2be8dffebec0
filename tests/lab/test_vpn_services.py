"""Tests of servers and sockets that VPN devices and guests must not reach."""

import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from support.lab.capture import capturing
from support.lab.leases import GET_LEASE, run_in_guest
from support.lab.vpn import GATEWAY, GUEST, GUEST_MAC, HOST, connected, find_addresses, two_clusters

from virtcloud.agent.host_services.dnsmasq_config import ADDRESS
from virtcloud.agent.host_services.dnsmasq_config import MAC as SERVER_MAC
from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.addressing import LAPTOP, STATION_ADDRESS
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.laptop import LaptopVpn
from virtcloud.lab.snapshot import read_guests
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="NOT TESTED: dnsmasq-base is not installed"),
]

OWN_MAC, BROADCAST = "02:00:00:00:00:d1", "ff:ff:ff:ff:ff:ff"
MANAGEMENT, OUTSIDE = "198.18.1.4", "198.19.1.4"
"""The addresses of the gateway on the lab's management network and on its external network."""
PORT, LAST = 5005, "from outside"
ANY_DESTINATION = "--allow-recursive-routing"
"""An OpenVPN option without which the client drops packets for the external address of its gateway."""
REQUESTS, REPETITIONS = 300, 5
PYTHON = (sys.executable, "-I", "-S", "-c")
SEND = """
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind((sys.argv[1], 0))
for frame in sys.stdin.read().split():
    link.send(bytes.fromhex(frame).ljust(60, b"\\0"))
"""
LISTEN = f"""
import socket
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("", {PORT}))
receiver.settimeout(30)
print("ready", flush=True)
text = ""
while text != "{LAST}":
    text = receiver.recv(100).decode()
    print(text, flush=True)
"""
TELL = f"""
import socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(5):
    sender.sendto(b"{LAST}", ("{OUTSIDE}", {PORT}))
    time.sleep(0.1)
"""
ARRIVED = re.compile(rf"([\d.]+)\.{PORT} > ([\d.]+)\.{PORT}: UDP")
ENTER_NETWORK = ENTER_CONTAINER.replace(" -n -m -u ", " -n ")


@pytest.fixture(scope="module")
def clusters(lab: Lab) -> Iterator[dict[str, ClusterView]]:
    with (
        SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client,
        two_clusters(client, "served", host_services=("dhcp", "dns", "metadata")) as views,
    ):
        yield views


@pytest.fixture(scope="module")
def device(lab: Lab, clusters: dict[str, ClusterView]) -> Iterator[LaptopVpn]:
    with connected(lab, "served", "curious", ANY_DESTINATION) as device:
        device.run("ip", "link", "set", device.interface, "address", OWN_MAC)
        yield device


def send(device: LaptopVpn, *frames: Packet) -> None:
    argv = ("ip", "netns", "exec", device.name, *PYTHON, SEND, device.interface)
    device.lab.run(LAPTOP, argv, stdin=" ".join(bytes(frame).hex() for frame in frames), check=True)


def send_from_guest(lab: Lab, cluster: ClusterView, *frames: Packet) -> None:
    (domain,) = (name for name in read_guests(lab, HOST) if cluster.id in name)
    argv = ("sh", "-c", ENTER_NETWORK, domain, *PYTHON, SEND, "eth0")
    lab.run(HOST, argv, stdin=" ".join(bytes(frame).hex() for frame in frames), check=True)


def request_leases() -> Iterator[Packet]:
    for number in range(REQUESTS):
        mac = bytes.fromhex(GUEST_MAC.replace(":", "")) if number % 3 == 0 else b"\x02\xdd\x00" + number.to_bytes(3)
        kind = "discover" if number % 2 else "request"
        options = [("message-type", kind), ("requested_addr", f"10.0.0.{number % 250 + 1}"), "end"]
        datagram = IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67)  # noqa: S104 - no address yet
        yield Ether(src=OWN_MAC, dst=BROADCAST) / datagram / BOOTP(chaddr=mac, xid=number) / DHCP(options=options)


def test_dhcp_requests_of_a_device_take_no_lease(lab: Lab, device: LaptopVpn, clusters: dict[str, ClusterView]) -> None:
    with capturing(lab, LAPTOP, device.interface, "udp src port 67", namespace=device.name) as capture:
        send(device, *request_leases())
    assert capture.text.strip() == ""
    assert run_in_guest(lab, HOST, clusters["served"], GET_LEASE) == f"{GUEST} g1 served.internal {ADDRESS}\n"


def test_a_device_reaches_no_server_of_a_host(lab: Lab, device: LaptopVpn, clusters: dict[str, ClusterView]) -> None:
    own = find_addresses(lab, "served", "curious")[0].partition("/")[0]
    datagram = (
        IP(src=own, dst=ADDRESS) / UDP(sport=1000, dport=53) / Raw(b"\0\1\1\0\0\1" + bytes(6) + b"\2n1\0\0\1\0\1")
    )
    asked = ARP(op=1, hwsrc=OWN_MAC, psrc=own, pdst=ADDRESS)
    with capturing(lab, LAPTOP, device.interface, f"ether src {SERVER_MAC}", namespace=device.name) as capture:
        send(device, Ether(src=OWN_MAC, dst=BROADCAST) / asked, Ether(src=OWN_MAC, dst=SERVER_MAC) / datagram)
        device.run("ip", "route", "add", ADDRESS, "dev", device.interface)
        device.run("ip", "neighbor", "add", ADDRESS, "lladdr", SERVER_MAC, "dev", device.interface)
        fetched = device.run("curl", "-s", "-m", "2", f"http://{ADDRESS}/latest/meta-data/instance-id")
    assert (capture.text.strip(), fetched[0]) == ("", 28)


def test_packets_to_the_gateway_reach_no_socket(lab: Lab, device: LaptopVpn, clusters: dict[str, ClusterView]) -> None:
    """As a control, a laptop outside the cluster's network sends to the same UDP socket, and its datagram arrives."""
    view = clusters["served"]
    own = find_addresses(lab, "served", "curious")[0].partition("/")[0]
    bridge = f"br{view.vlans[Name('brno')]}"
    mac = lab.run(GATEWAY, ("cat", f"/sys/class/net/{bridge}/address"), check=True).stdout.strip()
    targets = (MANAGEMENT, OUTSIDE, STATION_ADDRESS, "255.255.255.255")

    def frames(source_mac: str, source: str) -> list[Packet]:
        sent = (IP(src=source, dst=target) / UDP(sport=PORT, dport=PORT) / Raw(b"from a cluster") for target in targets)
        return [Ether(src=source_mac, dst=mac) / packet for packet in sent]

    with (
        ThreadPoolExecutor(1) as pool,
        capturing(lab, GATEWAY, "mgmt0", f"udp port {PORT}") as routed,
        capturing(lab, GATEWAY, bridge, f"udp port {PORT}") as arrived,
    ):
        heard = pool.submit(lab.run, GATEWAY, (*PYTHON, LISTEN), timeout_s=60)
        lab.run(GATEWAY, ("sh", "-c", f"until ss -Hlun | grep -q :{PORT}; do sleep 0.1; done"), check=True)
        send(device, *frames(OWN_MAC, own) * REPETITIONS)
        send_from_guest(lab, view, *frames(GUEST_MAC, GUEST) * REPETITIONS)
        lab.run(LAPTOP, (*PYTHON, TELL), check=True)
        heard.result()
    expected = {(source, target) for source in (own, GUEST) for target in targets}
    assert set(ARRIVED.findall(arrived.text)) == expected
    assert (heard.result().stdout.split("\n")[:2], routed.text.strip()) == (["ready", LAST], "")
