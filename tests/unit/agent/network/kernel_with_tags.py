"""Tests of segments on a kernel with 802.1Q support. `tests/lab/test_agent_kernel.py` runs this file in a lab."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.fake_machine import FakeUplinkRecords
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedSegment
from virtcloud.model.wanted import Segment

Observed = tuple[ObservedSegment, ...]


@contextmanager
def netlink() -> Iterator[NetlinkKernel]:
    kernel = NetlinkKernel()
    try:
        kernel_links.link("add", ifname="uplink0", kind="veth", peer="uplink1")
        for name in ("uplink0", "uplink1"):
            interface = find_interface(kernel, name)
            assert interface
            kernel.change(interface.index, mtu=1600, up=True)
        yield kernel
    finally:
        kernel.close()


def find_interface(kernel: NetlinkKernel, name: str) -> KernelInterface | None:
    return next((interface for interface in kernel.list_interfaces() if interface.name == name), None)


def test_a_segment_is_built_read_corrected_and_removed(in_namespace: Run, make_segment: Callable[..., Segment]) -> None:
    def work() -> tuple[Observed, Observed, Observed, list[str]]:
        with netlink() as kernel:
            segments, wanted = SegmentInterfaces(kernel, FakeUplinkRecords()), make_segment("a", 100, port="uplink0")
            segments.ensure_segment(wanted)
            built = segments.read()
            bridge = find_interface(kernel, "br100")
            assert bridge
            kernel.delete(bridge.index)
            without_bridge = segments.read()
            segments.ensure_segment(wanted)
            rebuilt = segments.read()
            segments.ensure_no_segment("a", 100)
            return built, without_bridge, rebuilt, sorted(interface.name for interface in kernel.list_interfaces())

    expected = (ObservedSegment("a", 100, "uplink0"),)
    built, without_bridge, rebuilt, remaining = in_namespace(work)
    assert (built, rebuilt, remaining) == (expected, expected, ["lo", "uplink0", "uplink1"])
    assert without_bridge == (ObservedSegment("a", 100, "uplink0", ("the bridge is missing",)),)


def test_a_smaller_port_does_not_reduce_the_bridges_mtu(
    in_namespace: Run, make_segment: Callable[..., Segment]
) -> None:
    def work() -> object:
        with netlink() as kernel:
            SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, port="uplink0"))
            kernel_links.link("add", ifname="small0", kind="veth", peer="small1")
            small, bridge = find_interface(kernel, "small0"), find_interface(kernel, "br100")
            assert small
            assert bridge
            kernel.change(small.index, master=bridge.index)
            return find_interface(kernel, "br100")

    bridge = in_namespace(work)
    assert isinstance(bridge, KernelInterface)
    assert bridge.mtu == 1600
