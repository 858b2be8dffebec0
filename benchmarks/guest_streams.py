"""TCP between two guests: with VLAN tags and without, with filters and without.

Two bridges in a network namespace stand for two hosts. Each bridge has a guest's port and an uplink; a veth pair
connects the uplinks. One guest sends a TCP stream to the other guest, with segmentation offload as in real guests. In
each round, all cases are measured one after the other, in a random order. Each kind of segment exists several times,
because the rates of equal segments differ by up to 15 % for as long as they exist. Each ratio compares the medians of
all streams. No cable limits the rates. The streams run in the kernel of the lab, because not every machine's kernel has
802.1Q.

The bare segments are created by ``ip`` commands only: a veth pair, a VLAN interface on each end, a bridge. They contain
no part of virtcloud, and no filters. Their ratio of tagged to untagged is that of the kernel itself; no agent can
exceed it. Therefore the target compares virtcloud's ratio, with filters, with the ratio of the bare segments.

The control compares two untagged segments, which differ in nothing: it shows how exact the ratios of a run are. If it
differs from 1 by more than 1 %, other programs used the machine, and the ratios of this run get no verdict.

A VLAN interface loses no offload: `ethtool -k` lists the same segmentation, transmit checksums and scatter-gather for
the VLAN interface as for its uplink, the uplink inserts the tags itself (`tx-vlan-offload`), and both have the same
largest segment. What remains is that each segment of up to 64 KB passes one more interface, at the sender and at the
receiver. No setting of the agent would avoid this.
"""

import ctypes
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measurement import TIMES, Measurement, measure_load
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filters import GuestPort
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.lab import Lab, LabOptions, read_lab_file
from virtcloud.lab.state import LabState

CLONE_NEWNET = 0x40000000  # linux/sched.h
ROUNDS, SECONDS, COPIES = 15, 0.1, 4
PIECE = 1 << 20
KINDS = ("tagged", "untagged", "control", "bare tagged", "bare untagged")
"""Only the segments of the kinds "tagged" and "bare tagged" have tags. "control" are further untagged segments."""
STREAMS = tuple(
    f"{KINDS[(copy + number) % len(KINDS)]} {copy}" for copy in range(COPIES) for number in range(len(KINDS))
)
"""The streams of all kinds in the order of their creation, in which each kind has each place."""
VLANS = {stream: 100 + 2 * number for number, stream in enumerate(STREAMS)}
"""The names of bridges have VLAN IDs: an even one on the first host, and the next one on the second host."""
GUESTS = {stream: (f"10.0.{vlan}.1", f"10.0.{vlan}.2") for stream, vlan in VLANS.items()}
CASES = (
    *(("bare untagged", 0), ("tagged", 0), ("bare tagged", 0), ("untagged", 0)),
    *(("untagged", 1), ("tagged", 1), ("control", 1), ("tagged", 200)),
)
"""The kind of segment, and the number of guests with filters (0: no filters)."""
Rates = dict[tuple[str, int], list[float]]
ROOT = Path(__file__).parents[1]
PORT = 5001
LAB_HOST = "praha-h2"
GBIT = 1e9
EXACT = 0.01


