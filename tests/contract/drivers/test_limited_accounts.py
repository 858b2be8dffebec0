"""Accounts and releases that lack a right or a filter: SBF asks what they answer, or says what was refused."""

import re

import pytest
from emulators import EMULATED_PLATFORMS as EMULATED
from emulators.edge_bench import open_direct_bench
from emulators.switch_bench import MakeBench

from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.errors import Refused

FILTERS = {
    "cisco_ios": r"\|",
    "cisco_nxos": "^show running-config interface",
    "arista_eos": "section",
    "hp_comware": "^display current-configuration interface",
    "dell_os10": "^show running-configuration interface",
}
FILTERS |= {
    name: f"^{re.escape(next(iter(one.instead)))}$"
    for name, one in DIALECTS.items()
    if one.instead and name not in FILTERS
}


@pytest.mark.parametrize("platform", FILTERS)
def test_an_account_that_cannot_filter_is_asked_for_the_whole(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.forbid(FILTERS[platform])
    assert not bench.converge("112", "112,120")
    assert not bench.converge("", "120")
    assert bench.carries(bench.names[1]) == {120}


@pytest.mark.parametrize("platform", FILTERS)
def test_a_filter_that_answers_nothing_is_taken_for_none(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.fail("say", FILTERS[platform], text="\n", times=99)
    assert not bench.converge("112", "112,120")


def test_the_command_that_was_answered_is_asked_first_from_then_on(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid(r"\|")
    bench.read()
    before = len(bench.switch.commands)
    bench.read()
    assert bench.switch.commands[before:] == ["show vlan brief", "show running-config", "show vlan internal usage"]


def test_an_account_that_may_not_see_the_configuration_is_asked_for_the_ports(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid("^show running-config")
    assert not bench.converge("112", ",".join(str(number) for number in range(100, 200, 2)))
    assert not bench.converge("", "120")
    assert bench.carries(bench.names[1]) == {120}


def test_a_trunk_that_carries_all_is_seen_without_the_configuration_too(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.become_trunk(bench.switch.running.ports[bench.names[0]], None)
    bench.switch.forbid("^show running-config")
    assert bench.a in bench.read().open


def test_an_account_that_sees_nothing_is_refused_in_the_devices_words(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid("^show (running-config|interfaces)")
    said = r"asked 'show running-config \| include .*', it said 'Command authorization failed"
    with pytest.raises(Refused, match=said):
        bench.read()


def test_an_edge_that_cannot_filter_is_asked_for_the_whole() -> None:
    bench = open_direct_bench("cisco_iosxe", "vpls")
    bench.device.fail("refuse", r"\|", times=99)
    assert not bench.converge(112)
    assert not bench.converge()


def test_every_alternative_is_for_a_command_of_its_dialect() -> None:
    assert {name for name, one in DIALECTS.items() if set(one.instead) - set(one.show)} == set()
    assert {name for name, one in DIALECTS.items() if one.instead} == set(FILTERS)
    assert set(FILTERS) <= set(EMULATED)


@pytest.mark.parametrize("platform", DIALECTS)
def test_the_words_for_a_missing_right_are_a_refusal(platform: str) -> None:
    words = EMULATED[platform].unauthorized.format(line="vlan 112")
    assert words
    assert DIALECTS[platform].errors.search(words)


def test_a_line_that_the_account_may_not_say_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid("^vlan ")
    with pytest.raises(Refused, match=r"told 'vlan 112', it said 'Command authorization failed"):
        bench.converge("112")
