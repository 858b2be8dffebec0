"""Tests of the netlink adapter on the real kernel, in a separate network namespace."""

import gc
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from support.fake_machine import FakeUplinkRecords
from support.kernel import kernel_links
from support.kernel.network_namespaces import Run

from virtcloud.agent.network import kernel as kernel_module
from virtcloud.agent.network import netlink_dumps
from virtcloud.agent.network.interface_messages import parse_interface
from virtcloud.agent.network.interfaces import KernelInterface
from virtcloud.agent.network.kernel import NetlinkKernel
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedSegment
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import Segment


@contextmanager
def netlink() -> Iterator[NetlinkKernel]:
    kernel = NetlinkKernel()
    try:
        yield kernel
    finally:
        kernel.close()


def find_interface(kernel: NetlinkKernel, name: str) -> KernelInterface | None:
    return next((interface for interface in kernel.list_interfaces() if interface.name == name), None)


def test_a_bridges_name_alias_and_mtu_are_read_back(in_namespace: Run) -> None:
    def work() -> object:
        with netlink() as kernel:
            index = kernel.add_bridge("vcnewb-100")
            kernel.change(index, name="br100", alias="virtcloud:a")
            kernel.change(index, mtu=1400, up=True)
            return find_interface(kernel, "br100") == KernelInterface(
                index, "br100", "bridge", "virtcloud:a", mtu=1400, up=True
            )

    assert in_namespace(work)


def test_the_mtu_of_one_interface_is_read_and_set(in_namespace: Run) -> None:
    def work() -> object:
        with netlink() as kernel:
            kernel.add_bridge("br100")
            kernel.set_mtu("br100", 1400)
            return kernel.read_mtu("br100"), kernel.read_mtu("absent")

    assert in_namespace(work) == (1400, None)


def test_a_bridge_has_no_spanning_tree_and_no_multicast_snooping(in_namespace: Run) -> None:
    def work() -> object:
        with netlink() as kernel:
            kernel.add_bridge("br100")
            data = kernel_links.link("get", ifname="br100")[0].get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA")
            return data.get_attr("IFLA_BR_STP_STATE"), data.get_attr("IFLA_BR_MCAST_SNOOPING")

    assert in_namespace(work) == (0, 0)


def test_deleting_an_absent_interface_is_success(in_namespace: Run) -> None:
    def work() -> object:
        with netlink() as kernel:
            index = kernel.add_bridge("br100")
            kernel.delete(index)
            kernel.delete(index)
            return find_interface(kernel, "br100")

    assert in_namespace(work) is None


def test_an_error_of_the_kernel_is_quoted(in_namespace: Run) -> None:
    def work() -> None:
        with netlink() as kernel:
            kernel.add_bridge("br100")
            with pytest.raises(Refused, match="the kernel refused to create bridge br100: File exists"):
                kernel.add_bridge("br100")

    in_namespace(work)


def test_an_untagged_segment_uses_the_uplink_of_the_kernel(
    in_namespace: Run, make_segment: Callable[..., Segment]
) -> None:
    def work() -> object:
        with netlink() as kernel:
            _uplink(kernel)
            segments = SegmentInterfaces(kernel, FakeUplinkRecords())
            segments.ensure_segment(make_segment("a", 100, port="uplink0", untagged=True))
            return segments.read(), _read_sysctls("uplink0"), kernel._link_local("uplink0")

    isolated = {"ipv4/rp_filter": "1", "ipv4/arp_ignore": "1", "ipv6/addr_gen_mode": "1", "ipv6/disable_ipv6": "1"}
    assert in_namespace(work) == ((ObservedSegment("a", 100, "uplink0", untagged=True),), isolated, ())


@pytest.mark.parametrize("mode", ["0", "1"])
def test_an_uplink_of_the_real_kernel_is_restored(
    in_namespace: Run, make_segment: Callable[..., Segment], mode: str
) -> None:
    """In one case, the uplink's link-local address is generated (EUI-64). In the other, the host sets the address."""
    former = {"ipv4/rp_filter": "2", "ipv4/arp_ignore": "2", "ipv6/addr_gen_mode": mode, "ipv6/disable_ipv6": "0"}

    def work() -> tuple[Any, ...]:
        with netlink() as kernel:
            _uplink(kernel, former)
            if mode == "1":
                index = kernel_links.find_index("uplink0")
                kernel_links.addr("add", index=index, address="fe80::7", prefixlen=64)
            before, segments = _await_link_local(kernel), SegmentInterfaces(kernel, FakeUplinkRecords())
            segments.ensure_segment(make_segment("a", 100, port="uplink0", untagged=True))
            segments.ensure_no_segment("a", 100)
            after = next(interface for interface in kernel.list_interfaces() if interface.name == "uplink0")
            return before, _await_link_local(kernel), after.master, _read_sysctls("uplink0"), segments.read()

    before, after, *others = in_namespace(work)
    assert len(before) == 1
    assert (after, others) == (before, [None, former, ()])


def _read_sysctls(name: str) -> dict[str, str]:
    settings = ("ipv4/rp_filter", "ipv4/arp_ignore", "ipv6/addr_gen_mode", "ipv6/disable_ipv6")
    return {setting: _sysctl_path(name, setting).read_text().strip() for setting in settings}


