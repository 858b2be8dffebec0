"""VPN access: throughput relative to a plain OpenVPN; times to join and to leave a network; 200 devices in 50 clusters.

In the lab, one processor runs the guest, the gateway and the user's laptop. The plain OpenVPN server has the ciphers
and options of the agent's server, but neither ``vlan-tagging`` nor the agent's filters. The plain server's tap is a
port of the cluster's bridge. A guest sends data over TCP to the laptop, alternately through the two servers, and for
the same time through each.

The time to join is from a new cluster's activation to the first answer of a guest, including the creation of the
profile and the connection. The time to leave is from the request of a revocation to the last answer of a guest. Times
and throughputs are medians.
"""

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from support.gateways.vpn_documents import VpnAuthority

from benchmarks.measurement import TIMES, Measurement
from virtcloud.agent.gateway.openvpn_config import ServerAccount, render_config
from virtcloud.client.sbf import SbfClient
from virtcloud.client.vpn_profile import make_device_key, render_profile
from virtcloud.lab import Lab, LabFile
from virtcloud.lab.addressing import LAPTOP
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.laptop import CONNECTED, LaptopVpn
from virtcloud.lab.snapshot import read_guests
from virtcloud.lab.state import LabState
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.errors import TooManyRequests
from virtcloud.model.guest_spec import Guest
from virtcloud.model.views import ClusterView
from virtcloud.model.vpn import NewVpnProfile, VpnProfileRequest, VpnProtocol

GATEWAY, HOST, SITE = "brno-gw1", "brno-h1", "brno"
LAB = {
    "name": "vpn",
    "sites": [
        {
            "name": SITE,
            "switches": [{"name": "brno-sw1", "platform": "linux_bridge", "ports": ["p1", "p2"]}],
            "hosts": [{"name": HOST, "ports": ["eth0"]}],
            "gateways": [{"name": GATEWAY, "ports": ["eth0"], "vpn": {"address": GATEWAY}}],
        }
    ],
    "links": [
        {"a": f"{HOST}:eth0", "b": "brno-sw1:p1"},
        {"a": f"{GATEWAY}:eth0", "b": "brno-sw1:p2"},
    ],
    "pools": {SITE: "100-199"},
}
ROUNDS, SECONDS = 7, 2.0
LIMIT_PAUSE_S = 5.0
WAIT_S = 5.0
ACCESS_ROUNDS = 5
REPLY = re.compile(r"^\[([\d.]+)\].*bytes from", re.MULTILINE)
CLUSTERS, DEVICES = 50, 4
PLAIN_PORT, PLAIN, PLAIN_PID = 1195, "plain0", "/run/plain.pid"
STOP_PLAIN = f"kill $(cat {PLAIN_PID}); while [ -e /sys/class/net/{PLAIN} ]; do sleep 0.1; done"
ROUTER_SOLICITATION_S = 5.0
"""Time in seconds from the setup of the taps until the gateway has learned each tap's MAC address.

About a second after the setup, the kernel sends a router solicitation from each tap.
"""
OMITTED = ("dev ", "port ", "vlan-", "management-", "auth-user-pass-optional", "chroot ", "tmp-dir ")
"""The beginnings of the lines in the agent's configuration that the plain server omits."""
RECEIVE = """
import socket, time
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    started, received = time.monotonic(), 0
    while piece := connection.recv(1 << 16):
        received += len(piece)
    print(received / (time.monotonic() - started))
"""
SEND = """
import socket, sys, time
ends = time.monotonic() + float(sys.argv[2])
while True:
    try:
        stream = socket.create_connection((sys.argv[1], 5001), timeout=30)
        break
    except OSError:
        time.sleep(0.05)
while time.monotonic() < ends:
    stream.sendall(bytes(1 << 16))
"""


def run() -> Iterator[Measurement]:
    """Measure the throughput, then the times to join and to leave, then the connection of many devices.

    Raise PermissionError if the process does not run as root.
    """
    if os.geteuid():
        raise PermissionError("this benchmark starts a lab: run it as root")
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab.up(LabFile.model_validate(LAB), state=LabState(Path(folder) / "state"))
        try:
            with SbfClient(f"unix://{lab.sbf_socket}", timeout=60) as client:
                yield from _measure_throughput(lab, client)
                yield from _measure_access(lab, client)
                yield from _measure_devices(lab, client)
            load = "load average of the machine at the end, by the benchmark and other programs"
            yield Measurement(load, os.getloadavg()[0], "")
        finally:
            lab.down()


