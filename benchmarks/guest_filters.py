"""Filters of guests: the processor time in which a bridge forwards a guest's frames, with filters and without.

A guest sends full frames (1,514 octets) and the smallest frames (60 octets) through a bridge in a network namespace of
this machine's kernel. The time includes the system call that sends a frame. Each value is the median of several rounds;
in each round, all cases are measured one after the other.
"""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median

from benchmarks.measurement import TIMES, Measurement
from virtcloud.agent.network import names
from virtcloud.agent.network.guest_filters import GuestPort
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters

CLONE_NEWNET = 0x40000000  # linux/sched.h
ROUNDS, FRAMES = 15, 20_000
CASES = (0, 1, 200)
"""Numbers of guests with filters."""
SIZES = {"full frames": 1514, "smallest frames": 60}
GUEST = "02:00:00:00:00:01"


def run() -> Iterator[Measurement]:
    """Measure the time of full frames, then of the smallest frames."""
    if os.geteuid():
        raise PermissionError("this benchmark creates a network namespace: run it as root")
    with ThreadPoolExecutor(1, initializer=_enter_namespace) as thread:
        seconds = thread.submit(_measure).result()
    for size in SIZES:
        bare, one, many = (seconds[size, case] for case in CASES)
        yield Measurement(f"{size}, no filters, each", 1e6 * bare / FRAMES, "µs")
        yield Measurement(f"{size}: filters of 1 guest compared with no filters", one / bare, TIMES)
        yield Measurement(f"{size}: filters of 200 guests compared with 1 guest", many / one, TIMES, 1.03)


def _enter_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")


def _measure() -> dict[tuple[str, int], float]:
    """Return the seconds of processor time in which all frames are forwarded, by size and number of guests."""
    ports = [_port(number) for number in range(CASES[-1])]
    _connect(ports[0][0])
    found: dict[tuple[str, int], list[float]] = {(size, case): [] for size in SIZES for case in CASES}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as guest:
        guest.bind(("guest", 0))
        for _ in range(ROUNDS):
            for (size, case), times in found.items():
                NftablesFilters().replace(tuple(ports[:case]))
                times.append(_send(guest, SIZES[size]))
    return {key: median(times) for key, times in found.items()}


def _port(number: int) -> GuestPort:
    return names.guest_port_name("a", f"g{number}", 100), f"02:00:00:00:{number // 256:02x}:{number % 256 + 1:02x}"


def _connect(port: str) -> None:
    """Connect a guest and an uplink by a bridge."""
    with closing(NetlinkKernel()) as kernel:
        bridge = kernel.add_bridge("br100")
        kernel.change(bridge, up=True)
        for name, peer in (("guest", port), ("switch", "uplink")):
            kernel.add_veth_pair(name, peer, threading.get_native_id(), 1500)
            interfaces = {interface.name: interface.index for interface in kernel.list_interfaces()}
            kernel.change(interfaces[name], up=True)
            kernel.change(interfaces[peer], master=bridge, up=True)
    time.sleep(1)  # the kernel detects the carrier


def _send(guest: socket.socket, size: int) -> float:
    frame = bytes.fromhex("020000000099" + GUEST.replace(":", "") + "0800").ljust(size, b"\0")
    started = time.thread_time()
    for _ in range(FRAMES):
        guest.send(frame)
    return time.thread_time() - started
