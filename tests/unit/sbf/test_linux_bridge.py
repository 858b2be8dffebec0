"""The Linux bridge dialect: what iproute2 prints, and what it is told."""

import pytest

from sbf_service.drivers.driver import Managed
from sbf_service.drivers.iproute2 import vlan_entries
from sbf_service.drivers.linux_bridge import FACTS, LinuxBridge, carried_from, commands
from sbf_service.drivers.shell import parts
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

SWITCH = Name("sw1")
PORTS = tuple(PortName(port) for port in ("p1", "p2", "uplink"))

# As printed by iproute2 6.1 on Linux 6.1.
COMPRESSED = (
    '[{"ifname":"br0","vlans":[{"vlan":1,"flags":["PVID","Egress Untagged"]}]},'
    '{"ifname":"p1","vlans":[{"vlan":1,"flags":["PVID","Egress Untagged"]},{"vlan":100,"vlanEnd":105,"flags":[]},'
    '{"vlan":107}]},{"ifname":"p2","vlans":[{"vlan":1,"flags":["Egress Untagged"]},'
    '{"vlan":300,"flags":["PVID","Egress Untagged"]}]},'
    '{"ifname":"uplink","vlans":[{"vlan":1,"flags":["PVID","Egress Untagged"]}]}]'
)
PLAIN = '[{"ifname":"p1","vlans":[{"vlan":100},{"vlan":101},{"vlan":102}]}]'


def carried(said: str, managed: str = "100-199") -> dict[str, str]:
    found = carried_from(SWITCH, vlan_entries("switch sw1", said), Managed(PORTS, VlanSet.parse(managed)))
    return {port: str(vlans) for port, vlans in found.ports.items()}


