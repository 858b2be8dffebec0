from pathlib import Path

import pytest

from sbf_service.drivers.contract import DeviceLogin, SwitchScope
from sbf_service.drivers.registry import find_switch_platform
from sbf_service.drivers.switch.simulated_switch import PLATFORM, SimulatedSwitch, SwitchFolder
from virtcloud.model.element import Switch
from virtcloud.model.errors import BadInput, Unreachable
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

PORT = PortName("p1")
SWITCH = Switch(name=Name("sw1"), ports=(PORT,), platform=PLATFORM)
SCOPE = SwitchScope((PORT,), VlanSet.parse("100-139"), taken=frozenset({PORT}))
ADD = SwitchDifference(create=VlanSet([100]), add={PORT: VlanSet([100])})
REMOVE = SwitchDifference(delete=VlanSet([100]), remove={PORT: VlanSet([100])})


@pytest.fixture
def folder(tmp_path: Path) -> SwitchFolder:
    (tmp_path / "events").mkdir()
    return SwitchFolder(tmp_path, change_s=0)


def driver(folder: SwitchFolder, switch: Switch = SWITCH) -> SimulatedSwitch:
    created = folder.platform_of(switch).driver(DeviceLogin(switch))
    assert isinstance(created, SimulatedSwitch)
    return created


def test_a_production_service_refuses_simulated_switches() -> None:
    with pytest.raises(BadInput, match="switch sw1: platform simulated exists only in 'virtcloud up'"):
        find_switch_platform(SWITCH)


def test_a_simulation_refuses_real_switches(folder: SwitchFolder) -> None:
    with pytest.raises(BadInput, match="switch sw1: expected platform simulated"):
        folder.platform_of(SWITCH.model_copy(update={"platform": "cisco_ios"}))


def test_a_change_is_read_back(folder: SwitchFolder) -> None:
    driver(folder).apply(ADD)
    observed = driver(folder).read(SCOPE)
    assert observed.ports == {PORT: VlanSet([100])}
    assert observed.names == {100: "vc-100", 105: "printers"}
    driver(folder).apply(REMOVE)
    assert driver(folder).read(SCOPE).ports == {PORT: VlanSet()}


def test_a_restart_loses_what_was_not_saved(folder: SwitchFolder) -> None:
    driver(folder).apply(ADD)
    (folder.path / "events" / "sw1.restart").touch()
    assert driver(folder).read(SCOPE).ports == {PORT: VlanSet()}


def test_a_restart_loads_what_was_saved(folder: SwitchFolder) -> None:
    driver(folder).apply(ADD)
    driver(folder).save()
    (folder.path / "events" / "sw1.restart").touch()
    assert driver(folder).read(SCOPE).ports == {PORT: VlanSet([100])}


def test_a_drift_removes_the_vlans_of_a_port_once(folder: SwitchFolder) -> None:
    driver(folder).apply(ADD)
    (folder.path / "events" / "sw1.drift").touch()
    assert driver(folder).read(SCOPE).ports == {PORT: VlanSet()}
    driver(folder).apply(ADD)
    assert driver(folder).read(SCOPE).ports == {PORT: VlanSet([100])}


def test_a_switch_that_is_off_does_not_answer(folder: SwitchFolder) -> None:
    (folder.path / "events" / "sw1.off").touch()
    with pytest.raises(Unreachable, match="virtcloud simulate sw1 on"):
        driver(folder).read(SCOPE)


def test_a_released_port_gets_its_former_use(folder: SwitchFolder) -> None:
    scope = SwitchScope((PORT,), VlanSet.parse("100-139"))
    before = driver(folder).read(scope).untaken[PORT]
    driver(folder).apply(ADD)
    driver(folder).apply(SwitchDifference(put_back={PORT: before}))
    assert driver(folder).read(scope).untaken[PORT] == before
