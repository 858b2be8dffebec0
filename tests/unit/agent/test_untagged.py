"""A segment on an access port: the uplink itself is a port of the bridge, and the host's again afterwards."""

from collections.abc import Callable

import pytest
from fake_machine import FakeKernel

from virtcloud.agent.carried import Carried, CarriedSegment
from virtcloud.agent.difference import BuildSegment, RemoveSegment, difference
from virtcloud.agent.links import Links
from virtcloud.model.errors import Unsafe
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


def test_the_uplink_is_a_port_of_the_bridge_and_there_is_no_tagged_interface(kernel: FakeKernel, segment: Make) -> None:
    Links(kernel).ensure_segment(segment("a", 100, untagged=True))
    bridge, uplink = kernel.named("br100"), kernel.named("eth0")
    assert kernel.names == {"eth0", "br100"}
    assert (bridge.alias, bridge.up, bridge.quiet) == ("virtcloud:a@eth0", True, True)
    assert (uplink.master, uplink.alias, uplink.quiet) == (bridge.index, None, True)


def test_it_is_read_back_as_it_was_made(kernel: FakeKernel, segment: Make) -> None:
    links = Links(kernel)
    links.ensure_segment(segment("a", 100, untagged=True))
    assert links.segments() == (CarriedSegment("a", 100, "eth0", untagged=True),)


def test_an_uplink_that_somebody_took_off_is_put_back(kernel: FakeKernel, segment: Make) -> None:
    links = Links(kernel)
    links.ensure_segment(segment("a", 100, untagged=True))
    kernel.change(1, master=None)
    assert links.segments() == (CarriedSegment("a", 100, "eth0", ("eth0 is not on br100",), untagged=True),)
    links.ensure_segment(segment("a", 100, untagged=True))
    assert links.segments() == (CarriedSegment("a", 100, "eth0", untagged=True),)


def test_removal_gives_the_uplink_back_to_the_host(kernel: FakeKernel, segment: Make) -> None:
    links = Links(kernel)
    links.ensure_segment(segment("a", 100, untagged=True))
    links.ensure_no_segment("a", 100)
    links.ensure_no_segment("a", 100)
    uplink = kernel.named("eth0")
    assert (kernel.names, uplink.master or None, uplink.quiet) == ({"eth0"}, None, False)


def test_an_uplink_in_a_bridge_of_somebody_else_is_left_alone(kernel: FakeKernel, segment: Make) -> None:
    kernel.change(1, master=kernel.put(name="virbr0", kind="bridge"))
    before = kernel.changes
    with pytest.raises(Unsafe, match=r"port eth0 is a port of virbr0 \(alias none\) already; it was left alone"):
        Links(kernel).ensure_segment(segment("a", 100, untagged=True))
    assert kernel.changes == before


def test_an_uplink_that_the_host_itself_uses_is_left_alone(kernel: FakeKernel, segment: Make) -> None:
    """Otherwise a slip in the topology would cut the machine off."""
    kernel.change(1, addressed=True)
    before = kernel.changes
    with pytest.raises(Unsafe, match="port eth0 has an address of this machine, and an access port is the cluster's"):
        Links(kernel).ensure_segment(segment("a", 100, untagged=True))
    assert kernel.changes == before


def test_an_access_port_that_still_has_another_cluster_is_not_given_to_a_second(
    kernel: FakeKernel, segment: Make
) -> None:
    links = Links(kernel)
    links.ensure_segment(segment("a", 100, untagged=True))
    with pytest.raises(Unsafe, match="port eth0 is a port of br100"):
        links.ensure_segment(segment("b", 101, untagged=True))


@pytest.mark.parametrize("untagged", [True, False])
def test_a_link_that_was_described_anew_has_its_segment_built_anew(segment: Make, untagged: bool) -> None:
    before = Carried((CarriedSegment("a", 100, "eth0", untagged=not untagged),))
    after = segment("a", 100, untagged=untagged)
    assert difference(HostWanted(segments=(after,)), before) == [RemoveSegment("a", 100), BuildSegment(after)]
