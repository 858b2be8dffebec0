"""Tests that a driver detects, without sending a command, that the device has ended the session."""

import time

import pytest
from pydantic import SecretStr
from support.emulators import emulate

from sbf_service.drivers.contract import Backbone, DeviceLogin, SwitchScope
from sbf_service.drivers.edge.command_line_edge import CommandLineEdge
from sbf_service.drivers.edge.dialects import EDGE_DIALECTS
from sbf_service.drivers.edge.linux_edge import LinuxEdge
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.candidate_switch import CandidateSwitch
from sbf_service.drivers.switch.candidates import CANDIDATE_DIALECTS
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialects import DIALECTS
from sbf_service.drivers.switch.linux_bridge import LinuxBridge
from sbf_service.drivers.switch.openvswitch import OpenVSwitch
from sbf_service.drivers.transport.device_session import DetectsSessionLoss
from sbf_service.drivers.transport.netconf import JunosSession
from virtcloud.model.element import Edge
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet


def test_only_a_session_ended_by_the_switch_counts_as_lost() -> None:
    with emulate("cisco_ios") as switch:
        port = PortName(switch.port_names[0])
        element = SwitchElement(name=Name("sw1"), ports=(port,), platform="cisco_ios", address=switch.address)
        password, enable = SecretStr(switch.password), SecretStr(switch.secret)
        login = DeviceLogin(element, switch.username, password=password, enable=enable)
        driver = SWITCH_PLATFORMS["cisco_ios"].driver(login)
        assert isinstance(driver, DetectsSessionLoss)
        assert not driver.is_lost()
        driver.read(SwitchScope((port,), VlanSet.parse("100-199")))
        assert not driver.is_lost()
        switch.hang_up()
        deadline = time.monotonic() + 10
        while not driver.is_lost():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        driver.close()
        assert not driver.is_lost()


EDGE = Edge(name=Name("pe1"), ports=(PortName("ac"),), platform="linux")


class LostLine:
    """A command line whose device has ended the session."""

    prompt = "^# "

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        raise AssertionError("expected no command: a driver must detect a lost session without a command")

    def is_lost(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing."""


class LostSession:
    """A NAPALM session that the device has ended."""

    def is_alive(self) -> dict[str, bool]:
        return {"is_alive": False}


def make_lost_napalm_session() -> JunosSession:
    session = JunosSession(
        DeviceLogin(SwitchElement(name=Name("sw1"), ports=(PortName("p1"),), platform="juniper_junos"))
    )
    session._driver = LostSession()
    return session


@pytest.mark.parametrize(
    "driver",
    [
        CommandLineSwitch(Name("sw1"), DIALECTS["cisco_ios"], LostLine()),
        CommandLineEdge(EDGE, EDGE_DIALECTS["cisco_iosxe"], Backbone((), {}), LostLine()),
        LinuxBridge(Name("sw1"), LostLine()),
        OpenVSwitch(Name("sw1"), LostLine()),
        LinuxEdge(EDGE, Backbone((), {}), LostLine()),
        CandidateSwitch(Name("sw1"), CANDIDATE_DIALECTS["juniper_junos"], make_lost_napalm_session()),
    ],
    ids=lambda driver: type(driver).__name__,
)
def test_every_kind_of_driver_detects_a_lost_session(driver: object) -> None:
    assert isinstance(driver, DetectsSessionLoss)
    assert driver.is_lost()
