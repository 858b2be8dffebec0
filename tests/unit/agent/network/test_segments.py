from collections.abc import Callable

import pytest
from fake_machine import FakeKernel, FakeUplinkRecords

from virtcloud.agent.difference import ObservedSegment
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import Segment

Make = Callable[..., Segment]


def test_a_segment_has_a_marked_tagged_interface_and_bridge(kernel: FakeKernel, make_segment: Make) -> None:
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    tagged, bridge = kernel.named("eth0.100"), kernel.named("br100")
    assert (tagged.kind, tagged.vlan, tagged.alias, tagged.up, tagged.host_ip_disabled) == (
        "vlan",
        100,
        "virtcloud:a",
        True,
        True,
    )
    assert (bridge.kind, bridge.alias, bridge.up, bridge.host_ip_disabled) == ("bridge", "virtcloud:a", True, True)
    assert tagged.master == bridge.index


def test_a_segment_is_read_back_as_it_was_made(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    assert links.read() == (ObservedSegment("a", 100, "eth0"),)


def test_a_segment_may_be_made_twice(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    links.ensure_segment(make_segment("a", 100))
    assert (kernel.names, kernel.deleted) == ({"eth0", "eth0.100", "br100"}, [])


def test_the_uplinks_mtu_is_that_of_the_segment(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, mtu=9000)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert (kernel.named("eth0.100").mtu, kernel.named("br100").mtu) == (9000, 9000)


def test_removal_leaves_nothing_and_may_be_repeated(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    links.ensure_no_segment("a", 100)
    links.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}


def test_removal_of_one_cluster_leaves_the_other(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    links.ensure_segment(make_segment("b", 101))
    links.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0", "eth0.101", "br101"}


def test_a_foreign_bridge_is_named_and_left_alone(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name="br100", kind="bridge", alias="of the storage group")
    with pytest.raises(
        Unsafe, match=r"the interface br100 \(bridge\) was not created by virtcloud \(alias of the storage group\)"
    ):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert (kernel.names, kernel.changes) == ({"eth0", "br100"}, 0)


def test_a_foreign_tagged_interface_of_another_name_is_found_too(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name="vlan100", kind="vlan", parent=1, vlan=100)
    with pytest.raises(Unsafe, match="vlan100"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))


def test_another_clusters_bridge_is_left_alone(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    with pytest.raises(Unsafe, match="belongs to cluster a"):
        links.ensure_segment(make_segment("b", 100))


def test_a_vlan_of_another_uplink_is_not_changed(kernel: FakeKernel, make_segment: Make) -> None:
    other = kernel.put(name="eth1", up=True)
    kernel.put(name="eth1.100", kind="vlan", parent=other, vlan=100)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert "eth1.100" in kernel.names


def test_a_missing_uplink_is_named(kernel: FakeKernel, make_segment: Make) -> None:
    with pytest.raises(Refused, match="wanted on port eth7, but this host has no such interface"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, port="eth7"))


def test_a_down_uplink_is_named_with_a_remedy(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, up=False)
    with pytest.raises(Refused, match="ip link set eth0 up"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))


def test_what_a_crash_left_between_creation_and_mark_is_replaced(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name="vcnewb-100", kind="bridge")
    kernel.put(name="vcnew-100", kind="vlan", parent=1, vlan=100)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert kernel.names == {"eth0", "eth0.100", "br100"}


@pytest.mark.parametrize(
    ("break_it", "fault"),
    [
        (lambda kernel: kernel.change(kernel.named("br100").index, up=False), "br100 is down"),
        (
            lambda kernel: kernel.change(kernel.named("br100").index, host_ip_disabled=False),
            "the host's IP stack uses br100",
        ),
        (lambda kernel: kernel.change(kernel.named("br100").index, mtu=1400), "br100 has MTU 1400, eth0 has 1500"),
        (lambda kernel: kernel.change(kernel.named("eth0.100").index, master=None), "eth0.100 is not on br100"),
        (lambda kernel: kernel.delete(kernel.named("br100").index), "the bridge is missing"),
        (lambda kernel: kernel.delete(kernel.named("eth0.100").index), "the tagged interface is missing"),
    ],
)
def test_a_fault_is_said_in_words_and_put_right(
    kernel: FakeKernel, make_segment: Make, break_it: Callable[[FakeKernel], object], fault: str
) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    break_it(kernel)
    assert [one.faults for one in links.read()] == [(fault,)]
    links.ensure_segment(make_segment("a", 100))
    assert [one.faults for one in links.read()] == [()]


def test_a_guests_port_that_lost_its_bridge_is_put_back(kernel: FakeKernel, make_segment: Make) -> None:
    links, one = SegmentInterfaces(kernel, FakeUplinkRecords()), make_segment("a", 100, ("g1",))
    links.ensure_segment(one)
    port = kernel.put(name=names.guest_port_name("a", "g1", 100), master=None)
    assert links.read()[0].faults == (f"{names.guest_port_name('a', 'g1', 100)} is not on br100",)
    links.ensure_segment(one)
    assert kernel.by_index[port].master == kernel.named("br100").index


def test_a_port_of_a_guest_that_is_gone_is_deleted(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name=names.guest_port_name("a", "g9", 100))
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, ("g1",)))
    assert kernel.deleted == [names.guest_port_name("a", "g9", 100)]