def run() -> Iterator[Measurement]:
    """Measure in a lab of the default topology that runs neither SBF nor agents."""
    yield measure_load()
    with TemporaryDirectory() as folder:
        lab = Lab.up(read_lab_file(), LabOptions(bare=True), state=LabState(Path(folder) / "lab"))
        try:
            program = ("env", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", sys.executable, "-m", __spec__.name)
            output = lab.run(LAB_HOST, program, timeout_s=300, check=True).stdout
        finally:
            lab.down()
    rates: Rates = {(str(kind), int(number)): of_case for kind, number, of_case in json.loads(output)}
    yield Measurement("tagged, no filters", median(rates["tagged", 0]) / GBIT, "Gbit/s")
    control = _compare(rates, ("control", 1), ("untagged", 1))
    bare = _compare(rates, ("bare tagged", 0), ("bare untagged", 0))
    ours = _compare(rates, ("tagged", 1), ("untagged", 1))
    ratios = {
        "tagged compared with untagged: bare segments, the kernel's own ratio": (bare, None),
        "tagged compared with untagged, no filters": (_compare(rates, ("tagged", 0), ("untagged", 0)), None),
        "tagged compared with untagged, with filters": (ours, None),
        "the same, compared with the kernel's own ratio": (ours / bare, 0.99),
        "tagged without filters compared with bare tagged": (_compare(rates, ("tagged", 0), ("bare tagged", 0)), 0.99),
        "filters of 1 guest compared with no filters": (_compare(rates, ("tagged", 1), ("tagged", 0)), 0.97),
        "filters of 200 guests compared with 1 guest": (_compare(rates, ("tagged", 200), ("tagged", 1)), 0.97),
    }
    for what, (ratio, target) in ratios.items():
        is_exact = abs(control - 1) <= EXACT
        yield Measurement(what, ratio, TIMES, target if is_exact else None, at_least=True)
    yield Measurement("control: untagged compared with untagged, with filters", control, TIMES)


def _compare(rates: Rates, case: tuple[str, int], base: tuple[str, int]) -> float:
    return median(rates[case]) / median(rates[base])


def measure() -> Rates:
    """Measure all cases in new network namespaces. Return the rates in bit/s."""
    with _namespace() as host, closing(host.submit(NetlinkKernel).result()) as kernel:
        host.submit(_connect_uplinks, kernel).result()
        streams = {kind: _connect_guests(host, kernel, kind) for kind in GUESTS}
        rates: Rates = {case: [] for case in CASES}
        order = Random(1)  # noqa: S311 - no secret
        for _ in range(ROUNDS):
            for kind, number in order.sample(CASES, len(CASES)):
                host.submit(NftablesFilters().replace, tuple(_list_ports(number))).result()
                for copy in order.sample(range(COPIES), COPIES):
                    rates[kind, number].append(streams[f"{kind} {copy}"]())
        return rates


def _namespace() -> ThreadPoolExecutor:
    """Return a thread in a new network namespace."""

    def enter() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot create a network namespace")

    return ThreadPoolExecutor(1, initializer=enter)


def _connect_uplinks(kernel: NetlinkKernel) -> None:
    """Create the uplinks of both hosts, and a bridge for each kind of segment on each host."""
    for kind, vlan in VLANS.items():
        if kind.startswith("bare"):
            _connect_bare_uplinks(kind, vlan)
            continue
        uplinks = f"up{vlan}", f"up{vlan + 1}"
        kernel.add_veth_pair(*uplinks, threading.get_native_id(), 1500)
        for number, uplink in enumerate(uplinks):
            kernel.change(_find(kernel, uplink).index, up=True)
            bridge = kernel.add_bridge(names.bridge_name(vlan + number))
            port = _find(kernel, uplink).index
            if kind.startswith("tagged"):
                port = kernel.add_vlan(f"vlan{vlan + number}", _find(kernel, uplink), vlan)
            kernel.change(port, master=bridge, up=True)
            kernel.change(bridge, up=True)


def _connect_bare_uplinks(kind: str, vlan: int) -> None:
    """Create a segment as an administrator would: with ``ip`` commands, and without any part of virtcloud."""
    commands = [f"link add b{vlan}a type veth peer name b{vlan}b"]
    for number, uplink in enumerate((f"b{vlan}a", f"b{vlan}b")):
        bridge, port = names.bridge_name(vlan + number), uplink
        commands += [f"link set {uplink} up", f"link add {bridge} type bridge", f"link set {bridge} up"]
        if kind.startswith("bare tagged"):
            port = f"{uplink}.v"
            commands.append(f"link add link {uplink} name {port} type vlan id {vlan}")
        commands.append(f"link set {port} master {bridge} up")
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)  # noqa: S607


def _connect_guests(host: ThreadPoolExecutor, kernel: NetlinkKernel, kind: str) -> Callable[[], float]:
    """Connect a guest to each host. Return a function that measures a stream between the guests in bit/s."""
    first, second = (_namespace() for _ in range(2))
    for number, guest in enumerate((first, second)):
        process = guest.submit(threading.get_native_id).result()
        host.submit(_connect_guest, kernel, kind, number, process).result()
        address = GUESTS[kind][number]
        mac = f"02:00:00:00:0{number}:01"
        commands = (
            f"ip link set guest address {mac} up; ip address add {address}/24 dev guest; "
            "echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save"  # otherwise a lost segment slows all later streams down
        )
        guest.submit(subprocess.run, ["sh", "-c", commands], check=True).result()
    time.sleep(1)  # the kernel detects the carrier

    def measure_rate() -> float:
        listener = second.submit(socket.create_server, (GUESTS[kind][1], PORT)).result()
        with listener:
            received = second.submit(_receive, listener)
            first.submit(_send, GUESTS[kind][1]).result()
            return received.result()

    return measure_rate


def _connect_guest(kernel: NetlinkKernel, kind: str, number: int, process: int) -> None:
    vlan = VLANS[kind] + number
    port = _port_name(kind, number)
    index = kernel.add_veth_pair(port, "guest", process, 1500)
    kernel.change(index, master=_find(kernel, names.bridge_name(vlan)).index, up=True)


def _find(kernel: NetlinkKernel, name: str) -> KernelInterface:
    return next(interface for interface in kernel.list_interfaces() if interface.name == name)


def _port_name(kind: str, number: int) -> str:
    return names.guest_port_name(kind.replace(" ", "-"), f"g{number}", 100)


def _send(address: str) -> None:
    piece = bytes(PIECE)
    with socket.create_connection((address, PORT), timeout=10) as stream:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            stream.sendall(piece)


def _receive(listener: socket.socket) -> float:
    """Return the rate of a received stream in bit/s."""
    buffer, total = bytearray(PIECE), 0
    stream, _ = listener.accept()
    with stream:
        start = time.monotonic()
        while number := stream.recv_into(buffer):
            total += number
        return 8 * total / (time.monotonic() - start)


def _list_ports(number: int) -> list[GuestPort]:
    """Return ``number`` guests with filters. The guests that send are among them; the others do not exist."""
    if not number:
        return []
    macs = {
        _port_name(kind, guest): f"02:00:00:00:0{guest}:01" for kind in GUESTS if " " not in kind for guest in range(2)
    }
    others = {names.guest_port_name("other", f"g{one}", 100): f"02:00:00:00:02:{one:02x}" for one in range(number - 1)}
    return [GuestPort(port, mac) for port, mac in {**macs, **others}.items()]


if __name__ == "__main__":
    print(json.dumps([(*case, of_case) for case, of_case in measure().items()]))  # noqa: T201 - a command's output