def _create(client: SbfClient, key: str, spec: ClusterSpec) -> ClusterView:
    view = client.put_cluster(key, ClusterRequest(spec=spec))
    while view.state is not ClusterState.ACTIVE:
        view = client.cluster(key, after=view.version, wait=30)
    return view


def _make_profile(client: SbfClient, key: str, device: str) -> tuple[NewVpnProfile, str]:
    device_key = make_device_key()
    request = VpnProfileRequest(device=device, csr=device_key.csr)
    while True:
        try:
            profile = client.create_profile(key, request)
            break
        except TooManyRequests:  # SBF limits the profiles that a user creates in a minute
            time.sleep(LIMIT_PAUSE_S)
    return profile, render_profile(profile, device_key.private)


def _wait_until_confirmed(client: SbfClient, profile: NewVpnProfile) -> None:
    while client.profile(profile.cluster, profile.id, WAIT_S).pending:
        pass


def _measure_throughput(lab: Lab, client: SbfClient) -> Iterator[Measurement]:
    guest = Guest(name="g1", host=HOST, image="busybox", memory_mb=32, addresses=("10.0.0.1/24",))
    view = _create(client, "speed", ClusterSpec(owner="alice", guests=(guest,), vpn=True))
    profile, text = _make_profile(client, "speed", "tagged")
    _wait_until_confirmed(client, profile)
    tagged, plain = (LaptopVpn(lab, name, namespace=True) for name in ("tagged", "plain"))
    tagged.connect(text)
    _start_plain_server(lab, view, plain)
    for device, address in ((tagged, profile.addresses[0]), (plain, "10.0.0.99/24")):
        if not device.logs(CONNECTED):
            raise RuntimeError(device.log)
        device.move_interface(address)
    (domain,) = read_guests(lab, HOST)
    addresses = {"tagged": profile.addresses[0].partition("/")[0], "plain": "10.0.0.99"}
    rates: dict[str, list[float]] = {"tagged": [], "plain": []}
    for _ in range(ROUNDS):
        for device in (tagged, plain):
            rates[device.name].append(_transfer(lab, domain, device, addresses[device.name]))
    for device in (tagged, plain):
        device.disconnect()
    lab.run(GATEWAY, ("sh", "-c", STOP_PLAIN), check=True)
    rate = {name: median(found) for name, found in rates.items()}
    yield Measurement("throughput of the plain OpenVPN in the lab", 8e-6 * rate["plain"], "Mbit/s")
    ratio = rate["tagged"] / rate["plain"]
    yield Measurement("throughput of the gateway, compared with the plain OpenVPN", ratio, TIMES, 0.9, at_least=True)
    client.delete_cluster("speed")


def _measure_access(lab: Lab, client: SbfClient) -> Iterator[Measurement]:
    rounds = [_join_and_revoke(lab, client, f"access{number}") for number in range(ACCESS_ROUNDS)]
    joined, off = (median(found) for found in zip(*rounds, strict=True))
    yield Measurement("from an active cluster to the first answer of its guest, with a new profile", joined, "s", 2)
    yield Measurement("from the request of a revocation to the last answer of a guest", off, "s", 1)


def _join_and_revoke(lab: Lab, client: SbfClient, key: str) -> tuple[float, float]:
    """Measure one new cluster and its device: the seconds to join the network, and the seconds to leave it."""
    guest = Guest(name="g1", host=HOST, image="busybox", memory_mb=32, addresses=("10.0.0.1/24",))
    _create(client, key, ClusterSpec(owner="alice", guests=(guest,), vpn=True))
    started = time.time()
    profile, text = _make_profile(client, key, key)
    _wait_until_confirmed(client, profile)
    device = LaptopVpn(lab, key, namespace=True)
    device.connect(text)
    if not device.logs(CONNECTED):
        raise RuntimeError(device.log)
    device.move_interface(profile.addresses[0])
    with ThreadPoolExecutor(1) as pool:
        series = pool.submit(device.run, "ping", "-D", "-i", "0.05", "-w", "8", "10.0.0.1")
        time.sleep(3)
        revoked = time.time()
        client.revoke_profile(key, profile.id)
    replies = [float(stamp) for stamp in REPLY.findall(series.result()[1])]
    device.disconnect()
    client.delete_cluster(key)
    return replies[0] - started, max(0.0, replies[-1] - revoked)


