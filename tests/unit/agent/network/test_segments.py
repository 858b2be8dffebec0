"""Tests of the segments of a host, on a kernel in memory."""

from collections.abc import Callable

import pytest
from support.fake_machine import FakeKernel, FakeUplinkRecords

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.network import names
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.steps import BuildSegment, RemoveSegment, Step
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


def test_a_segment_has_a_tagged_interface_and_a_bridge(kernel: FakeKernel, make_segment: Make) -> None:
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    tagged, bridge = kernel.interface("eth0.100"), kernel.interface("br100")
    assert (tagged.kind, tagged.vlan, tagged.alias, tagged.up, tagged.host_ip_disabled) == (
        "vlan",
        100,
        "virtcloud:a",
        True,
        True,
    )
    assert (bridge.kind, bridge.alias, bridge.up, bridge.host_ip_disabled) == ("bridge", "virtcloud:a", True, True)
    assert tagged.master == bridge.index


def test_a_segment_is_read_back_as_built(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    assert segments.read() == (ObservedSegment("a", 100, "eth0"),)


def test_building_a_segment_is_idempotent(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    segments.ensure_segment(make_segment("a", 100))
    assert (kernel.names, kernel.deleted) == ({"eth0", "eth0.100", "br100"}, [])


def test_a_job_loses_its_port_when_its_cluster_leaves(kernel: FakeKernel, make_segment: Make) -> None:
    left, segments = make_segment("a", 100), SegmentInterfaces(kernel, FakeUplinkRecords())
    shared = left.model_copy(update={"members": {"m": "12.pbs"}})
    segments.ensure_segment(shared)
    bridge = kernel.interface("br100").index
    member, owner, sessions = (names.job_port_name(key, 100) for key in ("12.pbs", "key-a", "guests.a"))
    for name in (member, owner, sessions):
        kernel.put(name=name, kind="veth", alias="virtcloud:a", master=bridge)
    assert compute_difference(HostWanted(segments=(shared,)), ObservedHost(segments.read())) == []
    fault = f"{member} is the port of a job whose cluster has left the network"
    steps = compute_difference(HostWanted(segments=(left,)), ObservedHost(segments.read()))
    assert steps == [BuildSegment(left, (fault,))]
    segments.ensure_segment(left)
    assert kernel.names == {"eth0", "eth0.100", "br100", owner, sessions}


def test_a_segment_has_the_mtu_of_its_uplink(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, mtu=9000)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert (kernel.interface("eth0.100").mtu, kernel.interface("br100").mtu) == (9000, 9000)


def test_removal_is_complete_and_idempotent(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    segments.ensure_no_segment("a", 100)
    segments.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}


def test_removal_of_a_cluster_does_not_affect_another(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    segments.ensure_segment(make_segment("b", 101))
    segments.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0", "eth0.101", "br101"}


def test_a_foreign_bridge_is_named_and_not_changed(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name="br100", kind="bridge", alias="of the storage group")
    with pytest.raises(
        Unsafe, match=r"the interface br100 \(bridge\) was not created by virtcloud \(alias of the storage group\)"
    ):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert (kernel.names, kernel.changes) == ({"eth0", "br100"}, 0)


def test_a_foreign_tagged_interface_with_another_name_is_refused(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name="vlan100", kind="vlan", parent=1, vlan=100)
    with pytest.raises(Unsafe, match="vlan100"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))


def test_another_clusters_bridge_is_not_changed(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    with pytest.raises(Unsafe, match="belongs to cluster a"):
        segments.ensure_segment(make_segment("b", 100))


def test_a_vlan_of_another_uplink_is_not_changed(kernel: FakeKernel, make_segment: Make) -> None:
    other_index = kernel.put(name="eth1", up=True)
    kernel.put(name="eth1.100", kind="vlan", parent=other_index, vlan=100)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert "eth1.100" in kernel.names


def test_a_missing_uplink_is_named(kernel: FakeKernel, make_segment: Make) -> None:
    with pytest.raises(Refused, match="wanted on port eth7, but this host has no such interface"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, port="eth7"))


def test_a_down_uplink_is_named_with_a_remedy(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, up=False)
    with pytest.raises(Refused, match="ip link set eth0 up"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))


@pytest.mark.parametrize(
    ("cluster_mtu", "wrong", "fault"),
    [(None, 1400, "br100 has MTU 1400, eth0 has 1500"), (1450, 1500, "br100 has MTU 1500, expected 1450")],
)
def test_a_wrong_mtu_is_described_and_corrected(
    kernel: FakeKernel, make_segment: Make, cluster_mtu: int | None, wrong: int, fault: str
) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segment = make_segment("a", 100).model_copy(update={"mtu": cluster_mtu})
    segments.ensure_segment(segment)
    kernel.change(kernel.interface("br100").index, mtu=wrong)
    assert find_steps(segments, segment) == [BuildSegment(segment, (fault,))]
    segments.ensure_segment(segment)
    assert find_steps(segments, segment) == []


def test_a_segment_has_the_mtu_of_its_cluster(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"mtu": 1450})
    segments.ensure_segment(segment)
    port = names.guest_port_name("a", "g1", 100)
    kernel.put(name=port, kind="veth", master=kernel.interface("br100").index)
    assert port in str(find_steps(segments, segment)[0])
    segments.ensure_guest_mtus(segment, segment.guests)
    assert [step for step in find_steps(segments, segment) if isinstance(step, BuildSegment)] == []
    assert {name: kernel.interface(name).mtu for name in kernel.names} == {
        "eth0": 1500,
        "eth0.100": 1450,
        "br100": 1450,
        port: 1450,
    }


