"""Tests that each driver reads LLDP neighbours, on an emulated switch of each platform."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from emulators import EMULATED_PLATFORMS as EMULATED
from emulators import emulate
from emulators.lldp_output import SHOWN, LldpPeer
from emulators.switch_device import EmulatedSwitch
from pydantic import SecretStr

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import DeviceLogin, ReadsNeighbours
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName

HOST = LldpPeer("brno-h1.example.org", "02:00:00:00:00:01", "eth0")
OTHER = LldpPeer("brno-sw2", "Gi1/0/7")
SHORT = ("juniper_junos",)
"""Platforms whose list of neighbours contains no addresses."""
NAMELESS = LldpPeer("", "eth3")


@dataclass
class Bench:
    """An emulated switch and a driver with one session. All tests of a platform share them."""

    switch: EmulatedSwitch
    ports: tuple[PortName, ...]
    driver: ReadsNeighbours

    def heard(self) -> dict[str, Neighbour]:
        """Return the neighbours by the emulator's port names."""
        form = SWITCH_PLATFORMS[self.switch.platform].port
        names = {form(port): name for port, name in zip(self.ports, self.switch.port_names, strict=False)}
        return {names[form(one.local)]: one for one in self.driver.read_neighbours(self.ports)}


@contextmanager
def bench_of(platform: str) -> Iterator[Bench]:
    with emulate(platform) as switch:
        ports = tuple(PortName(port.replace(" ", "")) for port in switch.port_names[:3])
        element = SwitchElement(name=Name("sw1"), ports=ports, platform=platform, address=switch.address)
        secrets = {"password": SecretStr(switch.password), "enable": SecretStr(switch.secret)}
        driver = SWITCH_PLATFORMS[platform].driver(DeviceLogin(element, switch.username, **secrets))
        assert isinstance(driver, ReadsNeighbours)
        yield Bench(switch, ports, driver)
        driver.close()


@pytest.fixture(
    scope="module", params=[name for name in EMULATED if name in SHOWN or (name in DIALECTS and DIALECTS[name].lldp)]
)
def shared(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with bench_of(request.param) as bench:
        yield bench


@pytest.fixture
def bench(shared: Bench) -> Bench:
    """The switch of the platform, without any cable."""
    shared.switch.peers = {}
    return shared


def test_neighbours_are_read_by_port_even_after_a_moved_cable(bench: Bench) -> None:
    a, b, c = bench.switch.port_names[:3]
    bench.switch.peers = {a: HOST, b: OTHER}
    found = bench.heard()
    assert list(found) == [a, b]
    assert (found[a].name, found[a].port, found[a].port_description) == (HOST.name, HOST.port, "eth0")
    assert (found[b].name, found[b].port, found[b].port_description) == ("brno-sw2", "Gi1/0/7", "")
    assert found[b].address == ("" if bench.switch.platform in SHORT else "192.0.2.7")
    bench.switch.peers = {c: NAMELESS}
    found = bench.heard()
    assert [(port, one.name, one.port) for port, one in found.items()] == [(c, "", "eth3")]


def test_a_switch_without_neighbours_reports_none(bench: Bench) -> None:
    assert bench.heard() == {}


def test_an_unknown_answer_never_counts_as_no_neighbours(bench: Bench) -> None:
    bench.switch.fail("say", "lldp", text="LLDP agent is not started on this system")
    with pytest.raises(Unsafe, match="LLDP agent is not started"):
        bench.heard()


def test_the_message_of_a_switch_without_lldp_is_quoted() -> None:
    with bench_of("cisco_ios") as bench:
        bench.switch.fail("say", "lldp", text="% LLDP is not enabled")
        with pytest.raises(Refused, match="% LLDP is not enabled"):
            bench.heard()