def _start_plain_server(lab: Lab, view: ClusterView, device: LaptopVpn) -> None:
    authority = VpnAuthority()
    account = ServerAccount("nobody", "nogroup")
    config = render_config(authority.server, VpnProtocol.UDP, account, Path("/run"), ipv6=False)
    lines = [line for line in config.splitlines() if not line.startswith(OMITTED)]
    own = (f"dev {PLAIN}", f"port {PLAIN_PORT}", *lines)
    lab.run(GATEWAY, ("sh", "-c", "cat >/run/plain.conf"), stdin="\n".join(own) + "\n", check=True)
    lab.run(GATEWAY, ("openvpn", "--config", "/run/plain.conf", "--daemon", "--writepid", PLAIN_PID), check=True)
    bridge = f"br{next(iter(view.vlans.values()))}"
    connect = f"until ip link set {PLAIN} master {bridge} up 2>/dev/null; do sleep 0.1; done"
    lab.run(GATEWAY, ("sh", "-c", connect), check=True)
    profile = authority.render_profile(authority.make_device("plain"), GATEWAY, VpnProtocol.UDP)
    device.connect(profile.replace(" 1194", f" {PLAIN_PORT}"))


def _transfer(lab: Lab, domain: str, device: LaptopVpn, address: str) -> float:
    enter = ENTER_CONTAINER.replace(" -n -m -u ", " -n ")
    python = (sys.executable, "-I", "-S", "-c")
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(device.run, *python, RECEIVE, timeout_s=60)
        lab.run(HOST, ("sh", "-c", enter, domain, *python, SEND, address, str(SECONDS)), check=True)
        return float(received.result()[1].split()[1])


def _measure_devices(lab: Lab, client: SbfClient) -> Iterator[Measurement]:
    names = [(f"c{cluster}", f"d{cluster}-{device}") for cluster in range(CLUSTERS) for device in range(DEVICES)]
    spec = ClusterSpec(owner="alice", hosts=(HOST,), vpn=True)
    with ThreadPoolExecutor(4) as pool:
        views = dict(pool.map(lambda key: (key, _create(client, key, spec)), [f"c{n}" for n in range(CLUSTERS)]))
        made = list(pool.map(lambda pair: _make_profile(client, *pair), names))
    for profile, _ in made:
        _wait_until_confirmed(client, profile)
    before = _server_memory(lab)
    devices = [LaptopVpn(lab, name) for _, name in names]
    started = time.monotonic()
    for device, (_, text) in zip(devices, made, strict=True):
        device.connect(text, "--ifconfig-noexec")
    for device in devices:
        if not device.logs(CONNECTED, 300):
            raise RuntimeError(device.log)
    seconds = time.monotonic() - started
    what = f"time until {len(devices)} devices are connected, including the start of their clients"
    yield Measurement(what, seconds, "s")
    memory = (_server_memory(lab) - before) / len(devices)
    yield Measurement("memory of the gateway's servers for each device", memory, "KiB", 200)
    yield Measurement("devices in the VLAN of another cluster", _count_misplaced(lab, views, names), "", 0)


def _server_memory(lab: Lab) -> float:
    script = "for pid in $(pgrep openvpn); do grep VmRSS /proc/$pid/status; done"
    lines = lab.run(GATEWAY, ("sh", "-c", script), check=True).stdout.splitlines()
    return sum(float(line.split()[1]) for line in lines)


def _count_misplaced(lab: Lab, views: dict[str, ClusterView], names: list[tuple[str, str]]) -> int:
    """Count the devices that the gateway did not see, or saw outside the VLAN of their cluster."""
    lines = "".join(f"link set tap-{name} up\n" for _, name in names)
    lab.run(LAPTOP, ("ip", "-batch", "-"), stdin=lines, check=True)
    time.sleep(ROUTER_SOLICITATION_S)
    links = json.loads(lab.run(LAPTOP, ("ip", "-json", "link"), check=True).stdout)
    macs = {link["ifname"]: link["address"] for link in links}
    found: dict[str, set[str]] = {}
    for entry in json.loads(lab.run(GATEWAY, ("bridge", "-json", "fdb", "show"), check=True).stdout):
        if entry["ifname"].startswith("vpn-"):
            found.setdefault(entry["mac"], set()).add(entry["ifname"].partition(".")[2])
    wanted = {macs[f"tap-{name}"]: {str(next(iter(views[key].vlans.values())))} for key, name in names}
    return sum(found.get(mac) != vlans for mac, vlans in wanted.items())
