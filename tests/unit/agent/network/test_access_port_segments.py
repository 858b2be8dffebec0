"""Tests of an untagged segment, whose uplink is a port of the bridge."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_machine import FakeKernel, FakeUplinkRecords
from support.fake_machine.host import NEW_INTERFACE_IP

from virtcloud.agent.difference import compute_difference
from virtcloud.agent.network.interfaces import HostIpSettings, UplinkRecord, UplinkRecordFiles
from virtcloud.agent.network.segments import SegmentInterfaces
from virtcloud.agent.observed_host import ObservedHost, ObservedSegment
from virtcloud.agent.steps import BuildSegment, RemoveSegment
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.wanted import HostWanted, Segment

Make = Callable[..., Segment]


def test_an_untagged_segment_attaches_the_uplink_itself(kernel: FakeKernel, make_segment: Make) -> None:
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    bridge, uplink = kernel.interface("br100"), kernel.interface("eth0")
    assert kernel.names == {"eth0", "br100"}
    assert (bridge.alias, bridge.up, bridge.host_ip_disabled) == ("virtcloud:a@eth0", True, True)
    assert (uplink.master, uplink.alias, uplink.host_ip_disabled) == (bridge.index, None, True)


def test_an_untagged_segment_is_read_back_as_built(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    assert segments.read() == (ObservedSegment("a", 100, "eth0", untagged=True),)


def test_an_uplink_that_an_administrator_sets_down_stays_down(
    kernel: FakeKernel, make_segment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    disable = kernel.disable_host_ip

    def set_down_first(index: int, name: str) -> None:
        if name == "eth0":
            kernel.change(index, up=False)
        disable(index, name)

    monkeypatch.setattr(kernel, "disable_host_ip", set_down_first)
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    assert not kernel.interface("eth0").up


def test_a_detached_uplink_is_attached_again(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    kernel.change(1, master=None)
    assert segments.read() == (ObservedSegment("a", 100, "eth0", ("eth0 is not on br100",), untagged=True),)
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    assert segments.read() == (ObservedSegment("a", 100, "eth0", untagged=True),)


def test_removal_restores_the_uplink(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    segments.ensure_no_segment("a", 100)
    segments.ensure_no_segment("a", 100)
    uplink = kernel.interface("eth0")
    assert (kernel.names, uplink.master or None, uplink.host_ip_disabled) == ({"eth0"}, None, False)


FORMER_SETTINGS = HostIpSettings(
    settings={"ipv6/addr_gen_mode": "2", "ipv6/disable_ipv6": "0"}, addresses=("fe80::1/64",)
)


class Killed(BaseException):
    """Simulates that the agent's process is killed."""


class KilledDependency:
    """A dependency of the agent. ``calls`` are the names of the agent's calls to all its dependencies.

    The call with the number ``killed_at`` kills the agent, before or after the call's effect.
    """

    def __init__(self, dependency: object, calls: list[str], killed_at: int, *, after: bool) -> None:
        self._dependency, self._calls, self._killed_at, self._after = dependency, calls, killed_at, after

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object, **keywords: object) -> object:
            self._calls.append(name)
            is_killed = len(self._calls) == self._killed_at
            if is_killed and not self._after:
                raise Killed
            result = getattr(self._dependency, name)(*arguments, **keywords)
            if is_killed:
                raise Killed
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("still_wanted", [True, False])
def test_an_uplink_is_restored_after_a_kill_at_any_call(make_segment: Make, *, still_wanted: bool, after: bool) -> None:
    """A segment is created and removed repeatedly.

    Each time, the agent is killed at a later one of its calls to the kernel and to the records.
    """
    for killed_at in range(1, 60):
        kernel, uplinks, calls = FakeKernel(), FakeUplinkRecords(), list[str]()
        kernel.ip_settings[1] = FORMER_SETTINGS
        segment = make_segment("a", 100, untagged=True)
        killed_segments = SegmentInterfaces(
            KilledDependency(kernel, calls, killed_at, after=after),  # type: ignore[arg-type]
            KilledDependency(uplinks, calls, killed_at, after=after),  # type: ignore[arg-type]
        )
        try:
            killed_segments.ensure_segment(segment)
            killed_segments.ensure_no_segment("a", 100)
        except Killed:
            if still_wanted:
                SegmentInterfaces(kernel, uplinks).ensure_segment(segment)
            remove_observed_segments(SegmentInterfaces(kernel, uplinks))
        else:
            assert killed_at > 15, f"expected at least 15 calls, each with a kill, got {killed_at - 1}"
            return
        assert (kernel.ip_settings[1], kernel.interface("eth0").master or None, uplinks.all()) == (
            FORMER_SETTINGS,
            None,
            [],
        ), f"killed at call {killed_at}, {calls[-1]}"
    pytest.fail("the segment was never completed")


