"""A driver notices that its switch ended the session, over real SSH, without asking."""

import time

from emulators import emulate

from sbf_service.drivers.driver import Login, Managed
from sbf_service.drivers.line import NoticesLoss
from sbf_service.drivers.registry import PLATFORMS
from sbf_service.secret import Secret
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet


def test_a_session_that_the_switch_ended_is_lost_and_one_that_was_never_made_or_is_kept_is_not() -> None:
    with emulate("cisco_ios") as switch:
        port = PortName(switch.port_names[0])
        element = SwitchElement(name=Name("sw1"), ports=(port,), platform="cisco_ios", address=switch.address)
        secrets = {"password": Secret(switch.password), "enable": Secret(switch.secret)}
        driver = PLATFORMS["cisco_ios"].driver(Login(element, switch.username, **secrets))
        assert isinstance(driver, NoticesLoss)
        assert not driver.is_lost()
        driver.read(Managed((port,), VlanSet.parse("100-199")))
        assert not driver.is_lost()
        switch.hang_up()
        ends = time.monotonic() + 10
        while not driver.is_lost():
            assert time.monotonic() < ends
            time.sleep(0.01)
        driver.close()
        assert not driver.is_lost()
