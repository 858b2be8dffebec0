"""An emulated switch together with its driver, and patterns of commands for which a test can plan faults."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from pydantic import SecretStr

from sbf_service.drivers.contract import DeviceLogin, EdgeDriver, SwitchDriver, SwitchScope
from sbf_service.drivers.edge.command_line_edge import CommandLineEdge
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.command_line_switch import CommandLineSwitch
from sbf_service.drivers.switch.dialect import Commands
from sbf_service.drivers.transport.ssh import SshCommandLine
from support.emulators import EMULATED_PLATFORMS, emulate
from support.emulators.switch_device import EmulatedSwitch
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved, SwitchWanted, compare_switch
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

POOL = VlanSet.parse("100-299")


@dataclass
class SwitchBench:
    """An emulated switch and its driver, with the managed ports ``a`` and ``b`` and the unmanaged port ``other``."""

    switch: EmulatedSwitch
    driver: SwitchDriver
    a: PortName
    b: PortName
    other: str

    @property
    def managed(self) -> SwitchScope:
        return SwitchScope((self.a, self.b), POOL)

    @property
    def names(self) -> tuple[str, str]:
        return self.switch.port_names[0], self.switch.port_names[1]

    def read(self) -> SwitchObserved:
        return self.driver.read(self.managed)

    def converge(self, a: str = "", b: str = "") -> SwitchDifference:
        """Configure VLANs on both managed ports, and save. Return the difference that remains.

        ``a`` and ``b`` list the VLAN IDs on the ports, such as ``100-103``.
        """
        wanted = SwitchWanted(ports={self.a: VlanSet.parse(a), self.b: VlanSet.parse(b)})
        difference = compare_switch(wanted, self.read())
        if difference:
            self.driver.apply(difference)
            self.driver.save()
        return compare_switch(wanted, self.read())

    def carries(self, name: str) -> set[int]:
        return self.switch.carrying().get(name, set()) & POOL


def login_for(switch: EmulatedSwitch, *ports: PortName, read_timeout: float = 5) -> DeviceLogin:
    element = SwitchElement(name=Name("sw1"), ports=ports, platform=switch.platform, address=switch.address)
    password, enable = SecretStr(switch.password), SecretStr(switch.secret)
    return DeviceLogin(element, switch.username, password=password, enable=enable, read_timeout=read_timeout)


def driver_for(switch: EmulatedSwitch, *ports: PortName, read_timeout: float = 5) -> SwitchDriver:
    return SWITCH_PLATFORMS[switch.platform].driver(login_for(switch, *ports, read_timeout=read_timeout))


def set_read_timeout(driver: SwitchDriver | EdgeDriver, seconds: float) -> None:
    """Change the time limit for the answer to each later command. The driver must have an SSH session."""
    object.__setattr__(get_ssh_line(driver)._login, "read_timeout", seconds)


def get_ssh_line(driver: SwitchDriver | EdgeDriver) -> SshCommandLine:
    assert isinstance(driver, CommandLineSwitch | CommandLineEdge)
    line = driver._conversation._line
    assert isinstance(line, SshCommandLine)
    return line


MakeBench = Callable[..., SwitchBench]


def make_bench_in(stack: ExitStack) -> MakeBench:
    """Return a function that creates benches and passes options to the switch. ``stack`` closes the benches."""

    def make(platform: str, *, read_timeout: float = 5, **options: object) -> SwitchBench:
        switch = stack.enter_context(emulate(platform, **options))
        a, b, other = switch.port_names[:3]
        ports = PortName(a.replace(" ", "")), PortName(b.replace(" ", ""))
        driver = driver_for(switch, *ports, read_timeout=read_timeout)
        stack.callback(driver.close)
        return SwitchBench(switch, driver, *ports, other)

    return make


def vlan_line_pattern(template: Commands, vlans: str = ".*") -> str:
    """Return a regular expression for the first command in ``template`` that has a placeholder for VLANs.

    ``vlans`` is the regular expression for these VLANs.
    """
    line = next(line for line in template if "{vlan" in line)
    return "^" + re.sub(r"\\{(vlans?|port)\\}", lambda name: vlans if name[1] != "port" else ".*", re.escape(line))


def short_forms(platform: str) -> tuple[str, str]:
    a, b = (name.replace(" ", "") for name in EMULATED_PLATFORMS[platform].port_names[:2])
    return re.sub(r"^([A-Za-z]{2})[A-Za-z-]*", r"\1", a), b.lower()