def remove_observed_segments(segments: SegmentInterfaces) -> None:
    for step in compute_difference(HostWanted(), ObservedHost(segments.read())):
        assert isinstance(step, RemoveSegment)
        segments.ensure_no_segment(step.cluster, step.vlan)


@pytest.mark.parametrize("untagged", [True, False])
def test_a_segment_whose_uplink_is_missing_gets_an_access_port(
    kernel: FakeKernel, make_segment: Make, *, untagged: bool
) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=untagged))
    kernel.delete(1)
    if not untagged:
        kernel.delete(kernel.interface("eth0.100").index)  # Linux deletes a VLAN interface with its parent
    kernel.put(name="eth1", up=True)
    wanted = make_segment("a", 100, port="eth1", untagged=True)
    steps = compute_difference(HostWanted(segments=(wanted,)), ObservedHost(segments.read()))
    assert steps == [RemoveSegment("a", 100, files_stay=True), BuildSegment(wanted, steps[1].faults)]
    segments.ensure_no_segment("a", 100)
    segments.ensure_segment(wanted)
    assert segments.read() == (ObservedSegment("a", 100, "eth1", untagged=True),)


def test_an_uplink_of_a_deleted_bridge_is_restored(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.ip_settings[1] = FORMER_SETTINGS
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    kernel.delete(kernel.interface("br100").index)
    assert segments.read() == (ObservedSegment("a", 100, None, ("the bridge is missing",), untagged=True),)
    remove_observed_segments(segments)
    assert (kernel.ip_settings[1], segments.read()) == (FORMER_SETTINGS, ())


def test_only_the_bridge_is_built_again_while_a_port_exists(kernel: FakeKernel, make_segment: Make) -> None:
    """If the segment was removed, its users would lose their connections."""
    segments, wanted = SegmentInterfaces(kernel, FakeUplinkRecords()), make_segment("a", 100, untagged=True)
    segments.ensure_segment(wanted)
    kernel.put(name="vs100", kind="veth", alias="virtcloud:a")
    kernel.delete(kernel.interface("br100").index)
    steps = compute_difference(HostWanted(segments=(wanted,)), ObservedHost(segments.read()))
    assert steps == [BuildSegment(wanted, ("the bridge is missing",))]
    segments.ensure_segment(wanted)
    assert segments.read() == (ObservedSegment("a", 100, "eth0", untagged=True),)


def test_a_restored_uplink_stays_a_port_of_a_foreign_bridge(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.ip_settings[1] = FORMER_SETTINGS
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    foreign = kernel.put(name="br0", kind="bridge")
    kernel.change(1, master=foreign)
    segments.ensure_no_segment("a", 100)
    assert (kernel.interface("eth0").master, kernel.ip_settings[1]) == (foreign, FORMER_SETTINGS)


def test_a_recreated_uplink_is_not_restored(kernel: FakeKernel, make_segment: Make) -> None:
    """For example, an uplink is recreated when its driver is loaded again. The host configures the new uplink."""
    kernel.ip_settings[1] = FORMER_SETTINGS
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    kernel.delete(1)
    new_index = kernel.put(name="eth0", up=True)
    segments.ensure_no_segment("a", 100)
    assert (kernel.ip_settings.get(new_index), kernel.names) == (None, {"eth0"})


def test_an_unrecorded_uplink_is_restored_like_a_new_interface(kernel: FakeKernel, make_segment: Make) -> None:
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_no_segment("a", 100)
    assert (kernel.ip_settings[1], kernel.interface("eth0").host_ip_disabled) == (NEW_INTERFACE_IP, False)


def test_an_uplink_that_cannot_be_recorded_is_not_changed(
    kernel: FakeKernel, make_segment: Make, tmp_path: Path
) -> None:
    (tmp_path / "uplinks").write_text("a file instead of a folder")
    with pytest.raises(Refused, match=r"cannot record the state of eth0, which was left unchanged"):
        SegmentInterfaces(kernel, UplinkRecordFiles(tmp_path / "uplinks", "boot")).ensure_segment(
            make_segment("a", 100, untagged=True)
        )
    assert (kernel.interface("eth0").host_ip_disabled, kernel.interface("eth0").master) == (False, None)


def test_a_record_is_valid_for_one_boot(tmp_path: Path) -> None:
    record = UplinkRecord(uplink="eth0", index=2, cluster="a", vlan=100, host_ip=FORMER_SETTINGS)
    UplinkRecordFiles(tmp_path, "first").record(record)
    assert UplinkRecordFiles(tmp_path, "first").all() == [record.model_copy(update={"boot": "first"})]
    assert UplinkRecordFiles(tmp_path, "second").all() == []


def test_a_record_has_the_keys_of_earlier_agents(tmp_path: Path) -> None:
    """An administrator may install an earlier agent again, which refuses a record with an unknown key."""
    record = UplinkRecord(uplink="eth0", index=2, cluster="a", vlan=100, host_ip=FORMER_SETTINGS)
    UplinkRecordFiles(tmp_path, "first").record(record)
    assert json.loads((tmp_path / "eth0.json").read_text())["voice"] == FORMER_SETTINGS.model_dump(mode="json")


def test_an_uplink_of_a_foreign_bridge_is_left_unchanged(kernel: FakeKernel, make_segment: Make) -> None:
    kernel.change(1, master=kernel.put(name="virbr0", kind="bridge"))
    before = kernel.changes
    with pytest.raises(Unsafe, match=r"port eth0 is already a port of virbr0 \(alias none\); left unchanged"):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    assert kernel.changes == before


def test_an_uplink_with_an_address_is_left_unchanged(kernel: FakeKernel, make_segment: Make) -> None:
    """If the agent used such an uplink, an error in the topology would disconnect the host."""
    kernel.change(1, addressed=True)
    before = kernel.changes
    with pytest.raises(
        Unsafe, match="port eth0 has an address of this host, but an access port is used by one cluster only"
    ):
        SegmentInterfaces(kernel, FakeUplinkRecords()).ensure_segment(make_segment("a", 100, untagged=True))
    assert kernel.changes == before


def test_a_second_cluster_on_an_access_port_is_refused(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    segments.ensure_segment(make_segment("a", 100, untagged=True))
    with pytest.raises(Unsafe, match="port eth0 is already a port of br100"):
        segments.ensure_segment(make_segment("b", 101, untagged=True))


@pytest.mark.parametrize("untagged", [True, False])
def test_a_segment_is_rebuilt_when_its_tagging_changes(make_segment: Make, untagged: bool) -> None:
    before = ObservedHost((ObservedSegment("a", 100, "eth0", untagged=not untagged),))
    after = make_segment("a", 100, untagged=untagged)
    assert compute_difference(HostWanted(segments=(after,)), before) == [
        RemoveSegment("a", 100, files_stay=True),
        BuildSegment(after),
    ]


def test_an_unrestorable_uplink_does_not_block_removals(kernel: FakeKernel, make_segment: Make) -> None:
    segments = SegmentInterfaces(kernel, FakeUplinkRecords())
    kernel.ip_settings[1] = FORMER_SETTINGS
    segments.ensure_segment(make_segment("a", 100, untagged=True))

    def refuse(*_: object) -> None:
        raise Refused("Invalid argument")

    restore, kernel.restore_host_ip = kernel.restore_host_ip, refuse  # type: ignore[assignment]
    with pytest.raises(Refused, match="Invalid argument"):
        segments.ensure_no_segment("a", 100)
    assert kernel.names == {"eth0"}
    assert segments.read() == (ObservedSegment("a", 100, None, ("the bridge is missing",), untagged=True),)
    kernel.restore_host_ip = restore
    remove_observed_segments(segments)
    assert (kernel.ip_settings[1], segments.read()) == (FORMER_SETTINGS, ())


def test_an_uplink_is_restored_without_writable_records(kernel: FakeKernel, make_segment: Make) -> None:
    class FullDiskRecords(FakeUplinkRecords):
        def record(self, record: UplinkRecord) -> None:
            raise Refused("No space left on device")

    uplinks = FakeUplinkRecords()
    kernel.ip_settings[1] = FORMER_SETTINGS
    SegmentInterfaces(kernel, uplinks).ensure_segment(make_segment("a", 100, untagged=True))
    full = FullDiskRecords()
    full.by_name = uplinks.by_name
    SegmentInterfaces(kernel, full).ensure_no_segment("a", 100)
    assert (kernel.names, kernel.ip_settings[1]) == ({"eth0"}, FORMER_SETTINGS)
