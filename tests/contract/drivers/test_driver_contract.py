"""The driver contract: tests that every driver passes.

For a new driver, add to ``DEVICES`` a simulated or real ``Device`` that tests can inspect and disconnect.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import pytest
from support.programs.ovs_daemons import Daemons
from support.sbf_fakes.linux_switch import LinuxLine, LinuxSwitch
from support.sbf_fakes.shells import LocalShell
from support.sbf_fakes.switches import FakeDriver, FakeSwitch

from sbf_service.domain.ownership import mark_foreign_vlans
from sbf_service.drivers.contract import SwitchDriver, SwitchScope
from sbf_service.drivers.switch.linux_bridge import LinuxBridge
from sbf_service.drivers.switch.openvswitch import OpenVSwitch
from virtcloud.model.element import Switch
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

SWITCH = Switch.model_validate({"name": "sw1", "platform": "any", "address": "192.0.2.1", "ports": ["p1", "p2"]})
MANAGED = SwitchScope(SWITCH.ports, VlanSet.parse("100-199"))
P2_UNTAGGED = replace(MANAGED, access=(PortName("p2"),))


class Device(Protocol):
    """A device with the managed ports p1 and p2 and the unmanaged port p3."""

    driver: SwitchDriver

    def tag(self, port: str, *vlans: int) -> None: ...
    def reset(self, port: str) -> None: ...
    def carried(self, port: str) -> str: ...
    def untagged(self, port: str) -> str: ...
    def cut_off(self, *, off: bool) -> None: ...
    def refuse(self, message: str) -> None: ...
    def answer_nonsense(self) -> None: ...


@dataclass
class InMemory:
    """The fake switch of the reconciler's tests."""

    switch: FakeSwitch = field(default_factory=lambda: FakeSwitch("sw1"))

    def __post_init__(self) -> None:
        self.driver: SwitchDriver = FakeDriver(self.switch)

    def tag(self, port: str, *vlans: int) -> None:
        self.switch.ports.setdefault(port, set()).update(vlans)

    def carried(self, port: str) -> str:
        return str(VlanSet(self.switch.ports.get(port, ())))

    def reset(self, port: str) -> None:
        self.switch.ports[port] = {1}

    def untagged(self, port: str) -> str:
        return str(VlanSet(self.switch.ports.get(port, ()))) if port in self.switch.access else ""

    def cut_off(self, *, off: bool) -> None:
        self.switch.cut_off = off

    def refuse(self, message: str) -> None:
        assert message == "% Invalid input"
        self.switch.refuses = True

    def answer_nonsense(self) -> None:
        self.switch.unsafe = True


@dataclass
class LinuxBridgeInMemory:
    """The Linux bridge driver on the command line of a switch that is simulated in memory."""

    switch: LinuxSwitch = field(default_factory=lambda: LinuxSwitch({"p1": {}, "p2": {}, "p3": {}}))

    def __post_init__(self) -> None:
        self.driver: SwitchDriver = LinuxBridge(Name("sw1"), LinuxLine(self.switch))

    def tag(self, port: str, *vlans: int) -> None:
        self.switch.ports[port] |= {vlan: [] for vlan in vlans}

    def carried(self, port: str) -> str:
        return str(VlanSet(self.switch.ports[port]))

    def reset(self, port: str) -> None:
        self.switch.ports[port] = {1: ["PVID", "Egress Untagged"]}

    def untagged(self, port: str) -> str:
        return str(VlanSet(n for n, flags in self.switch.ports[port].items() if flags == ["PVID", "Egress Untagged"]))

    def cut_off(self, *, off: bool) -> None:
        self.switch.cut_off = off

    def refuse(self, message: str) -> None:
        self.switch.refuses = message

    def answer_nonsense(self) -> None:
        self.switch.says = "Dump terminated\n"


@dataclass
class RealOpenVSwitch:
    """The Open vSwitch driver on a real switch on this computer."""

    daemons: Daemons

    def __post_init__(self) -> None:
        self.daemons.reset()
        self.line = LocalShell(self.daemons.environment)
        self.driver: SwitchDriver = OpenVSwitch(Name("sw1"), self.line)

    def tag(self, port: str, *vlans: int) -> None:
        self.daemons.alter(port, f"trunks={','.join(map(str, vlans))}")

    def reset(self, port: str) -> None:
        self.daemons.alter(port, "trunks=[]")

    def carried(self, port: str) -> str:
        return self.untagged(port) or str(VlanSet(self.daemons.trunks(port) - {4095}))

    def untagged(self, port: str) -> str:
        tag = self.daemons.get(port, "tag")
        return str(tag or "")

    def cut_off(self, *, off: bool) -> None:
        self.line.cut_off = off

    def refuse(self, message: str) -> None:
        self.line.before = f"alias ovs-vsctl='echo \"{message}\"; false'"

    def answer_nonsense(self) -> None:
        self.line.before = "alias ovs-vsctl='echo welcome'"


DEVICES: dict[str, Callable[[], Device]] = {"in memory": InMemory, "linux_bridge": LinuxBridgeInMemory}


@pytest.fixture(params=[*DEVICES, pytest.param("openvswitch", marks=pytest.mark.openvswitch)])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "openvswitch":
        return RealOpenVSwitch(request.getfixturevalue("open_vswitch"))
    return DEVICES[request.param]()


def ports(**vlans: str) -> dict[PortName, VlanSet]:
    return {PortName(port): VlanSet.parse(text) for port, text in vlans.items()}


def read(device: Device) -> dict[str, str]:
    return {port: str(vlans) for port, vlans in device.driver.read(MANAGED).ports.items()}


