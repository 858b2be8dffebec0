"""An emulated switch and its driver, as the contract tests want them."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from emulators import emulate
from emulators.switch import Switch
from sbf_service.drivers.driver import Driver, Login, Managed
from sbf_service.drivers.registry import PLATFORMS
from sbf_service.secret import Secret
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchCarried, SwitchDifference, SwitchWanted, switch_difference

POOL = VlanSet.parse("100-299")


@dataclass
class Bench:
    """An emulated switch with two managed ports, ``a`` and ``b``, and one that is not, and its driver."""

    switch: Switch
    driver: Driver
    a: PortName
    b: PortName
    other: str

    @property
    def managed(self) -> Managed:
        return Managed((self.a, self.b), POOL)

    @property
    def names(self) -> tuple[str, str]:
        """The managed ports as the emulator calls them."""
        return self.switch.port_names[0], self.switch.port_names[1]

    def read(self) -> SwitchCarried:
        return self.driver.read(self.managed)

    def converge(self, a: str = "", b: str = "") -> SwitchDifference:
        """Make ports carry these numbers and save; give what is left to do after reading back."""
        wanted = SwitchWanted(ports={self.a: VlanSet.parse(a), self.b: VlanSet.parse(b)})
        difference = switch_difference(wanted, self.read())
        if difference:
            self.driver.apply(difference)
            self.driver.save()
        return switch_difference(wanted, self.read())

    def carries(self, name: str) -> set[int]:
        """Say what of ours the switch itself says is on a port."""
        return self.switch.carrying().get(name, set()) & POOL


def login_for(switch: Switch, *ports: PortName, read_timeout: float = 5) -> Login:
    element = SwitchElement(name=Name("sw1"), ports=ports, platform=switch.platform, address=switch.address)
    secrets = {"password": Secret(switch.password), "enable": Secret(switch.secret)}
    return Login(element, switch.username, read_timeout=read_timeout, **secrets)


def driver_for(switch: Switch, *ports: PortName, read_timeout: float = 5) -> Driver:
    return PLATFORMS[switch.platform].driver(login_for(switch, *ports, read_timeout=read_timeout))


MakeBench = Callable[..., Bench]


def make_bench_in(stack: ExitStack) -> MakeBench:
    """Give what makes benches that last as long as ``stack``; options are those of the emulated switch."""

    def make(platform: str, *, read_timeout: float = 5, **options: object) -> Bench:
        switch = stack.enter_context(emulate(platform, **options))
        a, b, other = switch.port_names[:3]
        ports = PortName(a.replace(" ", "")), PortName(b.replace(" ", ""))
        driver = driver_for(switch, *ports, read_timeout=read_timeout)
        stack.callback(driver.close)
        return Bench(switch, driver, *ports, other)

    return make
