"""Tests of the empty lists of allowed VLANs on new and open trunks (docs/explanation/invariants.md, 4).

An open trunk carries every VLAN. A driver sets an empty list on each new or open trunk, and reads the lists back once
before it creates a VLAN. On the platforms in ``LIST_BEFORE_MODE``, a port becomes a trunk only after this reading.
"""

import re
from contextlib import suppress
from typing import Literal

import pytest
from support.emulators.switch_bench import POOL, MakeBench, SwitchBench
from support.emulators.switch_device import EmulatedPort

from sbf_service.drivers.contract import ListsCommands
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchWanted, compare_switch
from virtcloud.model.vlans import VlanSet

EMPTY_LIST = r"allowed vlan none$|trunk allowed 1$|undo port trunk permit vlan all$"
"""A pattern of the commands that remove all VLANs from a port's list. On AOS-CX, VLAN 1 remains."""
Fault = Literal["ignore", "refuse"]
LISTS = ("cisco_ios", "cisco_nxos", "arista_eos", "aruba_aoscx", "hp_comware")
"""Platforms whose trunks can have a VLAN list. Without a list, a trunk carries every VLAN; on Comware, only VLAN 1."""
LIST_BEFORE_MODE = ("cisco_ios", "cisco_nxos", "arista_eos", "arista_eapi")
READS = {"cisco_ios": 3, "cisco_nxos": 3, "arista_eos": 3, "aruba_aoscx": 1, "hp_comware": 2}
"""The number of commands that the driver needs to read a switch once, by platform."""


def open_ports(bench: SwitchBench) -> None:
    all_vlans = set(range(1, 4095)) if bench.switch.platform == "hp_comware" else None
    for name in bench.names:
        bench.switch.running.ports[name] = EmulatedPort(mode="trunk", allowed=all_vlans)


def modes(bench: SwitchBench) -> list[str]:
    return [bench.switch.running.ports[name].mode for name in bench.names]


def is_query(line: str) -> bool:
    return line.startswith(("show", "display"))


@pytest.mark.parametrize("platform", LIST_BEFORE_MODE)
def test_an_ignored_empty_list_makes_no_port_a_trunk(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    before = modes(bench)
    bench.switch.fail("ignore", EMPTY_LIST, times=100)
    with pytest.raises(Refused, match="wanted an empty list of allowed VLANs before the port becomes a trunk"):
        bench.converge("112", "112,120")
    assert modes(bench) == (["access", "access"] if platform == "cisco_nxos" else before)
    assert POOL.isdisjoint(bench.switch.running.vlans)
    assert not any(bench.switch.carrying().values())


@pytest.mark.parametrize("platform", [*LISTS, "arista_eapi"])
def test_no_vlan_is_created_while_a_trunk_stays_open(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    open_ports(bench)
    before = bench.switch.running_config()
    bench.switch.fail("ignore", EMPTY_LIST, times=100)
    with pytest.raises(Refused, match="no VLAN was created and no port became a trunk"):
        bench.converge("112", "112,120")
    assert bench.switch.running_config().replace(" no routing\n", "") == before.replace(" no routing\n", "")


@pytest.mark.parametrize("fault", ["ignore", "refuse"])
@pytest.mark.parametrize("platform", LISTS)
def test_no_trunk_carries_a_vlan_that_was_not_allowed(platform: str, fault: Fault, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    bench.switch.running.vlans[20] = "other"
    bench.switch.fail(fault, EMPTY_LIST)
    # By default, a trunk of Comware carries only VLAN 1. The driver empties the trunk's list nevertheless.
    with suppress(Refused):
        bench.converge("112", "120")
    assert not bench.converge("112", "120")
    names = bench.names
    carried = [(state.get(names[0], set()), state.get(names[1], set())) for _, state in bench.switch.timeline]
    assert all(a <= {1, 112} and b <= {1, 120} for a, b in carried)


@pytest.mark.parametrize("platform", LISTS)
def test_preparing_ports_needs_one_additional_reading(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    before = len(bench.switch.commands)
    bench.converge("112", "120")
    queries = [line for line in bench.switch.commands[before:] if is_query(line)]
    assert len(queries) == 3 * READS[platform]
    before = len(bench.switch.commands)
    bench.converge("112,113", "120,121")
    queries = [line for line in bench.switch.commands[before:] if is_query(line)]
    assert len(queries) == 2 * READS[platform]


@pytest.mark.parametrize("platform", LISTS)
def test_a_dry_run_shows_the_commands_of_both_steps(platform: str, make_bench: MakeBench) -> None:
    bench = make_bench(platform)
    wanted = SwitchWanted(ports={bench.a: VlanSet([112]), bench.b: VlanSet()})
    difference = compare_switch(wanted, bench.read())
    before = len(bench.switch.commands)
    assert isinstance(bench.driver, ListsCommands)
    lines = bench.driver.list_commands(difference)
    bench.driver.apply(difference)
    bench.driver.save()
    assert [line for line in bench.switch.commands[before:] if not is_query(line)] == list(lines)


def test_the_lists_of_a_session_are_read_before_its_commit(make_bench: MakeBench) -> None:
    """If empty lists were committed first and a second commit failed, the empty lists would remain in effect."""
    bench = make_bench("arista_eapi")
    assert not bench.converge("112", "120")
    queries = [line for line in bench.switch.commands if "virtcloud-" in line]
    session = re.sub(r"virtcloud-\w+", "S", "; ".join(queries))
    assert session == (
        "configure session S; show session-config named S diffs; show session-config named S; "
        "configure session S commit timer 00:02:00; configure session S commit"
    )


@pytest.mark.parametrize("text", ["% Incomplete command", "hostname sw1"])
def test_a_candidate_without_ports_is_not_committed(text: str, make_bench: MakeBench) -> None:
    bench = make_bench("arista_eapi")
    bench.switch.fail("print", r"^show session-config named \S+$", text=text)
    before = bench.switch.running_config()
    with pytest.raises(Unsafe, match=f"sw1: cannot parse the candidate configuration: .*{text}"):
        bench.converge("112", "120")
    assert not any("commit" in line for line in bench.switch.commands)
    assert bench.switch.running_config() == before


def test_a_port_with_an_unemptied_list_delays_no_other_port(make_bench: MakeBench) -> None:
    """The switch does not empty the list of the first port. SBF then does not make this port a trunk.

    On EOS, a port that is not a trunk carries no tagged VLAN. So SBF can create the VLAN of the second port safely.
    """
    bench = make_bench("arista_eos")
    bench.switch.fail("ignore", EMPTY_LIST, times=1)
    with pytest.raises(Refused, match=f"port {bench.a}: wanted an empty list"):
        bench.converge("112", "120")
    assert modes(bench) == ["access", "trunk"]
    assert (bench.carries(bench.names[1]), set(POOL) & set(bench.switch.running.vlans)) == ({120}, {120})
