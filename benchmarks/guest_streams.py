"""Measures TCP streams between two guests: with and without VLAN tags, with and without filters.

Two bridges in a network namespace stand for two hosts. Each bridge has a guest's port and an uplink; a veth pair
connects the uplinks. One guest sends a TCP stream to the other guest, with segmentation offload as in real guests. No
cable limits the rates. The streams run in the kernel of the lab, because not every machine's kernel has 802.1Q.

The lab's kernel has one processor, and one thread sends and receives a stream. Therefore the rate is the reciprocal of
the processor time for all work: both guests, both bridges and the filters. With a thread for each guest, the rate also
depended on the order in which the kernel ran the threads: two measurements without filters then differed by up to 9 %,
which is more than the filters cost.

The rates of equally configured pairs of bridges differ. Therefore each pair is used for all cases. For untagged
streams, each bridge is connected to its uplink, and for tagged streams to the uplink's VLAN interface. Each round
measures all cases in a random order. The rate of a case is the highest of several consecutive rates, because other
programs only lower a rate. To compare two cases, the program divides their rates for each round and pair of bridges;
the ratio of the cases is the median of the quotients. The control measures untagged streams with filters twice in each
round. The ratio of both measurements shows how exact the other ratios of the run are. If this ratio differs from 1 by
more than 1 %, the other ratios of the run have no targets.

A VLAN interface loses no offload (`ethtool -k`). The only additional cost of tags is that each TCP segment (up to
64 KB) passes one more interface in each host. No setting of the agent would avoid this cost, which is the same without
filters.
"""

import ctypes
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
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
ROUNDS, SEGMENTS, VLAN = 9, 14, 100
PIECE, STREAM = 1 << 20, 4 << 20
STREAMS = 5
MAX_TRANSFER_S = 30
"""Number of consecutive rates. The highest counts."""
CASES = (
    *(("untagged", 0), ("tagged", 0), ("untagged", 1), ("tagged", 1)),
    *(("control", 1), ("tagged", 200), ("addressed", 1)),
)
"""Each case: the kind of stream, and a number. ``addressed`` is an untagged stream of guests with checked IP addresses.

0 means no filters. A number N above 0 means filters of the two guests of each stream, and of N - 1 further guests.
"""
Rates = dict[tuple[str, int], list[float]]
"""The rates of each case in bit/s, in the order of rounds and segments."""
ROOT = Path(__file__).parents[1]
PORT = 5001
MACS = "02:00:00:00:00:01", "02:00:00:00:01:01"
LAB_HOST = "praha-h2"
GBIT = 1e9
EXACT = 0.01


def run() -> Iterator[Measurement]:
    """Measure in a lab that has the default topology, but runs neither SBF nor agents."""
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
    ratios = {
        "tagged compared with untagged, no filters": (_compare(rates, ("tagged", 0), ("untagged", 0)), None),
        "tagged compared with untagged, with filters": (_compare(rates, ("tagged", 1), ("untagged", 1)), 0.99),
        "filters compared with no filters, tagged": (_compare(rates, ("tagged", 1), ("tagged", 0)), 0.97),
        "filters compared with no filters, untagged": (_compare(rates, ("untagged", 1), ("untagged", 0)), 0.97),
        "filters of 199 further guests compared with no further guests, tagged": (
            _compare(rates, ("tagged", 200), ("tagged", 1)),
            0.97,
        ),
        "filters of guests with checked IP addresses compared with no filters, untagged": (
            _compare(rates, ("addressed", 1), ("untagged", 0)),
            None,
        ),
    }
    for what, (ratio, target) in ratios.items():
        is_exact = abs(control - 1) <= EXACT
        yield Measurement(what, ratio, TIMES, target if is_exact else None, at_least=True)
    yield Measurement("control: untagged compared with untagged, with filters", control, TIMES)


def _compare(rates: Rates, case: tuple[str, int], base: tuple[str, int]) -> float:
    return median(one / other for one, other in zip(rates[case], rates[base], strict=True))


