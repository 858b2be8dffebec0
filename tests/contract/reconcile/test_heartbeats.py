"""Tests of lease renewal during a conversation. A conversation ends before another replica can lease the element."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import paramiko
import pytest
from emulators import emulate
from emulators.switch_device import EmulatedSwitch
from pydantic import SecretStr
from sbf_fakes.world import World, make_world, spec
from sqlalchemy import select

from sbf_service.bootstrap import SbfService, build_service
from sbf_service.drivers.contract import DeviceLogin, SwitchDriver, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.transport.device_session import CancelScope, ConversationCancelledError
from sbf_service.reconcile.heartbeats import LEASE_LOST, HeldLease, LeaseHeartbeats, compute_deadline
from sbf_service.reconcile.worker import ReconcileOutcome
from sbf_service.settings import ServiceSettings
from sbf_service.store.cluster_creation import put_cluster
from sbf_service.store.elements import make_element_view
from sbf_service.store.leases import acquire_lease, release_lease, renew_lease
from sbf_service.store.pools import put_pool
from sbf_service.store.tables import AuditRow
from sbf_service.store.topology import put_topology
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.errors import DatabaseUnavailable, Unreachable
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.views import Pool
from virtcloud.model.vlans import VlanSet

SW1 = Name("brno-sw1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    made.furnish()
    made.clock.stands = False
    yield made
    made.close()


def test_a_conversation_may_use_two_thirds_of_its_lease() -> None:
    held = HeldLease(SW1, 1, began=100.0, kept=150.0)
    assert compute_deadline(held, 30, 300) == (
        170.0,
        "its lease could not be renewed in time: the conversation was ended",
    )
    assert compute_deadline(held, 30, 60) == (160.0, "the conversation was ended after 60 s")


def test_a_lease_is_renewed_while_a_conversation_lasts(world: World) -> None:
    """The lease lasts 1 s and the device answers after 2 s. Another replica cannot lease the element meanwhile."""
    slow = restarted(world, worker_lease=1)
    release = world.switches[SW1].hangs = Event()
    outcomes: list[ReconcileOutcome] = []
    working = Thread(target=lambda: outcomes.append(slow.scheduler.worker.reconcile(SW1)))
    working.start()
    time.sleep(2)
    with world.store.change_row() as unit:
        assert acquire_lease(unit, SW1, "another", world.service.settings.timing.lease) is None
    release.set()
    working.join(10)
    assert outcomes == [ReconcileOutcome.CONFIRMED]
    slow.store.close()


def test_a_released_lease_is_not_renewed(world: World) -> None:
    length = world.service.settings.timing.lease
    with world.store.change_row() as unit:
        fence = acquire_lease(unit, SW1, "one", length)
        release_lease(unit, SW1, fence)
        assert not renew_lease(unit, SW1, fence, length)
        assert acquire_lease(unit, SW1, "two", length) == 2


def test_the_threads_end_with_the_last_conversation(world: World) -> None:
    world.converge(SW1)
    until(lambda: not [one.name for one in threading.enumerate() if one.name.startswith("leases-")])


@dataclass
class Kept:
    """The database's answers to renewals of a lease, and a clock."""

    answers: list[bool | None] = field(default_factory=list)
    now: float = 100.0

    def keep(self, _name: Name, _fence: int) -> bool:
        answer = self.answers.pop(0)
        if answer is None:
            raise DatabaseUnavailable("away")
        return answer


@dataclass
class Watched:
    """Records the deadlines of conversations and the reasons why conversations were disconnected."""

    limits: list[float] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)

    def set_deadline(self, _name: Name, until: float, _why: str) -> None:
        self.limits.append(until)

    def clear_deadline(self, _name: Name) -> None:
        pass

    def disconnect(self, _name: Name, why: str) -> None:
        self.cuts.append(why)


@contextmanager
def held(kept: Kept) -> Iterator[tuple[LeaseHeartbeats, Watched]]:
    """Hold an element with a lease of 30 s and a conversation timeout of 60 s.

    No thread is started: the test itself calls `renew_all` and `end_overdue`.
    """
    watched = Watched()
    timing = ServiceSettings.model_validate({"timing": {"worker_lease": 30, "conversation_timeout": 60}}).timing
    beats = LeaseHeartbeats(kept.keep, watched, timing, lambda: kept.now)
    beats._start = lambda: None
    with beats.hold(SW1, lambda: 7):
        yield beats, watched


