"""Sets the MTU of a container's ``eth0``: libvirt's LXC driver does not set the MTU (observed with libvirt 9.0).

The module runs no program and reads no file of the container, because these are untrusted.
"""

import ctypes
import fcntl
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

from virtcloud.agent.guests.container_init import find_init
from virtcloud.model.errors import Refused

INTERFACE = "eth0"
_SIOCSIFMTU = 0x8922  # linux/sockios.h
_CLONE_NEWNET = 0x40000000  # linux/sched.h


def set_container_mtu(name: str, controller: int, mtu: int) -> None:
    """Set the MTU of a running container. ``controller`` is the ID of the container's libvirt process.

    Raise Refused if the container has ended, or the kernel refuses the change.
    """
    try:
        namespace = os.open(f"/proc/{find_init(name, controller)}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with ThreadPoolExecutor(1) as thread:  # setns(2) changes the network namespace of one thread
                thread.submit(set_mtu_in, namespace, mtu).result()
        finally:
            os.close(namespace)
    except OSError as error:
        raise Refused(f"cannot set MTU {mtu} of {INTERFACE} in container {name}: {error.strerror}") from error


def set_mtu_in(namespace: int, mtu: int) -> None:
    """Enter a network namespace, and set the MTU of its interface ``eth0``. Raise OSError on failure.

    The calling thread stays in this namespace.
    """
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace: {os.strerror(ctypes.get_errno())}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16sI12x", INTERFACE.encode(), mtu))
