"""Checks of the kernel's network features and of uplinks, for ``virtcloud doctor --host``.

The checks do not change the host: interfaces and filters are created in a temporary network namespace.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from virtcloud.agent.network.guest_filters import GuestPort
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.nftables import NftablesFilters
from virtcloud.model.errors import Refused

CLONE_NEWNET: Final = 0x40000000  # linux/sched.h
MIN_MTU: Final = 1500


def check_interfaces() -> str:
    """Create interfaces like those of a segment. Return "" on success.

    Raise Refused if the kernel refuses an interface, and OSError if the namespace cannot be created.
    """

    def create() -> None:
        with closing(NetlinkKernel()) as kernel:
            kernel.add_veth_pair("vctry0", "vctry1", threading.get_native_id(), MIN_MTU)
            (uplink,) = [interface for interface in kernel.list_interfaces() if interface.name == "vctry0"]
            kernel.add_vlan("vctry0.2", uplink, 2)
            kernel.add_bridge("vctry2")

    _run_in_namespace(create)
    return ""


def check_filters() -> str:
    """Set filters like those of a guest. Return "" on success.

    Raise Refused if libnftables is missing, or the kernel refuses the filters. Raise OSError if the namespace cannot be
    created.
    """
    _run_in_namespace(lambda: NftablesFilters().replace((GuestPort("vctry", "02:00:00:00:00:01"),)))
    return ""


def list_packet_filter_sysctls() -> tuple[str, ...]:
    """Return the active sysctls that pass the frames of all bridges to the host's packet filter."""
    with closing(NetlinkKernel()) as kernel:
        return kernel.packet_filter_sysctls()


def check_uplink(port: str) -> str:
    """Return a text with the state and the MTU of the interface ``port``.

    Raise Refused with a remedy if the interface is missing or down, or its MTU is less than `MIN_MTU`.
    """
    with closing(NetlinkKernel()) as kernel:
        interface = next((interface for interface in kernel.list_interfaces() if interface.name == port), None)
    if interface is None:
        raise Refused("this host has no such interface; correct the topology, or rename the interface")
    if not interface.up:
        raise Refused(f"the interface is down; ip link set {port} up")
    if interface.mtu < MIN_MTU:
        raise Refused(f"MTU {interface.mtu}, but guests expect {MIN_MTU}; ip link set {port} mtu {MIN_MTU}")
    return f"up, MTU {interface.mtu}"


def _run_in_namespace(action: Callable[[], None]) -> None:
    def enter() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            error_number = ctypes.get_errno()
            raise OSError(error_number, f"cannot create a network namespace: {os.strerror(error_number)}")

    with ThreadPoolExecutor(1) as thread:  # unshare(2) changes the network namespace of one thread
        thread.submit(enter).result()
        thread.submit(action).result()