def test_the_vlans_of_an_unmanaged_port_are_read(device: Device) -> None:
    device.tag("p3", 150, 300)
    assert device.driver.read(MANAGED).elsewhere == {PortName("p3"): VlanSet([150])}


def test_a_vlan_of_an_unmanaged_port_is_not_used(device: Device) -> None:
    device.tag("p3", 150)
    carried = mark_foreign_vlans(device.driver.read(MANAGED), VlanSet())
    wanted = SwitchWanted(ports=ports(p1="150-151", p2=""))
    device.driver.apply(compare_switch(wanted, carried))
    assert (device.carried("p1"), device.carried("p3")) == ("151", "150")


def test_every_managed_port_is_read_even_without_vlans(device: Device) -> None:
    assert read(device) == {"p1": "", "p2": ""}


def test_an_added_vlan_is_read_back(device: Device) -> None:
    device.driver.apply(SwitchDifference(create=VlanSet.parse("100-105,107"), add=ports(p1="100-105,107", p2="103")))
    assert read(device) == {"p1": "100-105,107", "p2": "103"}
    assert str(device.driver.read(MANAGED).vlans) == "100-105,107"


def test_a_removed_vlan_is_not_read_back(device: Device) -> None:
    device.tag("p1", 100, 101, 102)
    device.driver.apply(SwitchDifference(delete=VlanSet([101]), remove=ports(p1="101")))
    assert read(device) == {"p1": "100,102", "p2": ""}


def test_a_change_may_be_repeated(device: Device) -> None:
    device.tag("p1", 150)
    difference = SwitchDifference(create=VlanSet([100]), add=ports(p1="100"), remove=ports(p1="150", p2="151"))
    device.driver.apply(difference)
    device.driver.apply(difference)
    assert read(device) == {"p1": "100", "p2": ""}


def test_foreign_vlans_and_ports_are_not_shown_or_changed(device: Device) -> None:
    device.tag("p1", 50, 100)
    device.tag("p3", 100)
    assert read(device) == {"p1": "100", "p2": ""}
    device.driver.apply(SwitchDifference(delete=VlanSet([100]), remove=ports(p1="100")))
    assert (device.carried("p1"), device.carried("p3")) == ("50", "100")


def test_a_change_of_hundreds_of_vlans_is_applied(device: Device) -> None:
    odd = VlanSet(range(101, 1500, 2))
    device.driver.apply(SwitchDifference(create=odd, add={PortName("p1"): odd, PortName("p2"): odd}))
    assert (device.carried("p1"), device.carried("p2")) == (str(odd), str(odd))


def test_a_disconnected_device_is_unreachable_by_name(device: Device) -> None:
    device.cut_off(off=True)
    with pytest.raises(Unreachable, match=r"switch sw1 .*does not answer: .*; SBF tries again"):
        read(device)


def test_a_reconnected_device_answers_in_a_new_session(device: Device) -> None:
    read(device)
    device.cut_off(off=True)
    with pytest.raises(Unreachable):
        device.driver.apply(SwitchDifference(create=VlanSet([100]), add=ports(p1="100")))
    device.cut_off(off=False)
    assert read(device) == {"p1": "", "p2": ""}


def test_a_refusal_contains_the_devices_message(device: Device) -> None:
    device.refuse("% Invalid input")
    with pytest.raises(Refused, match=r"switch sw1: .*the switch (answered|printed) .*% Invalid input"):
        device.driver.apply(SwitchDifference(create=VlanSet([100]), add=ports(p1="100")))


def test_an_unknown_answer_is_unsafe(device: Device) -> None:
    device.answer_nonsense()
    with pytest.raises(Unsafe, match="switch sw1: expected "):
        read(device)


def test_closing_is_idempotent_and_a_session_can_be_reopened(device: Device) -> None:
    device.driver.close()
    device.driver.close()
    assert read(device) == {"p1": "", "p2": ""}


def converge(device: Device, **wanted: str) -> SwitchDifference:
    target = SwitchWanted(
        ports={PortName("p1"): VlanSet(), PortName("p2"): VlanSet()} | ports(**wanted), access=("p2",)
    )
    difference = compare_switch(target, device.driver.read(P2_UNTAGGED))
    device.driver.apply(difference)
    assert not compare_switch(target, device.driver.read(P2_UNTAGGED))
    return difference


def test_an_access_port_gets_and_loses_its_vlan(device: Device) -> None:
    converge(device, p1="100-101", p2="100")
    assert (device.carried("p1"), device.untagged("p2")) == ("100-101", "100")
    converge(device, p1="100-101")
    assert (device.carried("p1"), device.carried("p2")) == ("100-101", "")


def test_an_access_port_moves_from_one_vlan_to_another(device: Device) -> None:
    converge(device, p2="100")
    converge(device, p2="101")
    assert (device.carried("p2"), device.untagged("p2")) == ("101", "101")


def test_an_access_port_without_a_cluster_leaves_the_default_vlan(device: Device) -> None:
    device.reset("p2")
    change = converge(device).model_copy(update={"take": {}})
    assert change == SwitchDifference(close=("p2",), access=("p2",))
    assert device.carried("p2") == ""


def test_a_former_managed_trunk_becomes_an_access_port(device: Device) -> None:
    device.tag("p2", 100, 101)
    converge(device, p2="100")
    assert (device.carried("p2"), device.untagged("p2")) == ("100", "100")


def test_a_change_of_an_access_port_may_be_repeated(device: Device) -> None:
    device.driver.apply(converge(device, p2="100"))
    assert device.untagged("p2") == "100"