def _sysctl_path(name: str, setting: str) -> Path:
    family, _, key = setting.partition("/")
    return Path(f"/proc/sys/net/{family}/conf/{name}/{key}")


def test_an_addressed_interface_is_recognised(in_namespace: Run) -> None:
    def work() -> object:
        with netlink() as kernel:
            _uplink(kernel)
            index = kernel_links.find_index("uplink0")
            kernel_links.addr("add", index=index, address="192.0.2.1", prefixlen=24)
            return {interface.name: interface.addressed for interface in kernel.list_interfaces()}

    assert in_namespace(work) == {"lo": False, "uplink0": True, "uplink1": False}


def _uplink(kernel: NetlinkKernel, settings: dict[str, str] | None = None) -> None:
    kernel_links.link("add", ifname="uplink0", kind="veth", peer="uplink1")
    for setting, value in (settings or {}).items():
        _sysctl_path("uplink0", setting).write_text(value)
    for name in ("uplink0", "uplink1"):
        interface = find_interface(kernel, name)
        assert interface
        kernel.change(interface.index, mtu=1600, up=True)


def _await_link_local(kernel: NetlinkKernel) -> tuple[str, ...]:
    deadline = time.monotonic() + 10
    while not (found := kernel._link_local("uplink0")) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def test_a_foreign_bridge_of_the_real_kernel_stays_unchanged(
    in_namespace: Run, make_segment: Callable[..., Segment]
) -> None:
    def work() -> object:
        with netlink() as kernel:
            _uplink(kernel)
            foreign = kernel.add_bridge("br100")
            with pytest.raises(Unsafe, match="br100"):
                SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, port="uplink0"))
            remaining = find_interface(kernel, "br100")
            return remaining and (remaining.index == foreign, remaining.up, remaining.alias)

    assert in_namespace(work) == (True, False, None)


def test_a_large_reading_has_few_messages_in_memory(in_namespace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink_dumps, "MESSAGES_IN_MEMORY", 5)

    def work() -> object:
        for number in range(60):
            kernel_links.link("add", ifname=f"br{number}", kind="bridge")
        with netlink() as kernel:
            gc.collect()
            gc.disable()
            try:
                kernel.list_interfaces()
                return sum(isinstance(one, ifinfmsg) for one in gc.get_objects())
            finally:
                gc.enable()

    assert in_namespace(work) < 30  # the kernel sends about 20 interfaces at once


def test_a_reading_that_a_change_interrupts_is_repeated(in_namespace: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bridge is deleted during the dump: after the message about this bridge, but before the end of the dump."""
    bridges = {f"br{number}" for number in range(150)}

    def work() -> object:
        with netlink() as kernel:
            indices = {name: kernel.add_bridge(name) for name in bridges}

            def parse_and_delete(message: ifinfmsg, addressed: Container[int]) -> KernelInterface:
                interface = parse_interface(message, addressed)
                if interface.index == min(indices.values()):
                    kernel_links.link("del", index=interface.index)
                return interface

            monkeypatch.setattr(kernel_module, "parse_interface", parse_and_delete)
            return len({interface.name for interface in kernel.list_interfaces()} & bridges)

    assert in_namespace(work) == len(bridges) - 1


def test_a_dump_that_pyroute2_interrupts_is_repeated() -> None:
    """The kernel marks a dump as interrupted. pyroute2 0.7 then raises an error, but later versions ignore the mark."""
    dumps = iter(("interrupted", "complete"))

    def request() -> Iterator[dict[str, Any]]:
        yield {"header": {"flags": 0}, "dump": (dump := next(dumps))}
        if dump == "interrupted":
            raise NetlinkDumpInterrupted

    assert netlink_dumps.read_dump(request, lambda message: message["dump"]) == ["complete"]


def test_the_packet_filter_of_bridges_is_detected(in_namespace: Run) -> None:
    sysctl = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")

    def work() -> object:
        if not sysctl.exists():
            return None
        with netlink() as kernel:
            without_filter = kernel.packet_filter_sysctls()
            sysctl.write_text("1")
            return without_filter, kernel.packet_filter_sysctls()

    sysctls = in_namespace(work)
    if sysctls is None:
        pytest.skip("NOT TESTED: this kernel has no br_netfilter")
    assert sysctls == ((), ("net.bridge.bridge-nf-call-iptables",))


def test_a_bridges_packet_filter_option_is_read_and_reset(in_namespace: Run) -> None:
    def work() -> tuple[bool | None, bool | None]:
        with netlink() as kernel:
            index = kernel.add_bridge("br100")
            kernel_links.link("set", index=index, kind="bridge", br_nf_call_iptables=1)
            before = find_interface(kernel, "br100")
            kernel.disable_packet_filter(index)
            after = find_interface(kernel, "br100")
            assert before
            assert after
            return before.packet_filtered, after.packet_filtered

    filtered, after = in_namespace(work)
    if not filtered:
        pytest.skip("NOT TESTED: this kernel's bridges have no option nf_call_iptables")
    assert not after
