"""Tests of a segment on an access port: the uplink becomes a port of the bridge, and is restored afterwards."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_machine import FakeKernel, FakeUplinkRecords
from fake_machine.host import FRESH

from virtcloud.agent.difference import BuildSegment, ObservedHost, ObservedSegment, RemoveSegment, compute_difference
from virtcloud.agent.network.interfaces import HostIpSettings, UplinkRecord, UplinkRecordFiles
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


def test_an_untagged_segment_attaches_the_uplink_itself(kernel: FakeKernel, make_segment: Make) -> None:
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    bridge, uplink = kernel.named("br100"), kernel.named("eth0")
    assert kernel.names == {"eth0", "br100"}
    assert (bridge.alias, bridge.up, bridge.host_ip_disabled) == ("virtcloud:a@eth0", True, True)
    assert (uplink.master, uplink.alias, uplink.host_ip_disabled) == (bridge.index, None, True)


def test_it_is_read_back_as_it_was_made(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100, untagged=True))
    assert links.read() == (ObservedSegment("a", 100, "eth0", untagged=True),)


def test_an_uplink_that_somebody_took_off_is_put_back(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100, untagged=True))
    kernel.change(1, master=None)
    assert links.read() == (ObservedSegment("a", 100, "eth0", ("eth0 is not on br100",), untagged=True),)
    links.ensure_segment(make_segment("a", 100, untagged=True))
    assert links.read() == (ObservedSegment("a", 100, "eth0", untagged=True),)


def test_removal_gives_the_uplink_back_to_the_host(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100, untagged=True))
    links.ensure_no_segment("a", 100)
    links.ensure_no_segment("a", 100)
    uplink = kernel.named("eth0")
    assert (kernel.names, uplink.master or None, uplink.host_ip_disabled) == ({"eth0"}, None, False)


OWN = HostIpSettings(settings={"ipv6/addr_gen_mode": "2", "ipv6/disable_ipv6": "0"}, addresses=("fe80::1/64",))


class Killed(BaseException):
    """Raised when the test kills the agent."""


class Mortal:
    """A dependency during whose call the agent is killed, before or after the call's effect."""

    def __init__(self, part: object, calls: list[str], dies_at: int, *, after: bool) -> None:
        self._part, self._calls, self._dies_at, self._after = part, calls, dies_at, after

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object, **more: object) -> object:
            self._calls.append(name)
            dies = len(self._calls) == self._dies_at
            if dies and not self._after:
                raise Killed
            made = getattr(self._part, name)(*arguments, **more)
            if dies:
                raise Killed
            return made

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("wanted_still", [True, False])
def test_an_uplink_is_restored_wherever_the_agent_is_killed(
    make_segment: Make, *, wanted_still: bool, after: bool
) -> None:
    """The agent is killed at each call of the kernel and of the records, during creation and removal."""
    for dies_at in range(1, 60):
        kernel, uplinks, calls = FakeKernel(), FakeUplinkRecords(), list[str]()
        kernel.voices[1] = OWN
        one = make_segment("a", 100, untagged=True)
        mortal = SegmentInterfaces(
            Mortal(kernel, calls, dies_at, after=after),  # type: ignore[arg-type]
            Mortal(uplinks, calls, dies_at, after=after),  # type: ignore[arg-type]
        )
        try:
            mortal.ensure_segment(one)
            mortal.ensure_no_segment("a", 100)
        except Killed:
            if wanted_still:
                SegmentInterfaces(kernel, uplinks).ensure_segment(one)
            settle(SegmentInterfaces(kernel, uplinks))
        else:
            assert dies_at > 15, "no call was left to die at"
            return
        assert (kernel.voices[1], kernel.named("eth0").master or None, uplinks.all()) == (OWN, None, []), (
            f"killed at call {dies_at}, {calls[-1]}"
        )
    pytest.fail("it never came to the end")


def settle(links: SegmentInterfaces) -> None:
    """Remove all observed segments, as the reconciler of a restarted agent does."""
    for step in compute_difference(HostWanted(), ObservedHost(links.read())):
        assert isinstance(step, RemoveSegment)
        links.ensure_no_segment(step.cluster, step.vlan)


def test_an_uplink_whose_bridge_somebody_deleted_is_put_back(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.voices[1] = OWN
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100, untagged=True))
    kernel.delete(kernel.named("br100").index)
    assert links.read() == (ObservedSegment("a", 100, None, ("the bridge is missing",), untagged=True),)
    settle(links)
    assert (kernel.voices[1], links.read()) == (OWN, ())