def test_a_running_guests_port_gets_a_new_mtu(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, ("g1",)))
    port = names.guest_port_name("a", "g1", 100)
    kernel.put(name=port, kind="veth", master=kernel.interface("br100").index)
    segment = make_segment("a", 100, ("g1",)).model_copy(update={"mtu": 1450})
    segments.ensure_guest_mtus(segment, segment.guests)
    assert kernel.interface(port).mtu == 1450


def test_without_a_clusters_mtu_guests_ports_stay_unchanged(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, mtu=9000)
    segments, segment = SegmentInterfaces(kernel, FakeUplinkRecords()), make_segment("a", 100, ("g1",))
    segments.ensure_segment(segment)
    kernel.put(name=names.guest_port_name("a", "g1", 100), kind="veth", master=kernel.interface("br100").index)
    segments.ensure_guest_mtus(segment, segment.guests)
    assert [step for step in find_steps(segments, segment) if isinstance(step, BuildSegment)] == []
    assert kernel.interface(names.guest_port_name("a", "g1", 100)).mtu == 1500


@pytest.mark.parametrize("untagged", [False, True])
def test_the_uplink_keeps_its_mtu(kernel: FakeKernel, make_segment: Make, untagged: bool) -> None:
    """If the cluster's MTU is larger than the uplink's, the bridge has the uplink's MTU."""
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    for mtu, expected in ((1450, 1450), (9000, 1500)):
        segments.ensure_segment(make_segment("a", 100, untagged=untagged).model_copy(update={"mtu": mtu}))
        assert (kernel.interface("eth0").mtu, kernel.interface("br100").mtu) == (1500, expected)


def find_steps(segments: SegmentInterfaces, segment: Segment) -> list[Step]:
    return compute_difference(HostWanted(segments=(segment,)), ObservedHost(segments.read()))