class Line:
    """A command line that gives one answer."""

    prompt = r"^# "

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def ask(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        return self.answer

    def close(self) -> None:
        pass


def test_ranges_are_read() -> None:
    assert carried(COMPRESSED) == {"p1": "100-105,107", "p2": "", "uplink": ""}


def test_single_numbers_are_read() -> None:
    assert carried(PLAIN) == {"p1": "100-102", "p2": "", "uplink": ""}


def test_only_managed_numbers_are_read_of_a_range() -> None:
    assert carried(COMPRESSED, "104-106") == {"p1": "104-105", "p2": "", "uplink": ""}


def test_an_untagged_number_outside_the_pool_is_left_alone() -> None:
    assert carried(COMPRESSED, "100-299") == {"p1": "100-105,107", "p2": "", "uplink": ""}


def test_an_untagged_number_of_the_pool_is_unsafe() -> None:
    with pytest.raises(Unsafe) as caught:
        carried(COMPRESSED, "100-400")
    assert str(caught.value) == (
        "switch sw1, port p2: expected VLAN 300 tagged or absent, found PVID, Egress Untagged: move what uses it to a "
        "number outside the pool, or take that number out of the pool"
    )


@pytest.mark.parametrize(
    "said",
    [
        "",
        'Object "vlan" is unknown, try "bridge help".',
        '[{"ifname":"p1","vlans":[{"vlan":"100"}]}]',
        '[{"ifname":"p1","vlans":[{"vlan":5000}]}]',
        '[{"ifname":"p1","vlans":[{"vlan":100,"vlanEnd":10',
        '{"ifname":"p1"}',
    ],
    ids=["nothing", "an error", "text for a number", "no such number", "cut off", "another shape"],
)
def test_what_cannot_be_understood_is_unsafe_and_shown(said: str) -> None:
    with pytest.raises(Unsafe, match=r"^switch sw1: expected JSON from 'bridge -compressvlans -json vlan show', got "):
        carried(said)


def test_removals_come_before_additions_and_runs_are_ranges() -> None:
    difference = SwitchDifference(
        add={PortName("p1"): VlanSet.parse("100-105,107")}, remove={PortName("uplink"): VlanSet.parse("110")}
    )
    assert list(commands(difference)) == [
        "vlan del dev uplink vid 110",
        "vlan add dev p1 vid 100-105",
        "vlan add dev p1 vid 107",
    ]


def untagged(said: str, port: str = "p2") -> tuple[str, tuple[str, ...]]:
    managed = Managed(PORTS, VlanSet.parse("100-199"), (PortName(port),))
    found = carried_from(SWITCH, vlan_entries("switch sw1", f'[{{"ifname":"{port}","vlans":[{said}]}}]'), managed)
    return str(found.ports[PortName(port)]), found.open


WHOLE = '"flags":["PVID","Egress Untagged"]'


@pytest.mark.parametrize(
    ("said", "carried", "is_open"),
    [
        ("", "", False),
        (f'{{"vlan":112,{WHOLE}}}', "112", False),
        (f'{{"vlan":112,{WHOLE}}},{{"vlan":50}}', "112", False),
        (f'{{"vlan":1,{WHOLE}}}', "", True),
        ('{"vlan":112}', "", True),
        ('{"vlan":112,"flags":["PVID"]}', "", True),
        (f'{{"vlan":111,"flags":["Egress Untagged"]}},{{"vlan":112,{WHOLE}}}', "", True),
        (f'{{"vlan":111}},{{"vlan":112,{WHOLE}}}', "", True),
    ],
    ids=["none", "ours", "ours beside theirs", "the default", "tagged", "in only", "another out", "another tagged"],
)
def test_an_access_port_has_one_number_of_ours_whole_or_is_open(said: str, carried: str, is_open: bool) -> None:
    assert untagged(said) == (carried, ("p2",) if is_open else ())


def test_an_access_port_in_somebodys_vlan_is_unsafe() -> None:
    with pytest.raises(Unsafe) as caught:
        untagged(f'{{"vlan":50,{WHOLE}}}')
    assert str(caught.value) == (
        "switch sw1, access port p2: expected one VLAN of ours untagged or none, found 50: "
        "move who uses it to another port, take this one out of the topology, or adopt it "
        "('virtcloud element adopt sw1 p2')"
    )


def test_batches_fit_on_a_terminal_line() -> None:
    lines = [f"vlan add dev p1 vid {number}" for number in range(100, 1100)]
    found = list(parts(lines, 3))
    assert [line for part in found for line in part] == lines
    assert max(len(" ".join(repr(line) for line in part)) for part in found) <= 3600
    assert len(found) == 8


def test_nothing_to_do_is_no_batch() -> None:
    assert list(parts([])) == []


def test_an_answer_without_its_marks_is_unsafe() -> None:
    with pytest.raises(Unsafe, match="expected an answer between marks, got 'logout'"):
        LinuxBridge(SWITCH, Line("logout")).read(Managed(PORTS, VlanSet()))


def test_a_shell_without_the_tool_is_a_refusal() -> None:
    said = "begin-of-answer\nsh: 1: bridge: not found\nend-of-answer:127"
    with pytest.raises(Refused, match="failed: the switch said 'sh: 1: bridge: not found'"):
        LinuxBridge(SWITCH, Line(said)).read(Managed(PORTS, VlanSet()))
    with pytest.raises(Refused, match=r"was refused: the switch said 'sh: 1: bridge: not found \(exit code 127\)'"):
        LinuxBridge(SWITCH, Line(said)).apply(SwitchDifference(add={PortName("p1"): VlanSet([100])}))


def test_each_refused_line_is_named_with_the_switchs_words() -> None:
    said = (
        "begin-of-answer\nRTNETLINK answers: Operation not permitted\nCommand failed -:1\n"
        'Cannot find bridge device "p9"\nCommand failed -:2\nend-of-answer:1'
    )
    difference = SwitchDifference(add={PortName("p1"): VlanSet([100]), PortName("p9"): VlanSet([100])})
    with pytest.raises(Refused) as caught:
        LinuxBridge(SWITCH, Line(said)).apply(difference)
    assert str(caught.value) == (
        "switch sw1: 'vlan add dev p1 vid 100' was refused: the switch said 'RTNETLINK answers: Operation not "
        "permitted'; 'vlan add dev p9 vid 100' was refused: the switch said 'Cannot find bridge device \"p9\"': "
        "look at its ports and at the account's rights"
    )


def test_the_default_vlan_is_reserved() -> None:
    assert str(FACTS.reserved) == "1"
