"""Tests of the Linux bridge driver.

A restored port has the configuration that the port had before SBF first configured the port. An open port is a port
that SBF must close (``SwitchObserved``).
"""

import pytest
from support.sbf_fakes.linux_switch import LinuxLine, LinuxSwitch

from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch.linux_bridge import (
    CAPABILITIES,
    LinuxBridge,
    derive_bridge_state,
    render_bridge_commands,
)
from sbf_service.drivers.transport.iproute2 import parse_vlan_entries
from sbf_service.drivers.transport.shell import pack_words
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

SWITCH = Name("sw1")
PORTS = tuple(PortName(port) for port in ("p1", "p2", "uplink"))

# Output of iproute2 6.1 on Linux 6.1.
COMPRESSED = (
    '[{"ifname":"br0","vlans":[{"vlan":1,"flags":["PVID","Egress Untagged"]}]},'
    '{"ifname":"p1","vlans":[{"vlan":1,"flags":["PVID","Egress Untagged"]},{"vlan":100,"vlanEnd":105,"flags":[]},'
    '{"vlan":107}]},{"ifname":"p2","vlans":[{"vlan":1,"flags":["Egress Untagged"]},'
    '{"vlan":300,"flags":["PVID","Egress Untagged"]}]},'
    '{"ifname":"uplink","vlans":[{"vlan":1,"flags":["PVID","Egress Untagged"]}]}]'
)
PLAIN = '[{"ifname":"p1","vlans":[{"vlan":100},{"vlan":101},{"vlan":102}]}]'


def observed_ports(printed: str, managed: str = "100-199") -> dict[str, str]:
    observed = derive_bridge_state(
        SWITCH, parse_vlan_entries("switch sw1", printed), SwitchScope(PORTS, VlanSet.parse(managed))
    )
    return {port: str(vlans) for port, vlans in observed.ports.items()}


class Line:
    """A command line that returns the same answer to every command."""

    prompt = r"^# "

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        return self.answer

    def close(self) -> None:
        pass


def test_ranges_are_parsed() -> None:
    assert observed_ports(COMPRESSED) == {"p1": "100-105,107", "p2": "", "uplink": ""}


def test_single_vlans_are_parsed() -> None:
    assert observed_ports(PLAIN) == {"p1": "100-102", "p2": "", "uplink": ""}


def test_only_the_managed_vlans_of_a_range_are_observed() -> None:
    assert observed_ports(COMPRESSED, "104-106") == {"p1": "104-105", "p2": "", "uplink": ""}


def test_an_untagged_vlan_outside_the_pool_is_left_unchanged() -> None:
    assert observed_ports(COMPRESSED, "100-299") == {"p1": "100-105,107", "p2": "", "uplink": ""}


def test_an_untagged_pool_vlan_is_unsafe() -> None:
    with pytest.raises(Unsafe) as caught:
        observed_ports(COMPRESSED, "100-400")
    assert str(caught.value) == (
        "switch sw1, port p2: expected VLAN 300 tagged or absent, found PVID, Egress Untagged: "
        "move the other use to a VLAN outside the pool, or remove the VLAN from the pool"
    )


@pytest.mark.parametrize(
    "printed",
    [
        "",
        'Object "vlan" is unknown, try "bridge help".',
        '[{"ifname":"p1","vlans":[{"vlan":"100"}]}]',
        '[{"ifname":"p1","vlans":[{"vlan":5000}]}]',
        '[{"ifname":"p1","vlans":[{"vlan":100,"vlanEnd":10',
        '{"ifname":"p1"}',
    ],
    ids=["empty", "an error", "text instead of a number", "VLAN ID too high", "truncated", "object instead of list"],
)
def test_unknown_output_is_unsafe_and_quoted(printed: str) -> None:
    with pytest.raises(Unsafe, match=r"^switch sw1: expected JSON from 'bridge -compressvlans -json vlan show', got "):
        observed_ports(printed)


def test_removals_come_first_and_ranges_are_used() -> None:
    difference = SwitchDifference(
        add={PortName("p1"): VlanSet.parse("100-105,107")}, remove={PortName("uplink"): VlanSet.parse("110")}
    )
    assert list(render_bridge_commands(difference)) == [
        "vlan del dev uplink vid 110",
        "vlan add dev p1 vid 100-105",
        "vlan add dev p1 vid 107",
    ]


def observed_access_port(printed: str, port: str = "p2") -> tuple[str, tuple[str, ...]]:
    managed = SwitchScope(PORTS, VlanSet.parse("100-199"), (PortName(port),))
    observed = derive_bridge_state(
        SWITCH, parse_vlan_entries("switch sw1", f'[{{"ifname":"{port}","vlans":[{printed}]}}]'), managed
    )
    return str(observed.ports[PortName(port)]), observed.open


