"""Tests of the output of each platform about a save, and of its interpretation by the driver (DESIGN.md §8)."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from emulators import EMULATED_PLATFORMS as EMULATED
from emulators.clients import AdministratorClient
from emulators.edge_bench import open_direct_bench
from emulators.switch_bench import MakeBench, SwitchBench

from sbf_service.drivers.registry import SWITCH_PLATFORMS
from virtcloud.model.edge import EdgeDifference
from virtcloud.model.errors import Refused, Unreachable
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

BY_COMMAND_LINE = [name for name in EMULATED if not SWITCH_PLATFORMS[name].capabilities.atomic]
BUSY = "startup-config file open failed (Device or resource busy)\n"
SAVING_APART = [*BY_COMMAND_LINE, "arista_eapi"]
VARIANTS = [(name, words) for name in SAVING_APART for words in EMULATED[name].saved_variants]
FAILURES = [(name, cause) for name in SAVING_APART for cause in EMULATED[name].save_failures]
QUESTIONS = [(name, cause) for name in SAVING_APART for cause in EMULATED[name].save_questions]


def changed(make_bench: MakeBench, platform: str, **options: object) -> SwitchBench:
    """Return a switch with VLAN 112 in its running configuration but not in its startup configuration."""
    bench = make_bench(platform, **options)
    bench.read()
    bench.driver.apply(SwitchDifference(create=VlanSet([112]), add={bench.a: VlanSet([112])}))
    assert bench.switch.unsaved
    return bench


@pytest.mark.parametrize("platform", SAVING_APART)
def test_a_successful_save_is_recognized_by_its_output(platform: str, make_bench: MakeBench) -> None:
    bench = changed(make_bench, platform)
    assert bench.driver.save() is True
    assert (bench.switch.saves, bench.switch.unsaved) == (1, False)


@pytest.mark.parametrize(("platform", "words"), VARIANTS)
def test_the_success_messages_of_other_releases_are_recognized(
    platform: str, words: str, make_bench: MakeBench
) -> None:
    bench = changed(make_bench, platform)
    bench.switch.variant = words
    assert bench.driver.save() is True
    assert not bench.switch.unsaved


@pytest.mark.parametrize(("platform", "cause"), FAILURES)
def test_a_failed_save_is_refused_with_the_devices_message(platform: str, cause: str, make_bench: MakeBench) -> None:
    bench = changed(make_bench, platform)
    bench.switch.fail_save(cause)
    last = bench.switch.save_failures[cause].split()[-1]
    with pytest.raises(Refused) as caught:
        bench.driver.save()
    assert last in str(caught.value)
    assert bench.switch.unsaved
    assert bench.driver.save() is True


@pytest.mark.parametrize(("platform", "cause"), QUESTIONS)
def test_a_question_before_a_save_is_answered(platform: str, cause: str, make_bench: MakeBench) -> None:
    bench = changed(make_bench, platform)
    bench.switch.fail_save(cause)
    assert bench.driver.save() is True
    assert not bench.switch.unsaved


@pytest.mark.parametrize("platform", BY_COMMAND_LINE)
def test_a_hanging_save_is_abandoned_after_its_timeout(platform: str, make_bench: MakeBench) -> None:
    bench = changed(make_bench, platform, read_timeout=0.5)
    bench.switch.fail_save("hang")
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        bench.driver.save()
    assert time.monotonic() - begun < 3.5
    bench.read()
    assert bench.driver.save() is True


@pytest.mark.parametrize("how", ["cut", "cut written"])
@pytest.mark.parametrize("platform", BY_COMMAND_LINE)
def test_a_cut_save_is_unreachable_and_repeatable(platform: str, how: str, make_bench: MakeBench) -> None:
    bench = changed(make_bench, platform)
    bench.switch.fail_save(how)
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
    """The platform serializes saves. The second session receives an error that the switch is busy."""
    bench = changed(make_bench, "cisco_ios")
    bench.switch.fail_save("slow", seconds=1)
    with AdministratorClient(bench.switch) as administrator, ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(administrator.ask, "write memory")
        while not bench.switch._storing.locked():
            time.sleep(0.01)
        with pytest.raises(Refused, match="Device or resource busy"):
            bench.driver.save()
        assert "[OK]" in theirs.result(10)
    assert bench.driver.save() is True


@pytest.mark.parametrize(
    ("platform", "kind"), [("cisco_iosxe", "vpls"), ("arista_eos", "evpn"), ("cisco_nxos", "evpn")]
)
def test_an_edge_is_saved_only_if_it_prints_success(platform: str, kind: str) -> None:
    bench = open_direct_bench(platform, kind)
    bench.driver.apply(EdgeDifference(add=(bench.circuit(112),)))
    bench.device.fail("say", "^(write memory|copy running)", text=BUSY)
    with pytest.raises(Refused, match=r"edge pe1: told '.*', it said '.*Device or resource busy.*it is saved again"):
        bench.driver.save()
    assert bench.driver.save() is True
    assert bench.device.saves == 1


@pytest.mark.parametrize(("platform", "kind"), [("cisco_iosxr", "vpls"), ("juniper_junos", "evpn")])
def test_an_edge_with_persistent_commits_needs_no_save(platform: str, kind: str) -> None:
    bench = open_direct_bench(platform, kind)
    bench.driver.apply(EdgeDifference(add=(bench.circuit(112),)))
    assert bench.driver.save() is False
