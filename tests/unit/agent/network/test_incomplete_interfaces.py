"""Tests of interfaces without an ownership alias, which an agent leaves if it is killed while it creates them."""

from support.fake_machine import FakeKernel, FakeUplinkRecords

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.host_conclusions import has_drifted
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import RemoveSegment
from virtcloud.model.wanted import HostWanted, WantedDocument


def test_interfaces_with_another_alias_stay(kernel: FakeKernel) -> None:
    """Other programs created these interfaces."""
    kernel.put(name="vcnewb-100", kind="bridge")
    kernel.put(name="vcnew-100", kind="dummy", alias="storage")
    kernel.put(name="vcnewb-101", kind="bridge", alias="storage")
    kernel.put(name="br100", kind="bridge", alias="virtcloud:")
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    steps = compute_difference(HostWanted(), ObservedHost(segments.read()))
    assert steps == [RemoveSegment("", 100, files_stay=True)]
    segments.ensure_no_segment("", 100)
    assert kernel.names == {"eth0", "vcnew-100", "vcnewb-101", "br100"}


def test_interfaces_of_an_unwanted_network_are_removed(kernel: FakeKernel) -> None:
    kernel.put(name="vcnewb-100", kind="bridge")
    kernel.put(name="vcnew-101", kind="vlan", parent=1, vlan=101)
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    steps = compute_difference(HostWanted(), ObservedHost(segments.read()))
    assert steps == [RemoveSegment("", vlan, files_stay=True) for vlan in (100, 101)]
    document = WantedDocument(element="h1", revision=1, confirmed_revision=1, wanted=HostWanted())
    assert not has_drifted(steps, document, (), rebooted=False)
    for vlan in (100, 101):
        segments.ensure_no_segment("", vlan)
    assert (kernel.names, segments.read()) == ({"eth0"}, ())