def test_each_renewal_lets_the_conversation_go_on_until_its_deadline() -> None:
    kept = Kept([True, True, True])
    with held(kept) as (beats, watched):
        for _ in range(3):
            kept.now += 15
            beats.renew_all()
            beats.end_overdue()
    assert (watched.limits, watched.cuts) == ([120.0, 135.0, 150.0, 160.0], [])


def test_a_conversation_ends_at_its_deadline_whatever_is_renewed() -> None:
    kept = Kept([True] * 6)
    with held(kept) as (beats, watched):
        for _ in range(6):
            kept.now += 10
            beats.renew_all()
            beats.end_overdue()
    assert watched.cuts == ["the conversation was ended after 60 s"]


def test_a_conversation_ends_before_an_unrenewed_lease() -> None:
    kept = Kept([None, None])
    with held(kept) as (beats, watched):
        for seconds in (10, 9.9, 0.1):
            kept.now += seconds
            beats.renew_all() if kept.answers else None
            beats.end_overdue()
    assert watched.cuts == ["its lease could not be renewed in time: the conversation was ended"]


def test_a_conversation_ends_when_another_replica_has_the_lease() -> None:
    with held(Kept([False])) as (beats, watched):
        beats.renew_all()
    assert watched.cuts == [LEASE_LOST]


def test_no_bytes_are_sent_after_the_deadline() -> None:
    """The check compares the clock and needs no thread.

    The check therefore also works in a process that was suspended.
    """
    now = [0.0]
    wire = CancelScope(lambda: now[0])
    wire.allow(10, "over")
    wire.check()
    now[0] = 10
    with pytest.raises(ConversationCancelledError, match="over"):
        wire.check()


def test_a_disconnected_session_ends_later_connections() -> None:
    wire, ended = CancelScope(), []
    wire.cancel("cut")
    wire.attach(lambda: ended.append(1))
    wire.allow(1e12, "")
    assert (ended, wire.remaining, wire.reason) == ([1], 0, "cut")


@contextmanager
def dripping(banner: bytes) -> Iterator[str]:
    """Run a device that sends ``banner`` and then one byte every 50 ms without end. Yield its address."""
    ended = Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            try:
                connection.sendall(banner)
                while not ended.wait(0.05):
                    connection.sendall(b".")
            except OSError:
                return

    def listen(server: socket.socket) -> None:
        while not ended.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=listen, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)


def test_a_login_that_drips_ends_at_the_deadline() -> None:
    with dripping(b"") as address:
        element = SwitchElement(name=SW1, ports=(PortName("p1"),), platform="cisco_ios", address=address)
        driver, wire = driver_of(element)
        Thread(
            target=lambda: (time.sleep(0.5), wire.cancel("the conversation was ended after 0.5 s")), daemon=True
        ).start()
        began = time.monotonic()
        with pytest.raises(
            Unreachable, match=r"brno-sw1 .*: the conversation was ended after 0\.5 s; it is tried again"
        ):
            driver.read(SwitchScope((PortName("p1"),), VlanSet.parse("100-199")))
        assert time.monotonic() - began < 5


def driver_of(element: SwitchElement, **secrets: SecretStr) -> tuple[SwitchDriver, CancelScope]:
    login = DeviceLogin(element, "admin", read_timeout=30, connect_timeout=30, **secrets)
    return SWITCH_PLATFORMS[element.platform].driver(login), login.cancel_scope


@dataclass
class Pair:
    """Two replicas on one database, and an emulated switch that both replicas use over SSH."""

    device: EmulatedSwitch
    services: tuple[SbfService, SbfService]

    def put(self, key: str) -> None:
        store = self.services[0].store
        put_cluster(store, key, ClusterRequest(spec=spec("brno-h1")), self.services[0].reserved, "alice")

    def trouble(self) -> str:
        with self.services[0].store.read() as unit:
            return make_element_view(unit, SW1).trouble or ""


@contextmanager
def pair(folder: Path, **timing: float) -> Iterator[Pair]:
    with emulate("cisco_ios") as device:
        for name, secret in (("password", device.password), ("enable", device.secret)):
            (folder / name).write_text(secret)
        credential = {"username": device.username} | {
            name: {"file": str(folder / name)} for name in ("password", "enable")
        }
        settings = {"database": f"sqlite:///{folder}/sbf.db", "credentials": {"lab": credential}, "timing": timing}
        one, two = (
            build_service(ServiceSettings.model_validate(settings | {"replica": name})) for name in ("one", "two")
        )
        one.prepare()
        with one.store.change() as unit:
            put_topology(unit, site_of(device))
            put_pool(unit, "brno", Pool(vlans=VlanSet.parse("100-139")), one.reserved)
        yield Pair(device, (one, two))
        for service in (one, two):
            service.scheduler.worker.sessions.end(SW1)
            service.store.close()


