"""Tests of saves on switches and edges. The driver recognizes success and failure by the output of the device."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators.clients import AdministratorClient
from support.emulators.edge_bench import open_direct_bench
from support.emulators.switch_bench import MakeBench, SwitchBench, set_read_timeout
from support.processor_wait import Stopwatch

from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.edge import EdgeDifference
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.vlans import VlanSet

LINE_BY_LINE = [name for name in EMULATED if not SWITCH_PLATFORMS[name].capabilities.atomic]
BUSY = "startup-config file open failed (Device or resource busy)\n"
WITH_SAVE_STEP = [*LINE_BY_LINE, "arista_eapi"]
VARIANTS = [(name, output) for name in WITH_SAVE_STEP for output in EMULATED[name].saved_variants]
FAILURES = [(name, cause) for name in WITH_SAVE_STEP for cause in EMULATED[name].save_failures]
QUESTIONS = [(name, cause) for name in WITH_SAVE_STEP for cause in EMULATED[name].save_questions]


def change_switch(make_bench: MakeBench, platform: str) -> SwitchBench:
    bench = make_bench(platform)
    bench.read()
    bench.driver.apply(SwitchDifference(create=VlanSet([112]), add={bench.a: VlanSet([112])}))
    assert bench.switch.unsaved
    return bench


@pytest.mark.parametrize("platform", WITH_SAVE_STEP)
def test_a_successful_save_is_recognized_by_its_output(platform: str, make_bench: MakeBench) -> None:
    bench = change_switch(make_bench, platform)
    assert bench.driver.save() is True
    assert (bench.switch.saves, bench.switch.unsaved) == (1, False)


@pytest.mark.parametrize(("platform", "output"), VARIANTS)
def test_the_success_messages_of_other_releases_are_recognized(
    platform: str, output: str, make_bench: MakeBench
) -> None:
    bench = change_switch(make_bench, platform)
    bench.switch.variant = output
    assert bench.driver.save() is True
    assert not bench.switch.unsaved


@pytest.mark.parametrize(("platform", "cause"), FAILURES)
def test_a_failed_save_is_refused_with_the_devices_message(platform: str, cause: str, make_bench: MakeBench) -> None:
    bench = change_switch(make_bench, platform)
    bench.switch.fail_save(cause)
    last = bench.switch.save_failures[cause].split()[-1]
    with pytest.raises(Refused) as caught:
        bench.driver.save()
    assert last in str(caught.value)
    assert bench.switch.unsaved
    assert bench.driver.save() is True


@pytest.mark.parametrize(("platform", "cause"), QUESTIONS)
def test_a_question_before_a_save_is_answered(platform: str, cause: str, make_bench: MakeBench) -> None:
    bench = change_switch(make_bench, platform)
    bench.switch.fail_save(cause)
    assert bench.driver.save() is True
    assert not bench.switch.unsaved


@pytest.mark.parametrize("platform", LINE_BY_LINE)
def test_a_hanging_save_is_abandoned_after_its_timeout(platform: str, make_bench: MakeBench) -> None:
    bench = change_switch(make_bench, platform)
    bench.switch.fail_save("hang")
    set_read_timeout(bench.driver, 0.5)
    stopwatch = Stopwatch()
    with pytest.raises(Unreachable):
        bench.driver.save()
    assert stopwatch.seconds < 3.5
    set_read_timeout(bench.driver, 5)
    bench.read()
    assert bench.driver.save() is True


@pytest.mark.parametrize("fault", ["disconnect", "disconnect written"])
@pytest.mark.parametrize("platform", LINE_BY_LINE)
def test_a_save_with_a_lost_session_can_be_repeated(platform: str, fault: str, make_bench: MakeBench) -> None:
    bench = change_switch(make_bench, platform)
    bench.switch.fail_save(fault)
    with pytest.raises(Unreachable):
        bench.driver.save()
    bench.read()
    assert bench.driver.save() is True
    assert not bench.switch.unsaved


@pytest.mark.parametrize("platform", ["juniper_junos", "cisco_iosxr"])
def test_a_persistent_commit_needs_no_save(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.read()
    bench.driver.apply(SwitchDifference(create=VlanSet([112]), add={bench.a: VlanSet([112])}))
    assert bench.driver.save() is False
    assert not bench.switch.unsaved


def test_a_save_during_an_administrators_save_is_refused_and_repeated(make_bench: MakeBench) -> None:
    """The switch allows one save at a time, and refuses the second session's save."""
    bench = change_switch(make_bench, "cisco_ios")
    bench.switch.fail_save("slow", seconds=1)
    with AdministratorClient(bench.switch) as administrator, ThreadPoolExecutor(1) as pool:
        other_save = pool.submit(administrator.send, "write memory")
        while not bench.switch._storing.locked():
            time.sleep(0.01)
        with pytest.raises(Refused, match="Device or resource busy"):
            bench.driver.save()
        assert "[OK]" in other_save.result(10)
    assert bench.driver.save() is True


@pytest.mark.parametrize(
    ("platform", "kind"), [("cisco_iosxe", "vpls"), ("arista_eos", "evpn"), ("cisco_nxos", "evpn")]
)
def test_an_edge_is_saved_only_if_it_prints_success(platform: str, kind: str) -> None:
    bench = open_direct_bench(platform, kind)
    bench.driver.apply(EdgeDifference(add=(bench.circuit(112),)))
    bench.device.fail("print", "^(write memory|copy running)", text=BUSY)
    with pytest.raises(
        Refused, match=r"edge pe1: sent '.*', the device answered '.*Device or resource busy.*SBF saves again"
    ):
        bench.driver.save()
    assert bench.driver.save() is True
    assert bench.device.saves == 1


@pytest.mark.parametrize(("platform", "kind"), [("cisco_iosxr", "vpls"), ("juniper_junos", "evpn")])
def test_an_edge_with_persistent_commits_needs_no_save(platform: str, kind: str) -> None:
    bench = open_direct_bench(platform, kind)
    bench.driver.apply(EdgeDifference(add=(bench.circuit(112),)))
    assert bench.driver.save() is False