class StreamSegment:
    """Two bridges with a guest each, and a veth pair with VLAN interfaces between the bridges."""

    def __init__(self, host: ThreadPoolExecutor, kernel: NetlinkKernel, number: int) -> None:
        """Create the segment in the network namespace of ``host``, and each guest in its own namespace."""
        self._kernel, self._number = kernel, number
        self._guests = _namespace(), _namespace()
        self._uplinks: list[dict[str, int]] = []
        host.submit(self._connect_hosts).result()
        for end, guest in enumerate(self._guests):
            process = guest.submit(threading.get_native_id).result()
            host.submit(self._connect_guest, end, process).result()
            commands = (
                f"ip link set guest address {MACS[end]} up; ip address add {self._address(end)}/24 dev guest; "
                "echo 1 >/proc/sys/net/ipv4/tcp_no_metrics_save"  # otherwise a lost segment slows later streams down
            )
            guest.submit(subprocess.run, ["sh", "-c", commands], check=True).result()

    def list_ports(self, *, addressed: bool) -> list[GuestPort]:
        """Return the filtered ports of the guests. If ``addressed`` is true, the filters check IP addresses."""
        return [
            GuestPort(self._port(end), mac, (f"{self._address(end)}/24",) if addressed else None)
            for end, mac in enumerate(MACS)
        ]

    def select(self, kind: str) -> None:
        """Connect the bridges with VLAN interfaces (``tagged``) or with the uplinks (other kinds)."""
        wanted, other = ("tagged", "untagged") if kind == "tagged" else ("untagged", "tagged")
        for uplink in self._uplinks:
            self._kernel.change(uplink[other], master=0)
            self._kernel.change(uplink[wanted], master=uplink["bridge"])

    def measure_rate(self) -> float:
        """Return the rate of a stream from the first to the second guest in bit/s."""
        first, second = self._guests
        address = (self._address(1), PORT)
        with (
            second.submit(socket.create_server, address).result() as listener,
            first.submit(socket.create_connection, address, 10).result() as sender,
            listener.accept()[0] as receiver,
        ):
            sender.setblocking(False)
            receiver.setblocking(False)
            return max(_transfer(sender, receiver) for _ in range(STREAMS))

    def _address(self, end: int) -> str:
        return f"10.0.{self._number}.{end + 1}"

    def _port(self, end: int) -> str:
        return names.guest_port_name(f"s{self._number}", f"g{end}", VLAN)

    def _connect_hosts(self) -> None:
        uplinks = [f"up{2 * self._number + end}" for end in range(2)]
        self._kernel.add_veth_pair(uplinks[0], uplinks[1], threading.get_native_id(), 1500)
        for end, name in enumerate(uplinks):
            uplink = _find(self._kernel, name)
            self._kernel.change(uplink.index, up=True)
            tagged = self._kernel.add_vlan(f"{name}.v", uplink, VLAN)
            bridge = self._kernel.add_bridge(names.bridge_name(VLAN + 2 * self._number + end))
            for index in (tagged, bridge):
                self._kernel.change(index, up=True)
            self._uplinks.append({"untagged": uplink.index, "tagged": tagged, "bridge": bridge})

    def _connect_guest(self, end: int, process: int) -> None:
        index = self._kernel.add_veth_pair(self._port(end), "guest", process, 1500)
        self._kernel.change(index, master=self._uplinks[end]["bridge"], up=True)


def measure() -> Rates:
    """Measure all cases in new network namespaces. Return the rates in bit/s."""
    with _namespace() as host, closing(host.submit(NetlinkKernel).result()) as kernel:
        segments = [StreamSegment(host, kernel, number) for number in range(SEGMENTS)]
        time.sleep(1)  # the kernel detects the carriers
        rates: Rates = {case: [] for case in CASES}
        order = Random(1)  # noqa: S311 - no secret
        for _ in range(ROUNDS):
            for case in order.sample(CASES, len(CASES)):
                host.submit(NftablesFilters().replace, _list_ports(segments, *case)).result()
                for segment in segments:
                    host.submit(segment.select, case[0]).result()
                    rates[case].append(segment.measure_rate())
        return rates


def _namespace() -> ThreadPoolExecutor:
    def enter() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot create a network namespace")

    return ThreadPoolExecutor(1, initializer=enter)


def _find(kernel: NetlinkKernel, name: str) -> KernelInterface:
    return next(interface for interface in kernel.list_interfaces() if interface.name == name)


def _transfer(sender: socket.socket, receiver: socket.socket) -> float:
    """Send and receive ``STREAM`` octets. Return the rate in bit/s. Raise TimeoutError after `MAX_TRANSFER_S`."""
    piece, buffer, total = bytes(PIECE), bytearray(PIECE), 0
    start = time.monotonic()
    while total < STREAM:
        if time.monotonic() > start + MAX_TRANSFER_S:
            raise TimeoutError(f"expected {STREAM} octets within {MAX_TRANSFER_S} s, got {total}")
        with suppress(BlockingIOError):
            sender.send(piece)
        with suppress(BlockingIOError):
            while number := receiver.recv_into(buffer):
                total += number
    return 8 * total / (time.monotonic() - start)


def _list_ports(segments: Sequence[StreamSegment], kind: str, number: int) -> tuple[GuestPort, ...]:
    """Return the filtered ports of a case: the ports of the guests, and ``number`` - 1 imaginary ports.

    If ``number`` is 0, return no ports.
    """
    if not number:
        return ()
    others = (names.guest_port_name("other", f"g{one}", VLAN) for one in range(number - 1))
    return (
        *(port for segment in segments for port in segment.list_ports(addressed=kind == "addressed")),
        *(GuestPort(port, f"02:00:00:00:02:{one:02x}") for one, port in enumerate(others)),
    )


if __name__ == "__main__":
    print(json.dumps([(*case, of_case) for case, of_case in measure().items()]))  # noqa: T201 - a command's output
