"""Linux bridges: which ports are in other use, and how each is put back as it was."""

import pytest
from sbf_fakes.linux import LinuxLine, LinuxSwitch

from sbf_service.drivers.driver import Managed
from sbf_service.drivers.linux_bridge import LinuxBridge
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted, switch_difference

P1 = PortName("p1")
POOL = VlanSet.parse("100-199")
PVID = ["PVID", "Egress Untagged"]
USES: dict[str, dict[int, list[str]]] = {
    "VLAN 20 untagged": {20: PVID},
    "tagged VLANs": {1: PVID, 20: [], 21: [], 22: []},
    "a native VLAN beside tagged ones": {20: PVID, 30: []},
}


def made(vlans: dict[int, list[str]]) -> tuple[LinuxSwitch, LinuxBridge]:
    switch = LinuxSwitch({"p1": dict(vlans)})
    return switch, LinuxBridge(Name("sw1"), LinuxLine(switch))


@pytest.mark.parametrize("vlans", [{}, {1: PVID}, {112: []}], ids=["none", "the default", "SBF's"])
def test_a_port_without_others_vlans_is_in_no_other_use(vlans: dict[int, list[str]]) -> None:
    _, driver = made(vlans)
    assert driver.read(Managed((P1,), POOL)).in_use == ()


@pytest.mark.parametrize("use", USES)
def test_a_port_with_others_vlans_is_in_other_use(use: str) -> None:
    _, driver = made(USES[use])
    assert driver.read(Managed((P1,), POOL)).in_use == (P1,)


@pytest.mark.parametrize("access", [False, True], ids=["trunk", "access port"])
@pytest.mark.parametrize("use", [*USES, "the default"])
def test_a_port_is_put_back_exactly(use: str, access: bool) -> None:
    before = USES.get(use, {1: PVID})
    switch, driver = made(before)
    on_access = (P1,) if access else ()
    agreed = Managed((P1,), POOL, access=on_access, adopted={P1: driver.read(Managed((P1,), POOL)).untaken[P1]})
    for vlans in ("112", ""):
        wanted = SwitchWanted(ports={P1: VlanSet.parse(vlans)}, access=on_access)
        driver.apply(switch_difference(wanted, driver.read(agreed)))
    returned = Managed((), POOL, returned=agreed.adopted)
    driver.apply(switch_difference(SwitchWanted(ports={P1: VlanSet()}), driver.read(returned)))
    assert switch.ports["p1"] == before


def test_a_port_that_was_set_down_is_seen() -> None:
    switch, driver = made({112: []})
    switch.down = {"p1"}
    assert driver.read(Managed((P1,), POOL)).down == (P1,)
