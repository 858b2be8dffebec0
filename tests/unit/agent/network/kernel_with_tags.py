"""Tests of segments on a kernel with 802.1Q support.

tests/lab/test_agent_kernel.py runs them in a lab, whose kernel always supports 802.1Q.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fake_machine import FakeUplinkRecords

from virtcloud.agent.difference import ObservedSegment
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.wanted import Segment

Run = Callable[[Callable[[], object]], object]


@contextmanager
def netlink() -> Iterator[NetlinkKernel]:
    """Return the kernel of a namespace with a veth pair: uplink0 and uplink1."""
    opened = NetlinkKernel()
    try:
        opened._socket.link("add", ifname="uplink0", kind="veth", peer="uplink1")
        for name in ("uplink0", "uplink1"):
            link = named(opened, name)
            assert link
            opened.change(link.index, mtu=1600, up=True)
        yield opened
    finally:
        opened.close()


def named(kernel: NetlinkKernel, name: str) -> KernelInterface | None:
    return next((link for link in kernel.list_interfaces() if link.name == name), None)


def test_a_segment_is_built_read_corrected_and_removed(in_namespace: Run, make_segment: Callable[..., Segment]) -> None:
    def work() -> object:
        with netlink() as kernel:
            links, wanted = SegmentInterfaces(kernel, FakeUplinkRecords()), make_segment("a", 100, port="uplink0")
            links.ensure_segment(wanted)
            made = links.read()
            bridge = named(kernel, "br100")
            assert bridge
            kernel.delete(bridge.index)
            broken = links.read()
            links.ensure_segment(wanted)
            again = links.read()
            links.ensure_no_segment("a", 100)
            return made, broken, again, sorted(link.name for link in kernel.list_interfaces())

    sound = (ObservedSegment("a", 100, "uplink0"),)
    made, broken, again, left = in_namespace(work)  # type: ignore[misc]
    assert (made, again, left) == (sound, sound, ["lo", "uplink0", "uplink1"])
    assert broken == (ObservedSegment("a", 100, "uplink0", ("the bridge is missing",)),)


def test_a_smaller_port_does_not_reduce_the_bridges_mtu(
    in_namespace: Run, make_segment: Callable[..., Segment]
) -> None:
    def work() -> object:
        with netlink() as kernel:
            SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, port="uplink0"))
            kernel._socket.link("add", ifname="small0", kind="veth", peer="small1")
            small, bridge = named(kernel, "small0"), named(kernel, "br100")
            assert small
            assert bridge
            kernel.change(small.index, master=bridge.index)
            return named(kernel, "br100")

    bridge = in_namespace(work)
    assert isinstance(bridge, KernelInterface)
    assert bridge.mtu == 1600