def site_of(device: EmulatedSwitch) -> Topology:
    ports = device.port_names[:2]
    switch = {"name": SW1, "platform": "cisco_ios", "address": device.address, "credential": "lab", "ports": ports}
    site = {"name": "brno", "switches": [switch], "hosts": [{"name": "brno-h1", "ports": ["eth0"]}]}
    links = [{"a": "brno-h1:eth0", "b": f"{SW1}:{ports[0]}"}]
    return Topology.model_validate({"name": "one", "sites": [site], "links": links})


def test_an_answer_that_drips_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch answers the first read. It answers the second read with one byte every 50 ms, without end."""
    with pair(tmp_path, conversation_timeout=2) as replicas:
        worker = replicas.services[0].scheduler.worker
        assert worker.reconcile(SW1) is ReconcileOutcome.CONFIRMED

        def drip(_channel: paramiko.Channel, _size: int) -> bytes:
            time.sleep(0.05)
            return b"."

        with monkeypatch.context() as patched:
            patched.setattr(paramiko.Channel, "recv", drip)
            patched.setattr(paramiko.Channel, "recv_ready", lambda _channel: False)
            began = time.monotonic()
            assert worker.reconcile(SW1) is ReconcileOutcome.FAILED
            assert 1.9 < time.monotonic() - began < 5
        assert "the conversation was ended after 2 s; it is tried again" in replicas.trouble()
        assert worker.reconcile(SW1) is ReconcileOutcome.CONFIRMED


def test_a_long_conversation_excludes_other_replicas(tmp_path: Path) -> None:
    with pair(tmp_path, worker_lease=1) as replicas:
        one, two = (service.scheduler.worker for service in replicas.services)
        assert one.reconcile(SW1) is ReconcileOutcome.CONFIRMED
        replicas.put("demo")
        replicas.device.slowness = 0.4
        began, outcomes = time.monotonic(), []
        working = Thread(target=lambda: outcomes.append(one.reconcile(SW1)))
        working.start()
        time.sleep(0.2)
        others = set()
        while working.is_alive():
            outcome = two.reconcile(SW1)
            if working.is_alive():
                others.add(outcome)
            time.sleep(0.1)
        assert (outcomes, others, time.monotonic() - began > 2) == (
            [ReconcileOutcome.CONFIRMED],
            {ReconcileOutcome.BUSY},
            True,
        )


def test_a_replica_without_renewal_leaves_before_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path, worker_lease=1.5) as replicas:
        one, two = (service.scheduler.worker for service in replicas.services)
        assert one.reconcile(SW1) is ReconcileOutcome.CONFIRMED
        replicas.put("demo")
        replicas.device.slowness = 0.4
        events: list[str] = []
        monkeypatch.setattr(one.holding.__self__, "renew", unavailable)
        monkeypatch.setattr(one.sessions, "end", noted(events, "one left", one.sessions.end))
        monkeypatch.setattr(two.sessions, "driver", noted(events, "two began", two.sessions.driver))
        working = Thread(target=one.reconcile, args=(SW1,))
        working.start()
        time.sleep(0.2)
        until(
            lambda: two.reconcile(SW1) is ReconcileOutcome.CONFIRMED, 30
        )  # the second lease may be lost on a busy machine
        working.join(10)
        assert (events[0], "two began" in events) == ("one left", True)
        assert "its lease could not be renewed in time" in "".join(troubles(replicas))


def noted(events: list[str], event: str, work: Callable[..., object]) -> Callable[..., object]:
    def call(*given: object) -> object:
        events.append(event)
        return work(*given)

    return call


def unavailable(_name: Name, _fence: int) -> bool:
    raise DatabaseUnavailable("away")


def troubles(replicas: Pair) -> list[str]:
    with replicas.services[0].store.read() as unit:
        return list(unit.session.scalars(select(AuditRow.why).where(AuditRow.what == "element_trouble")))


def restarted(world: World, **timing: float) -> SbfService:
    world.timing = timing
    return world.restarted()


def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, "the condition was not met in time"
        time.sleep(0.05)
