"""Tests of the MTU of containers, in a network namespace of the real kernel."""

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from support.kernel.network_namespaces import Run

from virtcloud.agent.guests.container_mtu import set_mtu_in
from virtcloud.agent.network.kernel import NetlinkKernel

CLONE_NEWNET = 0x40000000  # linux/sched.h


def read_mtu(name: str) -> list[int]:
    with closing(NetlinkKernel()) as kernel:
        return [interface.mtu for interface in kernel.list_interfaces() if interface.name == name]


def test_only_the_containers_interface_gets_the_mtu(in_namespace: Run) -> None:
    def work() -> object:
        enter = ctypes.CDLL(None).unshare
        with ThreadPoolExecutor(1, initializer=enter, initargs=(CLONE_NEWNET,)) as container:
            thread = container.submit(threading.get_native_id).result()
            with closing(NetlinkKernel()) as kernel:
                kernel.add_veth_pair("vc100-0", "eth0", thread, 1500)
            namespace = os.open(f"/proc/{thread}/ns/net", os.O_RDONLY)
            with ThreadPoolExecutor(1) as agent:
                agent.submit(set_mtu_in, namespace, 1450).result()
            os.close(namespace)
            return read_mtu("vc100-0"), container.submit(read_mtu, "eth0").result()

    assert in_namespace(work) == ([1500], [1450])


def test_a_container_without_the_interface_is_an_error(in_namespace: Run) -> None:
    def work() -> object:
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        with pytest.raises(OSError, match="No such device"):
            set_mtu_in(namespace, 1450)
        os.close(namespace)
        return True

    assert in_namespace(work)