def test_interfaces_without_alias_after_a_crash_are_replaced(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name="vcnewb-100", kind="bridge")
    kernel.put(name="vcnew-100", kind="vlan", parent=1, vlan=100)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert kernel.names == {"eth0", "eth0.100", "br100"}


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda kernel: kernel.change(kernel.interface("br100").index, up=False), "br100 is down"),
        (
            lambda kernel: kernel.change(kernel.interface("br100").index, host_ip_disabled=False),
            "the host's IP stack uses br100",
        ),
        (lambda kernel: kernel.change(kernel.interface("eth0.100").index, master=None), "eth0.100 is not on br100"),
        (lambda kernel: kernel.delete(kernel.interface("br100").index), "the bridge is missing"),
        (lambda kernel: kernel.delete(kernel.interface("eth0.100").index), "the tagged interface is missing"),
    ],
)
def test_a_fault_is_described_and_corrected(
    kernel: FakeKernel, make_segment: Make, damage: Callable[[FakeKernel], object], fault: str
) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    damage(kernel)
    assert [segment.faults for segment in segments.read()] == [(fault,)]
    segments.ensure_segment(make_segment("a", 100))
    assert [segment.faults for segment in segments.read()] == [()]


def test_a_detached_guest_port_is_attached_again(kernel: FakeKernel, make_segment: Make) -> None:
    segments, segment = SegmentInterfaces(kernel, FakeUplinkRecords()), make_segment("a", 100, ("g1",))
    segments.ensure_segment(segment)
    port = kernel.put(name=names.guest_port_name("a", "g1", 100), master=None)
    assert segments.read()[0].faults == (f"{names.guest_port_name('a', 'g1', 100)} is not on br100",)
    segments.ensure_segment(segment)
    assert kernel.by_index[port].master == kernel.interface("br100").index


def test_the_port_of_an_unwanted_guest_is_deleted(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.put(name=names.guest_port_name("a", "g9", 100))
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, ("g1",)))
    assert kernel.deleted == [names.guest_port_name("a", "g9", 100)]


