"""Tests of ``site verify``: SBF reads a site's switches between reconciliations."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.switches import FakeDriver, FakeSwitch
from support.sbf_fakes.world import World, make_world

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import DeviceLogin, SwitchCapabilities, SwitchPlatform
from sbf_service.reconcile.on_demand import CableChecker
from sbf_service.reconcile.sessions import Platforms
from virtcloud.model.element import Switch
from virtcloud.model.site import SiteCables
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName

TOPOLOGY = Topology.model_validate(
    {
        "name": "brno-only",
        "sites": [
            {
                "name": "brno",
                "switches": [{"name": f"brno-sw{n}", "platform": "fake", "ports": ["p1", "p2", "up"]} for n in (1, 2)],
                "hosts": [{"name": f"brno-h{n}", "ports": ["eth0"]} for n in (1, 2)],
            }
        ],
        "links": [
            {"a": "brno-h1:eth0", "b": "brno-sw1:p1"},
            {"a": "brno-h2:eth0", "b": "brno-sw2:p1"},
            {"a": "brno-sw1:up", "b": "brno-sw2:up"},
        ],
    }
)


class NeighbourDriver(FakeDriver):
    """A session with a fake switch that has LLDP neighbours."""

    neighbours_of: dict[str, tuple[Neighbour, ...]]

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:
        self.switch.answer("neighbours")
        return self.neighbours_of[self.switch.name]


NEIGHBOURS: dict[str, tuple[Neighbour, ...]] = {
    "brno-sw1": (Neighbour("p1", "aa", "eth0", "brno-h1"), Neighbour("up", "bb", "up", "brno-sw2")),
    "brno-sw2": (Neighbour("p2", "cc", "eth0", "brno-h2"), Neighbour("up", "dd", "up", "brno-sw1")),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    installation = make_world(tmp_path)

    def driver(login: DeviceLogin) -> NeighbourDriver:
        session = NeighbourDriver(installation.switches[login.device.name])
        session.neighbours_of = NEIGHBOURS
        return session

    def platform_of(_switch: Switch) -> SwitchPlatform:
        return SwitchPlatform(SwitchCapabilities(), driver)

    monkeypatch.setattr(
        installation.service.scheduler.worker.sessions,
        "platforms",
        Platforms(platform_of, installation.edges.platform_of),
    )
    installation.furnish(topology=TOPOLOGY)
    yield installation
    installation.close()


def switch(world: World, name: str) -> FakeSwitch:
    return world.switches[name]


def check_cables(world: World, limit_s: float) -> SiteCables:
    service = world.service
    checker = CableChecker(
        service.store, service.scheduler, service.platforms.of_switch, service.device_threads, limit_s
    )
    plan = checker.plan(Name("brno"))
    return plan.compare(*asyncio.run(checker.read_neighbours(plan)))


def test_every_cable_is_listed_and_a_moved_cable_is_named(world: World) -> None:
    answer = ask(world, "POST", "/v1/sites/brno/verify")
    assert answer.status_code == 200
    report = answer.json()
    assert [(cable["a"], cable["state"]) for cable in report["cables"]] == [
        ("brno-h1:eth0", "right"),
        ("brno-h2:eth0", "elsewhere"),
        ("brno-sw1:up", "right"),
    ]
    assert report["cables"][1]["found"] == ["brno-h2:eth0 is seen at brno-sw2:p2"]
    assert report["unread"] == {}
    assert [switch.calls for switch in world.switches.found.values()] == [["neighbours"], ["neighbours"]]


def test_a_silent_switch_is_named_and_other_switches_are_read(world: World) -> None:
    switch(world, "brno-sw1").cut_off = True
    report = ask(world, "POST", "/v1/sites/brno/verify").json()
    assert list(report["unread"]) == ["brno-sw1"]
    assert "does not answer" in report["unread"]["brno-sw1"]
    assert [cable["state"] for cable in report["cables"]] == ["unknown", "elsewhere", "right"]


def test_a_hanging_switch_is_awaited_until_the_limit(world: World) -> None:
    switch(world, "brno-sw2").hangs = Event()
    report = check_cables(world, limit_s=0.3)
    assert report.unread == {"brno-sw2": "switch brno-sw2 has not answered for 0.3 s"}
    assert str(report.cables[0].state) == "right"
    switch(world, "brno-sw2").hangs.set()


def test_a_switch_without_neighbour_driver_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.service.scheduler.worker.sessions, "platforms", world.service.platforms)
    report = ask(world, "POST", "/v1/sites/brno/verify").json()
    assert report["unread"]["brno-sw1"] == "switch brno-sw1: SBF cannot read the neighbours of platform fake"


def test_a_driver_fault_is_reported_and_other_switches_are_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(NEIGHBOURS, "brno-sw2")
    report = ask(world, "POST", "/v1/sites/brno/verify").json()
    assert report["unread"] == {
        "brno-sw2": "switch brno-sw2: fault in the service: KeyError; the service's log has the details"
    }


def test_an_unknown_site_is_a_problem(world: World) -> None:
    assert problem(ask(world, "POST", "/v1/sites/olomouc/verify"))[:2] == (404, "not-found")


def test_a_switch_in_use_by_a_worker_is_not_read(world: World) -> None:
    with world.service.scheduler.exclude_workers(Name("brno-sw1")):
        report = check_cables(world, limit_s=0.2)
    assert list(report.unread) == ["brno-sw1"]
    with world.service.scheduler.exclude_workers(Name("brno-sw1")):
        pass