def test_a_bridge_with_a_foreign_port_is_not_removed(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    kernel.put(name="tap7", master=kernel.named("br100").index)
    with pytest.raises(Unsafe, match="ip link set tap7 nomaster"):
        links.ensure_no_segment("a", 100)
    assert {"br100", "eth0.100", "tap7"} <= kernel.names


def test_interfaces_without_our_mark_are_not_read(kernel: FakeKernel) -> None:
    kernel.put(name="br7", kind="bridge")
    kernel.put(name="eth0.8", kind="vlan", parent=1, vlan=8, alias="virtcloud")
    assert SegmentInterfaces(kernel, FakeUplinkRecords()).read() == ()


IPTABLES = "net.bridge.bridge-nf-call-iptables"


def test_no_segment_is_built_with_bridged_packet_filtering(
    kernel: FakeKernel, make_segment: Callable[..., Segment]
) -> None:
    kernel.filtering = (IPTABLES,)
    with pytest.raises(
        Unsafe, match=rf"^VLAN 100: this host passes .*\(sysctl -w {IPTABLES}=0\), or accept the filter: "
    ):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert kernel.names == {"eth0"}


def test_later_packet_filtering_is_a_fault_of_segments(
    kernel: FakeKernel, make_segment: Callable[..., Segment]
) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    kernel.filtering = (IPTABLES,)
    assert links.read() == (ObservedSegment("a", 100, "eth0", (f"{IPTABLES} is set",)),)
    links.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}, "what stands can be removed"


def test_a_packet_filter_that_the_settings_accept_is_no_fault(
    kernel: FakeKernel, make_segment: Callable[..., Segment]
) -> None:
    kernel.filtering = (IPTABLES,)
    links = SegmentInterfaces(kernel, FakeUplinkRecords(), accepts_filters=True)
    links.ensure_segment(make_segment("a", 100))
    assert links.read() == (ObservedSegment("a", 100, "eth0"),)


def test_a_bridges_packet_filter_option_is_corrected(kernel: FakeKernel, make_segment: Callable[..., Segment]) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100))
    kernel.change(kernel.named("br100").index, packet_filtered=True)
    faults = ("br100 passes its frames to the host's packet filter",)
    assert links.read() == (ObservedSegment("a", 100, "eth0", faults),)
    links.ensure_segment(make_segment("a", 100))
    assert links.read() == (ObservedSegment("a", 100, "eth0"),)
