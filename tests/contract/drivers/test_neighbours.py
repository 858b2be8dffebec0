"""Tests of reading LLDP neighbours, with the driver and an emulated switch of each platform."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from pydantic import SecretStr
from support.emulators import EMULATED_PLATFORMS as EMULATED
from support.emulators import emulate
from support.emulators.lldp_output import LLDP_OUTPUT, LldpPeer
from support.emulators.switch_device import EmulatedSwitch

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import DeviceLogin, ReadsNeighbours
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.switch.dialects import DIALECTS
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName

HOST = LldpPeer("brno-h1.example.org", "02:00:00:00:00:01", "eth0")
OTHER = LldpPeer("brno-sw2", "Gi1/0/7")
WITHOUT_ADDRESSES = ("juniper_junos",)
"""Platforms whose lists of neighbours contain no addresses."""
NAMELESS = LldpPeer("", "eth3")


@dataclass
class Bench:
    """An emulated switch and its driver with one session, shared by all tests of a platform."""

    switch: EmulatedSwitch
    ports: tuple[PortName, ...]
    driver: ReadsNeighbours

    def read_neighbours(self) -> dict[str, Neighbour]:
        form = SWITCH_PLATFORMS[self.switch.platform].port
        names = {form(port): name for port, name in zip(self.ports, self.switch.port_names, strict=False)}
        return {names[form(peer.local)]: peer for peer in self.driver.read_neighbours(self.ports)}


@contextmanager
def open_bench(platform: str) -> Iterator[Bench]:
    with emulate(platform) as switch:
        ports = tuple(PortName(port.replace(" ", "")) for port in switch.port_names[:3])
        element = SwitchElement(name=Name("sw1"), ports=ports, platform=platform, address=switch.address)
        password, enable = SecretStr(switch.password), SecretStr(switch.secret)
        login = DeviceLogin(element, switch.username, password=password, enable=enable)
        driver = SWITCH_PLATFORMS[platform].driver(login)
        assert isinstance(driver, ReadsNeighbours)
        yield Bench(switch, ports, driver)
        driver.close()


@pytest.fixture(
    scope="module",
    params=[name for name in EMULATED if name in LLDP_OUTPUT or (name in DIALECTS and DIALECTS[name].lldp)],
)
def shared(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with open_bench(request.param) as bench:
        yield bench


@pytest.fixture
def bench(shared: Bench) -> Bench:
    shared.switch.peers = {}
    return shared


def test_neighbours_are_read_again_after_a_cable_was_moved(bench: Bench) -> None:
    a, b, c = bench.switch.port_names[:3]
    bench.switch.peers = {a: HOST, b: OTHER}
    neighbours = bench.read_neighbours()
    assert list(neighbours) == [a, b]
    assert (neighbours[a].name, neighbours[a].port, neighbours[a].port_description) == (HOST.name, HOST.port, "eth0")
    assert (neighbours[b].name, neighbours[b].port, neighbours[b].port_description) == ("brno-sw2", "Gi1/0/7", "")
    assert neighbours[b].address == ("" if bench.switch.platform in WITHOUT_ADDRESSES else "192.0.2.7")
    bench.switch.peers = {c: NAMELESS}
    neighbours = bench.read_neighbours()
    assert [(port, peer.name, peer.port) for port, peer in neighbours.items()] == [(c, "", "eth3")]


def test_a_switch_without_neighbours_reports_none(bench: Bench) -> None:
    assert bench.read_neighbours() == {}


def test_an_unknown_answer_about_neighbours_is_unsafe(bench: Bench) -> None:
    bench.switch.fail("print", "lldp", text="LLDP agent is not started on this system")
    with pytest.raises(Unsafe, match="LLDP agent is not started"):
        bench.read_neighbours()


def test_the_message_of_a_switch_without_lldp_is_quoted() -> None:
    with open_bench("cisco_ios") as bench:
        bench.switch.fail("print", "lldp", text="% LLDP is not enabled")
        with pytest.raises(Refused, match="% LLDP is not enabled"):
            bench.read_neighbours()