def test_a_bridge_with_a_foreign_port_is_not_removed(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    kernel.put(name="tap7", master=kernel.interface("br100").index)
    with pytest.raises(Unsafe, match="ip link set tap7 nomaster"):
        segments.ensure_no_segment("a", 100)
    assert {"br100", "eth0.100", "tap7"} <= kernel.names


@pytest.mark.parametrize("untagged", [False, True])
def test_a_renamed_bridge_is_replaced(kernel: FakeKernel, make_segment: Make, untagged: bool) -> None:
    segment, segments = (
        make_segment("a", 100, ("g1",), untagged=untagged),
        SegmentInterfaces(kernel, FakeUplinkRecords()),
    )
    segments.ensure_segment(segment)
    renamed = kernel.interface("br100").index
    port = kernel.put(name=names.guest_port_name("a", "g1", 100), master=renamed)
    before = kernel.names
    kernel.change(renamed, name="moved")
    (step,) = compute_difference(HostWanted(segments=(segment,)), ObservedHost(segments.read()))[:1]
    assert isinstance(step, BuildSegment)
    segments.ensure_segment(segment)
    assert (kernel.names, kernel.by_index[port].master) == (before, kernel.interface("br100").index)
    assert segments.read()[0].faults == ()


def test_a_renamed_bridge_beside_its_successor_is_removed(kernel: FakeKernel, make_segment: Make) -> None:
    """Earlier versions of the agent left a renamed bridge."""
    segment, segments = make_segment("a", 100), SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(segment)
    kernel.put(name="moved", kind="bridge", alias="virtcloud:a")
    (observed,) = segments.read()
    assert observed.faults == observed.renamed == ("moved is a renamed bridge of the cluster",)
    segments.ensure_segment(segment)
    assert (kernel.names, segments.read()) == ({"eth0", "eth0.100", "br100"}, (ObservedSegment("a", 100, "eth0"),))


def test_a_renamed_bridge_is_removed_with_its_cluster(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    for cluster, vlan in (("a", 100), ("b", 101)):
        segments.ensure_segment(make_segment(cluster, vlan))
    kernel.change(kernel.interface("br100").index, name="moved")
    segments.ensure_no_segment("b", 101)
    assert kernel.names == {"eth0", "eth0.100", "moved"}
    segments.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}


def test_the_renamed_bridge_of_a_former_cluster_is_removed(kernel: FakeKernel) -> None:
    """Of the cluster, only the bridge is left, so the cluster's VLAN ID is unknown."""
    kernel.put(name="moved", kind="bridge", alias="virtcloud:a")
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    steps = compute_difference(HostWanted(), ObservedHost(segments.read()))
    assert (steps, [str(step) for step in steps]) == ([RemoveSegment("a", 0)], ["remove a renamed bridge"])
    segments.ensure_no_segment("a", 0)
    assert (kernel.names, segments.read()) == ({"eth0"}, ())


def test_a_renamed_bridge_with_a_foreign_port_stays(kernel: FakeKernel, make_segment: Make) -> None:
    segment, segments = make_segment("a", 100), SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(segment)
    kernel.put(name="eth1", master=kernel.put(name="moved", kind="bridge", alias="virtcloud:a"))
    assert segments.read() == (ObservedSegment("a", 100, "eth0"),)
    segments.ensure_segment(segment)
    segments.ensure_no_segment("a", 100)
    assert (kernel.names, segments.read()) == ({"eth0", "eth1", "moved"}, ())


def test_guests_keep_their_ports_if_only_renamed_bridges_are_left(kernel: FakeKernel, make_segment: Make) -> None:
    """Another program renamed the bridge and deleted the tagged interface: the segment's VLAN ID is unknown."""
    segment, segments = make_segment("a", 100, ("g1",)), SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(segment)
    renamed = kernel.interface("br100").index
    port = kernel.put(name=names.guest_port_name("a", "g1", 100), master=renamed)
    kernel.change(renamed, name="moved")
    kernel.delete(kernel.interface("eth0.100").index)
    removal = compute_difference(HostWanted(segments=(segment,)), ObservedHost(segments.read()))[0]
    assert removal == RemoveSegment("a", 0, files_stay=True)
    segments.ensure_no_segment("a", 0)
    segments.ensure_segment(segment)
    assert ("moved" in kernel.names, kernel.by_index[port].master) == (False, kernel.interface("br100").index)


def test_interfaces_without_ownership_alias_are_not_read(kernel: FakeKernel) -> None:
    kernel.put(name="br7", kind="bridge")
    kernel.put(name="eth0.8", kind="vlan", parent=1, vlan=8, alias="virtcloud")
    assert SegmentInterfaces(kernel, FakeUplinkRecords()).read() == ()


IPTABLES = "net.bridge.bridge-nf-call-iptables"


def test_no_segment_is_built_with_bridged_packet_filtering(
    kernel: FakeKernel, make_segment: Callable[..., Segment]
) -> None:
    kernel.set_sysctls = (IPTABLES,)
    with pytest.raises(
        Unsafe, match=rf"^VLAN 100: this host passes .*\(sysctl -w {IPTABLES}=0\), or accept the filter: "
    ):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100))
    assert kernel.names == {"eth0"}


def test_packet_filtering_turned_on_later_is_a_fault(kernel: FakeKernel, make_segment: Callable[..., Segment]) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    kernel.set_sysctls = (IPTABLES,)
    assert segments.read() == (ObservedSegment("a", 100, "eth0", (f"{IPTABLES} is set",)),)
    segments.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}, "expected existing segments to be removable"


def test_a_packet_filter_that_the_settings_accept_is_no_fault(
    kernel: FakeKernel, make_segment: Callable[..., Segment]
) -> None:
    kernel.set_sysctls = (IPTABLES,)
    segments = SegmentInterfaces(kernel, FakeUplinkRecords(), accepts_filters=True)
    segments.ensure_segment(make_segment("a", 100))
    assert segments.read() == (ObservedSegment("a", 100, "eth0"),)


def test_a_bridges_packet_filter_option_is_corrected(kernel: FakeKernel, make_segment: Callable[..., Segment]) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100))
    kernel.change(kernel.interface("br100").index, packet_filtered=True)
    faults = ("br100 passes its frames to the host's packet filter",)
    assert segments.read() == (ObservedSegment("a", 100, "eth0", faults),)
    segments.ensure_segment(make_segment("a", 100))
    assert segments.read() == (ObservedSegment("a", 100, "eth0"),)
