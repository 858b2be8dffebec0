"""Filters of guests: the processor time in which a bridge forwards a guest's frames, with filters and without.

A guest sends full frames (1,514 octets) of TCP and UDP, and the smallest frames (60 octets) of TCP, through a bridge in
a network namespace of this machine's kernel. The guest uses no segmentation offload, so the filters check each frame.
The time includes the system call that sends a frame. Each value is the median of several rounds.
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
KINDS = {"full TCP frames": (1514, 6), "full UDP frames": (1514, 17), "smallest TCP frames": (60, 6)}
GUEST = "02:00:00:00:00:01"


def run() -> Iterator[Measurement]:
    """Measure the time of each kind of frame."""
    if os.geteuid():
        raise PermissionError("this benchmark creates a network namespace: run it as root")
    with ThreadPoolExecutor(1, initializer=_enter_namespace) as thread:
        seconds = thread.submit(_measure).result()
    for kind in KINDS:
        bare, one, many = (seconds[kind, case] for case in CASES)
        yield Measurement(f"{kind}, no filters, per frame", 1e6 * bare / FRAMES, "µs")
        yield Measurement(f"{kind}: filters of 1 guest compared with no filters", one / bare, TIMES)
        yield Measurement(f"{kind}: filters of 200 guests compared with 1 guest", many / one, TIMES, 1.03)


def _enter_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot create a network namespace")


def _measure() -> dict[tuple[str, int], float]:
    ports = [_port(number) for number in range(CASES[-1])]
    _connect(ports[0][0])
    found: dict[tuple[str, int], list[float]] = {(kind, case): [] for kind in KINDS for case in CASES}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as guest:
        guest.bind(("guest", 0))
        for _ in range(ROUNDS):
            for (kind, case), times in found.items():
                NftablesFilters().replace(tuple(ports[:case]))
                times.append(_send(guest, *KINDS[kind]))
    return {key: median(times) for key, times in found.items()}


def _port(number: int) -> GuestPort:
    mac = f"02:00:00:00:{number // 256:02x}:{number % 256 + 1:02x}"
    return GuestPort(names.guest_port_name("a", f"g{number}", 100), mac)


def _connect(port: str) -> None:
    with closing(NetlinkKernel()) as kernel:
        bridge = kernel.add_bridge("br100")
        kernel.change(bridge, up=True)
        for name, peer in (("guest", port), ("switch", "uplink")):
            kernel.add_veth_pair(name, peer, threading.get_native_id(), 1500)
            interfaces = {interface.name: interface.index for interface in kernel.list_interfaces()}
            kernel.change(interfaces[name], up=True)
            kernel.change(interfaces[peer], master=bridge, up=True)
    time.sleep(1)  # until the kernel has detected the carrier


def _send(guest: socket.socket, size: int, protocol: int) -> float:
    header = f"4500{size - 14:04x}0001000040{protocol:02x}00000a0000010a00000210001001"
    frame = bytes.fromhex("020000000099" + GUEST.replace(":", "") + "0800" + header).ljust(size, b"\0")
    started = time.thread_time()
    for _ in range(FRAMES):
        guest.send(frame)
    return time.thread_time() - started
