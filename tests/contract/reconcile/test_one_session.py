"""Tests of a switch that allows only one session, and that several replicas configure."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.emulators import emulate
from support.emulators.switch_bench import driver_for
from support.emulators.switch_device import EmulatedSwitch as Emulated
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.drivers.contract import DeviceLogin, SwitchCapabilities, SwitchDriver, SwitchPlatform
from sbf_service.reconcile.on_demand import OnDemandReader
from sbf_service.reconcile.sessions import DeviceSessions, Platforms
from sbf_service.reconcile.transactions import StoreWorkerTransactions
from sbf_service.reconcile.worker import ReconcileOutcome, Worker
from virtcloud.model.element import Switch
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName

SWITCH = Name("brno-sw1")
PORTS = ("ethernet1/1/1", "ethernet1/1/2")


def topology(*, keep_session: bool) -> Topology:
    switch = {"name": SWITCH, "platform": "dell_os10", "ports": PORTS, "keep_session": keep_session}
    hosts = [{"name": f"brno-h{n}", "ports": ["eth0"]} for n in (1, 2)]
    links = [{"a": f"brno-h{n}:eth0", "b": f"{SWITCH}:{port}"} for n, port in enumerate(PORTS, start=1)]
    site = {"name": "brno", "switches": [switch], "hosts": hosts}
    return Topology.model_validate({"name": "one-session", "sites": [site], "links": links})


@pytest.fixture
def device() -> Iterator[Emulated]:
    with emulate("dell_os10", sessions=1) as device:
        yield device


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = make_world(tmp_path)
    yield world
    world.close()


@pytest.fixture
def replicas(world: World, device: Emulated) -> Iterator[tuple[Worker, Worker]]:

    def driver(_login: DeviceLogin) -> SwitchDriver:
        return driver_for(device, *map(PortName, PORTS), read_timeout=5)

    def platform_of(_switch: Switch) -> SwitchPlatform:
        return SwitchPlatform(SwitchCapabilities(), driver)

    settings, worker = world.service.settings, world.service.scheduler.worker
    platforms = Platforms(platform_of, world.edges.platform_of)
    transactions = worker.transactions
    assert isinstance(transactions, StoreWorkerTransactions)
    workers = [
        replace(worker, transactions=replace(transactions, holder=name), sessions=DeviceSessions(settings, platforms))
        for name in ("one", "two")
    ]
    yield workers[0], workers[1]
    for worker in workers:
        worker.sessions.end(SWITCH)


def wait_until_free(device: Emulated) -> bool:
    """Wait up to 10 s until the device has detected the end of all sessions. Return whether no session is in use."""
    deadline = time.monotonic() + 10
    while device.in_use() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not device.in_use()


def test_replicas_use_the_only_session_one_after_another(
    world: World, device: Emulated, replicas: tuple[Worker, Worker]
) -> None:
    """Readings for HTTP requests also use the switch's only session."""
    world.furnish(topology=topology(keep_session=False))
    for number, worker in enumerate((*replicas, *replicas), start=1):
        world.put(f"c{number}", spec("brno-h1"))
        assert worker.reconcile(SWITCH) is ReconcileOutcome.CONFIRMED
        assert wait_until_free(device)
        scheduler = replace(world.service.scheduler, worker=replicas[number % 2])
        assert not OnDemandReader(world.service.store, scheduler).difference(SWITCH)
        assert wait_until_free(device)
    assert device.carrying()["ethernet1/1/1"] == {100, 101, 102, 103}


def test_a_permanent_session_excludes_other_replicas(world: World, replicas: tuple[Worker, Worker]) -> None:
    """A switch with ``keep_session`` must allow one session for each replica. This switch allows only one session."""
    world.furnish(topology=topology(keep_session=True))
    world.put("a", spec("brno-h1"))
    assert replicas[0].reconcile(SWITCH) is ReconcileOutcome.CONFIRMED
    world.put("b", spec("brno-h1"))
    assert replicas[1].reconcile(SWITCH) is ReconcileOutcome.FAILED
    assert replicas[0].reconcile(SWITCH) is ReconcileOutcome.CONFIRMED
