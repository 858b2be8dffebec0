"""Tests of accounts that lack a right, and of switch software that lacks an output filter.

An *open trunk* carries all VLANs.
"""

import re

import pytest
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators.edge_bench import open_direct_bench
from support.emulators.switch_bench import MakeBench

from sbf_service.drivers.switch.command_matching import EXIT_COMMANDS
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
    name: f"^{re.escape(next(iter(dialect.instead)))}$"
    for name, dialect in DIALECTS.items()
    if dialect.instead and name not in FILTERS
}


@pytest.mark.parametrize("platform", FILTERS)
def test_an_account_without_filters_reads_the_whole_configuration(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.forbid(FILTERS[platform])
    assert not bench.converge("112", "112,120")
    assert not bench.converge("", "120")
    assert bench.carries(bench.names[1]) == {120}


@pytest.mark.parametrize("platform", FILTERS)
def test_an_empty_filtered_answer_counts_as_a_missing_filter(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.fail("print", FILTERS[platform], text="\n", times=99)
    assert not bench.converge("112", "112,120")


def test_later_readings_omit_the_refused_command(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid(r"\|")
    bench.read()
    before = len(bench.switch.commands)
    bench.read()
    assert bench.switch.commands[before:] == ["show vlan brief", "show running-config", "show vlan internal usage"]


def test_ports_are_read_without_the_right_to_read_the_configuration(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid("^show running-config")
    assert not bench.converge("112", ",".join(str(number) for number in range(100, 200, 2)))
    assert not bench.converge("", "120")
    assert bench.carries(bench.names[1]) == {120}


def test_an_open_trunk_is_detected_without_the_configuration(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.become_trunk(bench.switch.running.ports[bench.names[0]], None)
    bench.switch.forbid("^show running-config")
    assert bench.a in bench.read().open


def test_an_account_without_rights_is_refused_with_the_devices_message(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid("^show (running-config|interfaces)")
    message = r"sent 'show running-config \| include .*', the device answered 'Command authorization failed"
    with pytest.raises(Refused, match=message):
        bench.read()


CONFIGURES = [name for name in EMULATED if name in DIALECTS and DIALECTS[name].configure]


@pytest.mark.parametrize("platform", CONFIGURES)
def test_a_refused_configuration_mode_is_reported_as_refused(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    (command,) = DIALECTS[platform].configure
    bench.switch.fail("refuse", f"^{command}$", times=99)
    with pytest.raises(Refused, match=f"sent '{command}', the device answered"):
        bench.converge("112")
    assert not EXIT_COMMANDS & set(bench.switch.commands)


def test_an_edge_without_filters_shows_the_whole_configuration() -> None:
    bench = open_direct_bench("cisco_iosxe", "vpls")
    bench.device.fail("refuse", r"\|", times=99)
    assert not bench.converge(112)
    assert not bench.converge()


def test_every_alternative_belongs_to_a_command_of_its_dialect() -> None:
    assert {name for name, dialect in DIALECTS.items() if set(dialect.instead) - set(dialect.show)} == set()
    assert {name for name, dialect in DIALECTS.items() if dialect.instead} == set(FILTERS)
    assert set(FILTERS) <= set(EMULATED)


@pytest.mark.parametrize("platform", DIALECTS)
def test_the_message_for_a_missing_right_is_a_refusal(platform: str) -> None:
    error = EMULATED[platform].unauthorized.format(line="vlan 112")
    assert error
    assert DIALECTS[platform].errors.search(error)


def test_a_forbidden_line_is_refused(make_bench: MakeBench) -> None:
    bench = make_bench("cisco_ios")
    bench.switch.forbid("^vlan ")
    with pytest.raises(Refused, match=r"sent 'vlan 112', the device answered 'Command authorization failed"):
        bench.converge("112")