UNTAGGED_FLAGS = '"flags":["PVID","Egress Untagged"]'


@pytest.mark.parametrize(
    ("printed", "carried", "is_open"),
    [
        ("", "", False),
        (f'{{"vlan":112,{UNTAGGED_FLAGS}}}', "112", False),
        (f'{{"vlan":112,{UNTAGGED_FLAGS}}},{{"vlan":50}}', "112", False),
        (f'{{"vlan":1,{UNTAGGED_FLAGS}}}', "", True),
        ('{"vlan":112}', "", True),
        ('{"vlan":112,"flags":["PVID"]}', "", True),
        (f'{{"vlan":111,"flags":["Egress Untagged"]}},{{"vlan":112,{UNTAGGED_FLAGS}}}', "", True),
        (f'{{"vlan":111}},{{"vlan":112,{UNTAGGED_FLAGS}}}', "", True),
    ],
    ids=[
        "no VLAN",
        "managed VLAN",
        "managed and foreign VLAN",
        "default VLAN",
        "tagged",
        "ingress only",
        "second VLAN on egress",
        "second VLAN tagged",
    ],
)
def test_an_access_port_has_one_managed_vlan_or_is_open(printed: str, carried: str, is_open: bool) -> None:
    assert observed_access_port(printed) == (carried, ("p2",) if is_open else ())


def test_an_access_port_in_a_foreign_vlan_is_unsafe() -> None:
    with pytest.raises(Unsafe) as caught:
        observed_access_port(f'{{"vlan":50,{UNTAGGED_FLAGS}}}')
    assert str(caught.value) == (
        "switch sw1, access port p2: expected at most one managed VLAN, untagged, found VLAN 50: "
        "move the other use to another port, remove this port from the topology, or adopt it "
        "('virtcloud element adopt sw1 p2')"
    )


def test_batches_fit_on_a_terminal_line() -> None:
    lines = [f"vlan add dev p1 vid {vlan}" for vlan in range(100, 1100)]
    batches = list(pack_words(lines, 3))
    assert [line for batch in batches for line in batch] == lines
    assert max(len(" ".join(repr(line) for line in batch)) for batch in batches) <= 3600
    assert len(batches) == 8


def test_an_empty_difference_sends_no_batch() -> None:
    assert list(pack_words([])) == []


def test_an_answer_without_begin_and_end_is_unsafe() -> None:
    with pytest.raises(Unsafe, match="expected output between 'begin-of-answer' and 'end-of-answer:', got 'logout'"):
        LinuxBridge(SWITCH, Line("logout")).read(SwitchScope(PORTS, VlanSet()))


def test_a_missing_program_is_a_refusal() -> None:
    printed = "begin-of-answer\nsh: 1: bridge: not found\nend-of-answer:127"
    with pytest.raises(Refused, match="failed: the switch printed 'sh: 1: bridge: not found'"):
        LinuxBridge(SWITCH, Line(printed)).read(SwitchScope(PORTS, VlanSet()))
    with pytest.raises(Refused, match=r"failed: the switch printed 'sh: 1: bridge: not found \(exit code 127\)'"):
        LinuxBridge(SWITCH, Line(printed)).apply(SwitchDifference(add={PortName("p1"): VlanSet([100])}))


@pytest.mark.timeout(20)
def test_much_output_without_a_failed_line_is_parsed() -> None:
    """The regular expression of an earlier version took two minutes here, and blocked all other threads of SBF."""
    printed = f"begin-of-answer\n{'warning ' * 12_000}\nend-of-answer:1"
    with pytest.raises(Refused, match=r"warning \(exit code 1\)"):
        LinuxBridge(SWITCH, Line(printed)).apply(SwitchDifference(add={PortName("p1"): VlanSet([100])}))


def test_each_refused_line_is_named_with_the_switchs_message() -> None:
    printed = (
        "begin-of-answer\nRTNETLINK answers: Operation not permitted\nCommand failed -:1\n"
        'Cannot find bridge device "p9"\nCommand failed -:2\nend-of-answer:1'
    )
    difference = SwitchDifference(add={PortName("p1"): VlanSet([100]), PortName("p9"): VlanSet([100])})
    with pytest.raises(Refused) as caught:
        LinuxBridge(SWITCH, Line(printed)).apply(difference)
    assert str(caught.value) == (
        "switch sw1: 'vlan add dev p1 vid 100' failed: the switch printed 'RTNETLINK answers: Operation not "
        "permitted'; 'vlan add dev p9 vid 100' failed: the switch printed 'Cannot find bridge device \"p9\"': "
        "check the device's ports and the account's rights"
    )


