"""The MTU of a container's ``eth0``, which libvirt's LXC driver does not set (observed with libvirt 9.0).

The agent enters the container's network namespace in a separate thread and sets the MTU there. No program of the
container is involved, and nothing of the container's files is read.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from virtcloud.model.errors import Refused

INTERFACE = "eth0"
_SIOCSIFMTU = 0x8922  # linux/sockios.h
_CLONE_NEWNET = 0x40000000  # linux/sched.h


def set_container_mtu(domain: Any, mtu: int) -> None:  # noqa: ANN401 - libvirt has no types
    """Set the MTU of a running container. Raise Refused if the kernel refuses the change."""
    import libvirt_lxc  # noqa: PLC0415 - only containers with an MTU need this part of libvirt's binding

    namespaces: list[int] = libvirt_lxc.lxcOpenNamespace(domain, 0)
    try:
        with ThreadPoolExecutor(1) as thread:  # setns(2) changes the network namespace of one thread
            thread.submit(set_mtu_in, _find_network(namespaces), mtu).result()
    except OSError as error:
        raise Refused(f"cannot set MTU {mtu} of {INTERFACE} in container {domain.name()}: {error.strerror}") from error
    finally:
        for namespace in namespaces:
            os.close(namespace)


def set_mtu_in(namespace: int, mtu: int) -> None:
    """Enter a network namespace, and set the MTU of its interface ``eth0``. Raise OSError on failure.

    The calling thread stays in this namespace.
    """
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace: {os.strerror(ctypes.get_errno())}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16sI12x", INTERFACE.encode(), mtu))


def _find_network(namespaces: Iterable[int]) -> int:
    for namespace in namespaces:
        if str(Path(f"/proc/self/fd/{namespace}").readlink()).startswith("net:"):
            return namespace
    raise Refused("libvirt returned no network namespace of the container")