def test_a_recreated_uplink_is_not_restored(kernel: FakeKernel, make_segment: Make) -> None:
    """The host has configured the new interface itself, for example after a reload of the driver."""
    kernel.voices[1] = OWN
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100, untagged=True))
    kernel.delete(1)
    anew = kernel.put(name="eth0", up=True)
    links.ensure_no_segment("a", 100)
    assert (kernel.voices.get(anew), kernel.names) == (None, {"eth0"})


def test_an_unrecorded_uplink_is_restored_like_a_new_interface(kernel: FakeKernel, make_segment: Make) -> None:
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_no_segment("a", 100)
    assert (kernel.voices[1], kernel.named("eth0").host_ip_disabled) == (FRESH, False)


def test_an_uplink_that_cannot_be_recorded_is_not_taken(kernel: FakeKernel, make_segment: Make, tmp_path: Path) -> None:
    (tmp_path / "uplinks").write_text("a file where the folder belongs")
    with pytest.raises(Refused, match=r"cannot record the state of eth0; it was left unchanged"):
        SegmentInterfaces(kernel, UplinkRecordFiles(tmp_path / "uplinks", "boot")).ensure_segment(
            make_segment("a", 100, untagged=True)
        )
    assert (kernel.named("eth0").host_ip_disabled, kernel.named("eth0").master) == (False, None)


def test_a_record_is_valid_for_one_boot(tmp_path: Path) -> None:
    found = UplinkRecord(uplink="eth0", index=2, cluster="a", vlan=100, voice=OWN)
    UplinkRecordFiles(tmp_path, "first").record(found)
    assert UplinkRecordFiles(tmp_path, "first").all() == [found.model_copy(update={"boot": "first"})]
    assert UplinkRecordFiles(tmp_path, "second").all() == []


def test_an_uplink_of_a_foreign_bridge_is_left_unchanged(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, master=kernel.put(name="virbr0", kind="bridge"))
    before = kernel.changes
    with pytest.raises(Unsafe, match=r"port eth0 is already a port of virbr0 \(alias none\); left unchanged"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    assert kernel.changes == before


def test_an_uplink_that_the_host_itself_uses_is_left_alone(kernel: FakeKernel, make_segment: Make) -> None:
    """Otherwise an error in the topology would disconnect the host."""
    kernel.change(1, addressed=True)
    before = kernel.changes
    with pytest.raises(
        Unsafe, match="port eth0 has an address of this host, but an access port is used by one cluster only"
    ):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    assert kernel.changes == before


def test_a_used_access_port_gets_no_second_cluster(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    links.ensure_segment(make_segment("a", 100, untagged=True))
    with pytest.raises(Unsafe, match="port eth0 is already a port of br100"):
        links.ensure_segment(make_segment("b", 101, untagged=True))


@pytest.mark.parametrize("untagged", [True, False])
def test_a_changed_link_has_its_segment_rebuilt(make_segment: Make, untagged: bool) -> None:
    before = ObservedHost((ObservedSegment("a", 100, "eth0", untagged=not untagged),))
    after = make_segment("a", 100, untagged=untagged)
    assert compute_difference(HostWanted(segments=(after,)), before) == [RemoveSegment("a", 100), BuildSegment(after)]


def test_an_unrestorable_uplink_does_not_block_removals(kernel: FakeKernel, make_segment: Make) -> None:
    links = SegmentInterfaces(kernel, FakeUplinkRecords())
    kernel.voices[1] = OWN
    links.ensure_segment(make_segment("a", 100, untagged=True))

    def refuse(*_: object) -> None:
        raise Refused("Invalid argument")

    speak, kernel.restore_host_ip = kernel.restore_host_ip, refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(Refused, match="Invalid argument"):
        links.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}
    assert links.read() == (ObservedSegment("a", 100, None, ("the bridge is missing",), untagged=True),)
    kernel.restore_host_ip = speak  # type: ignore[method-assign]
    settle(links)
    assert (kernel.voices[1], links.read()) == (OWN, ())


def test_an_uplink_is_restored_without_writable_records(kernel: FakeKernel, make_segment: Make) -> None:
    """For example, the disk may be full."""

    class Full(FakeUplinkRecords):
        def record(self, found: UplinkRecord) -> None:
            raise Refused("No space left on device")

    uplinks = FakeUplinkRecords()
    kernel.voices[1] = OWN
    SegmentInterfaces(kernel, uplinks).ensure_segment(make_segment("a", 100, untagged=True))
    full = Full()
    full.by_name = uplinks.by_name
    SegmentInterfaces(kernel, full).ensure_no_segment("a", 100)
    assert (kernel.names, kernel.voices[1]) == ({"eth0"}, OWN)