def test_the_default_vlan_is_reserved() -> None:
    assert str(CAPABILITIES.reserved) == "1"


P1 = PortName("p1")
POOL = VlanSet.parse("100-199")
PVID = ["PVID", "Egress Untagged"]
USES: dict[str, dict[int, list[str]]] = {
    "VLAN 20 untagged": {20: PVID},
    "tagged VLANs": {1: PVID, 20: [], 21: [], 22: []},
    "a native VLAN and a tagged VLAN": {20: PVID, 30: []},
}


def make_bridge(vlans: dict[int, list[str]]) -> tuple[LinuxSwitch, LinuxBridge]:
    switch = LinuxSwitch({"p1": dict(vlans)})
    return switch, LinuxBridge(Name("sw1"), LinuxLine(switch))


@pytest.mark.parametrize("vlans", [{}, {1: PVID}, {112: []}], ids=["none", "the default", "SBF's"])
def test_a_port_without_foreign_vlans_is_in_no_other_use(vlans: dict[int, list[str]]) -> None:
    _, driver = make_bridge(vlans)
    assert driver.read(SwitchScope((P1,), POOL)).in_use == ()


@pytest.mark.parametrize("use", USES)
def test_a_port_with_foreign_vlans_is_in_other_use(use: str) -> None:
    _, driver = make_bridge(USES[use])
    assert driver.read(SwitchScope((P1,), POOL)).in_use == (P1,)


@pytest.mark.parametrize("access", [False, True], ids=["trunk", "access port"])
@pytest.mark.parametrize("former_use", [*USES, "the default"])
def test_a_port_is_restored_exactly(former_use: str, access: bool) -> None:
    before = USES.get(former_use, {1: PVID})
    switch, driver = make_bridge(before)
    on_access = (P1,) if access else ()
    use = driver.read(SwitchScope((P1,), POOL)).untaken[P1]
    adopted = SwitchScope((P1,), POOL, access=on_access, adopted={P1: use})
    for vlans in ("112", ""):
        wanted = SwitchWanted(ports={P1: VlanSet.parse(vlans)}, access=on_access)
        driver.apply(compare_switch(wanted, driver.read(adopted)))
    returned = SwitchScope((), POOL, returned=adopted.adopted)
    driver.apply(compare_switch(SwitchWanted(ports={P1: VlanSet()}), driver.read(returned)))
    assert switch.ports["p1"] == before


def test_a_released_port_that_was_removed_is_ignored() -> None:
    switch, driver = make_bridge(USES["tagged VLANs"])
    returned = SwitchScope((), POOL, returned=driver.read(SwitchScope((P1,), POOL)).untaken)
    del switch.ports["p1"]
    assert driver.read(returned).astray == {}


def test_a_port_that_is_down_is_detected() -> None:
    switch, driver = make_bridge({112: []})
    switch.down = {"p1"}
    assert driver.read(SwitchScope((P1,), POOL)).down == (P1,)


def test_ports_without_vlans_are_read_too() -> None:
    """The output of ``bridge vlan show`` omits ports without VLANs."""
    switch = LinuxSwitch({"p1": {20: [], 1: ["PVID", "Egress Untagged"]}, "p2": {}}, down={"p2"})
    reading = LinuxBridge(Name("sw1"), LinuxLine(switch)).read_all()
    assert reading.vlans == VlanSet([1, 20])
    assert {name: (port.tagged, port.off) for name, port in reading.ports.items()} == {
        "p1": (VlanSet([20]), False),
        "p2": (VlanSet(), True),
    }


def test_a_managed_port_that_does_not_exist_is_unsafe() -> None:
    _, driver = make_bridge({112: []})
    with pytest.raises(Unsafe, match=r"switch sw1: expected a port p7, found .*p1.*: correct the topology"):
        driver.read(SwitchScope((P1, PortName("p7")), POOL))


def test_a_bridge_without_vlan_filtering_is_unsafe() -> None:
    """Without filtering, a bridge accepts and shows VLANs, but forwards the frames of all clusters to all ports."""
    driver = LinuxBridge(SWITCH, LinuxLine(LinuxSwitch({"p1": {}, "p2": {}}, filtering=0)))
    expected = (
        "switch sw1: expected bridge br0 with vlan_filtering 1, found vlan_filtering 0: the bridge would connect all "
        "clusters; on the switch: ip link set br0 type bridge vlan_filtering 1"
    )
    with pytest.raises(Unsafe) as caught:
        driver.read(SwitchScope((PortName("p1"),), VlanSet.parse("100-199")))
    assert str(caught.value) == expected
