"""Tests of lease heartbeats. A conversation ends before another replica can acquire the element's lease."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import paramiko
import pytest
from sqlalchemy import select
from support.emulators import emulate
from support.emulators.switch_device import EmulatedSwitch
from support.migrated import create_sqlite
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.bootstrap import SbfService, build_service
from sbf_service.drivers.contract import DeviceLogin, SwitchDriver, SwitchScope
from sbf_service.drivers.registry import SWITCH_PLATFORMS
from sbf_service.drivers.transport.device_session import CancelScope, ConversationCancelledError
from sbf_service.reconcile.heartbeats import LEASE_LOST, HeldLease, LeaseHeartbeats, compute_deadline
from sbf_service.reconcile.sessions import DeviceSessions
from sbf_service.reconcile.worker import ReconcileOutcome, Worker
from sbf_service.settings import ServiceSettings
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.elements.elements import make_element_view
from sbf_service.store.elements.leases import acquire_lease, release_lease, renew_lease
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.vlans.pools import put_pool
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import DatabaseUnavailable, Unreachable
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

SW1 = Name("brno-sw1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = make_world(tmp_path)
    world.furnish()
    world.clock.stands = False
    yield world
    world.close()


def test_a_conversation_may_use_two_thirds_of_its_lease() -> None:
    held = HeldLease(SW1, 1, began=100.0, renewed=150.0)
    assert compute_deadline(held, 30, 300) == (
        170.0,
        "the device's lease could not be renewed in time: the conversation was ended",
    )
    assert compute_deadline(held, 30, 60) == (160.0, "the conversation was ended after 60 s")


def test_a_lease_is_renewed_while_a_conversation_lasts(world: World) -> None:
    lease_s = 3
    slow = start_again(world, worker_lease=lease_s)
    switch, outcomes = world.switches[SW1], list[ReconcileOutcome]()
    before, release = len(switch.calls), Event()
    switch.hangs = release
    thread = Thread(target=lambda: outcomes.append(slow.scheduler.worker.reconcile(SW1)))
    try:
        thread.start()
        wait_until(lambda: len(switch.calls) > before)
        time.sleep(lease_s + 0.5)
        with world.store.change_row() as unit:
            assert acquire_lease(unit, SW1, "another", world.service.settings.timing.lease) is None
    finally:
        release.set()
        thread.join(10)
    assert outcomes == [ReconcileOutcome.CONFIRMED]
    slow.store.close()


def test_a_released_lease_is_not_renewed(world: World) -> None:
    length = world.service.settings.timing.lease
    with world.store.change_row() as unit:
        fence = acquire_lease(unit, SW1, "one", length)
        assert fence is not None
        release_lease(unit, SW1, fence)
        assert not renew_lease(unit, SW1, fence, length)
        assert acquire_lease(unit, SW1, "two", length) == 2


def test_the_threads_end_with_the_last_conversation(world: World) -> None:
    def renewal_threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("leases-")]

    world.converge(SW1)
    wait_until(lambda: not renewal_threads())
    assert renewal_threads() == []


@dataclass
class ScriptedRenewals:
    """Prepared answers of the database to renewals of a lease, and a clock.

    The answer None makes a renewal raise DatabaseUnavailable.
    """

    answers: list[bool | None] = field(default_factory=list)
    now: float = 100.0

    def renew(self, _name: Name, _fence: int) -> bool:
        answer = self.answers.pop(0)
        if answer is None:
            raise DatabaseUnavailable("no database")
        return answer


class RecordingSessions(DeviceSessions):
    """Records the deadlines of conversations, and the reasons of disconnections."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.disconnections: list[str] = []

    def set_deadline(self, name: Name, until: float, why: str) -> None:
        self.deadlines.append(until)

    def clear_deadline(self, name: Name) -> None:
        pass

    def disconnect(self, name: Name, why: str) -> None:
        self.disconnections.append(why)


@contextmanager
def hold_lease(renewals: ScriptedRenewals) -> Iterator[tuple[LeaseHeartbeats, RecordingSessions]]:
    """Begin a conversation with a timeout of 60 s, under a lease of 30 s. The conversation ends with the context.

    No thread is started: the test calls `renew_all` and `end_overdue`.
    """
    sessions = RecordingSessions()
    timing = ServiceSettings.model_validate({"timing": {"worker_lease": 30, "conversation_timeout": 60}}).timing
    heartbeats = LeaseHeartbeats(renewals.renew, sessions, timing, lambda: renewals.now)
    heartbeats._start = lambda: None
    with heartbeats.hold(SW1, lambda: 7):
        yield heartbeats, sessions


def test_each_renewal_extends_the_deadline_up_to_the_timeout() -> None:
    renewals = ScriptedRenewals([True, True, True])
    with hold_lease(renewals) as (heartbeats, sessions):
        for _ in range(3):
            renewals.now += 15
            heartbeats.renew_all()
            heartbeats.end_overdue()
    assert (sessions.deadlines, sessions.disconnections) == ([120.0, 135.0, 150.0, 160.0], [])


def test_a_conversation_ends_at_its_timeout_despite_renewals() -> None:
    renewals = ScriptedRenewals([True] * 6)
    with hold_lease(renewals) as (heartbeats, sessions):
        for _ in range(6):
            renewals.now += 10
            heartbeats.renew_all()
            heartbeats.end_overdue()
    assert sessions.disconnections == ["the conversation was ended after 60 s"]


def test_a_conversation_ends_before_an_unrenewed_lease() -> None:
    renewals = ScriptedRenewals([None, None])
    with hold_lease(renewals) as (heartbeats, sessions):
        for seconds in (10, 9.9, 0.1):
            renewals.now += seconds
            heartbeats.renew_all() if renewals.answers else None
            heartbeats.end_overdue()
    assert sessions.disconnections == ["the device's lease could not be renewed in time: the conversation was ended"]


def test_a_conversation_ends_when_another_replica_has_the_lease() -> None:
    with hold_lease(ScriptedRenewals([False])) as (heartbeats, sessions):
        heartbeats.renew_all()
    assert sessions.disconnections == [LEASE_LOST]


def test_a_missed_deadline_does_not_end_the_next_conversation() -> None:
    renewals = ScriptedRenewals()
    with hold_lease(renewals) as (heartbeats, sessions):

        def begin_next() -> float:
            heartbeats._held[SW1] = HeldLease(SW1, 8, began=200.0, renewed=200.0)
            return 200.0

        heartbeats.clock = begin_next
        heartbeats.end_overdue()
    assert sessions.disconnections == []


def test_no_bytes_are_sent_after_the_deadline() -> None:
    """The check of the clock needs no thread, so it works even after the process was suspended."""
    now = [0.0]
    scope = CancelScope(lambda: now[0])
    scope.allow(10, "over")
    scope.check()
    now[0] = 10
    with pytest.raises(ConversationCancelledError, match="over"):
        scope.check()


def test_a_cancelled_scope_ends_later_connections() -> None:
    scope, disconnections = CancelScope(), []
    scope.cancel("disconnect")
    scope.attach(lambda: disconnections.append(1))
    scope.allow(1e12, "")
    assert (disconnections, scope.remaining, scope.reason) == ([1], 0, "disconnect")


@contextmanager
def run_dripping_device(banner: bytes) -> Iterator[str]:
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
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)


def test_a_login_that_never_ends_is_cancelled() -> None:
    with run_dripping_device(b"") as address:
        element = SwitchElement(name=SW1, ports=(PortName("p1"),), platform="cisco_ios", address=address)
        driver, scope = driver_of(element)
        Thread(
            target=lambda: (time.sleep(0.5), scope.cancel("the conversation was ended after 0.5 s")), daemon=True
        ).start()
        started = time.monotonic()
        with pytest.raises(Unreachable, match=r"brno-sw1 .*: the conversation was ended after 0\.5 s; SBF tries again"):
            driver.read(SwitchScope((PortName("p1"),), VlanSet.parse("100-199")))
        assert time.monotonic() - started < 20


def driver_of(element: SwitchElement, **secrets: Any) -> tuple[SwitchDriver, CancelScope]:
    login = DeviceLogin(element, "admin", read_timeout=30, connect_timeout=30, **secrets)
    return SWITCH_PLATFORMS[element.platform].driver(login), login.cancel_scope


@dataclass
class ReplicaPair:
    """Two replicas on one database, and an emulated switch that both use over SSH."""

    device: EmulatedSwitch
    services: tuple[SbfService, SbfService]

    def put(self, key: str) -> None:
        store = self.services[0].store
        put_cluster(store, key, ClusterRequest(spec=spec("brno-h1")), self.services[0].reserved, "alice")

    def trouble(self) -> str:
        with self.services[0].store.read() as unit:
            return make_element_view(unit, SW1).trouble or ""


@contextmanager
def run_pair(folder: Path, **timing: float) -> Iterator[ReplicaPair]:
    with emulate("cisco_ios") as device:
        for name, secret in (("password", device.password), ("enable", device.secret)):
            (folder / name).write_text(secret)
        credential = {"username": device.username} | {
            name: {"file": str(folder / name)} for name in ("password", "enable")
        }
        create_sqlite(database := f"sqlite:///{folder}/sbf.db")
        settings = {"database": database, "credentials": {"lab": credential}, "timing": timing}
        first, second = (
            build_service(ServiceSettings.model_validate(settings | {"replica": name})) for name in ("one", "two")
        )
        with first.store.change() as unit:
            put_topology(unit, site_of(device))
            put_pool(unit, "brno", Pool(vlans=VlanSet.parse("100-139")), first.reserved)
        try:
            yield ReplicaPair(device, (first, second))
        finally:
            for service in (first, second):
                service.scheduler.worker.sessions.end(SW1)
                service.store.close()


def site_of(device: EmulatedSwitch) -> Topology:
    ports = device.port_names[:2]
    switch = {"name": SW1, "platform": "cisco_ios", "address": device.address, "credential": "lab", "ports": ports}
    site = {"name": "brno", "switches": [switch], "hosts": [{"name": "brno-h1", "ports": ["eth0"]}]}
    links = [{"a": "brno-h1:eth0", "b": f"{SW1}:{ports[0]}"}]
    return Topology.model_validate({"name": "one", "sites": [site], "links": links})


def test_an_answer_that_never_ends_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_pair(tmp_path, conversation_timeout=2) as replicas:
        worker = replicas.services[0].scheduler.worker
        wait_until(lambda: worker.reconcile(SW1) is ReconcileOutcome.CONFIRMED, 30)

        def drip(_channel: paramiko.Channel, _size: int) -> bytes:
            time.sleep(0.05)
            return b"."

        with monkeypatch.context() as patched:
            patched.setattr(paramiko.Channel, "recv", drip)
            patched.setattr(paramiko.Channel, "recv_ready", lambda _channel: False)
            started = time.monotonic()
            assert worker.reconcile(SW1) is ReconcileOutcome.FAILED
            assert 1.9 < time.monotonic() - started < 20
        assert "the conversation was ended after 2 s; SBF tries again" in replicas.trouble()
        wait_until(lambda: worker.reconcile(SW1) is ReconcileOutcome.CONFIRMED, 30)


def test_a_long_conversation_excludes_other_replicas(tmp_path: Path) -> None:
    """The conversation has about 35 commands, and lasts longer than the lease."""
    with run_pair(tmp_path, worker_lease=3) as replicas:
        first, second = (service.scheduler.worker for service in replicas.services)
        wait_until(lambda: first.reconcile(SW1) is ReconcileOutcome.CONFIRMED, 30)
        replicas.put("demo")
        replicas.device.slowness = 0.2
        outcome, other_outcomes, seconds = reconcile_beside(first, second, replicas.device)
        assert (outcome, other_outcomes, seconds > 4) == (ReconcileOutcome.CONFIRMED, {ReconcileOutcome.BUSY}, True)


def reconcile_beside(
    first: Worker, second: Worker, device: EmulatedSwitch
) -> tuple[ReconcileOutcome, set[ReconcileOutcome], float]:
    """Reconcile a switch through worker ``first``. Meanwhile, repeatedly try the same through worker ``second``.

    Return the outcome of ``first``, the outcomes of ``second``, and the duration of the reconciliation by ``first``.
    """
    started, outcomes, other_outcomes = time.monotonic(), [], set()
    thread = start_conversation(lambda: outcomes.append(first.reconcile(SW1)), device)
    while thread.is_alive():
        outcome = second.reconcile(SW1)
        if thread.is_alive():
            other_outcomes.add(outcome)
        time.sleep(0.1)
    return outcomes[0], other_outcomes, time.monotonic() - started


def test_a_conversation_without_renewal_ends_before_another_replica_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_pair(tmp_path, worker_lease=4) as replicas:
        first, second = (service.scheduler.worker for service in replicas.services)
        wait_until(lambda: first.reconcile(SW1) is ReconcileOutcome.CONFIRMED, 30)
        replicas.put("demo")
        replicas.device.slowness = 0.2
        events: list[str] = []
        holding: Any = first.holding  # a method of LeaseHeartbeats, whose renew the test replaces
        monkeypatch.setattr(holding.__self__, "renew", unavailable)
        monkeypatch.setattr(first.sessions, "end", recorded(events, "one ended", first.sessions.end))
        monkeypatch.setattr(second.sessions, "driver", recorded(events, "two began", second.sessions.driver))
        thread = start_conversation(lambda: first.reconcile(SW1), replicas.device)
        # On a busy computer, the second replica may lose its lease too.
        wait_until(lambda: second.reconcile(SW1) is ReconcileOutcome.CONFIRMED, 60)
        thread.join(10)
        assert (events[0], "two began" in events) == ("one ended", True)
        assert "the device's lease could not be renewed in time" in "".join(recorded_errors(replicas))


def start_conversation(reconcile: Callable[[], object], device: EmulatedSwitch) -> Thread:
    """Start a thread that reconciles. Return after the switch has received a command: then the thread has the lease."""
    before, thread = len(device.commands), Thread(target=reconcile)
    thread.start()
    wait_until(lambda: len(device.commands) > before, 30)
    return thread


def recorded(events: list[str], event: str, work: Callable[..., object]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        events.append(event)
        return work(*arguments)

    return call


def unavailable(_name: Name, _fence: int) -> bool:
    raise DatabaseUnavailable("no database")


def recorded_errors(replicas: ReplicaPair) -> list[str]:
    with replicas.services[0].store.read() as unit:
        return list(unit.session.scalars(select(AuditRow.why).where(AuditRow.what == "element_trouble")))


def start_again(world: World, **timing: float) -> SbfService:
    world.timing = timing
    return world.restarted()


def wait_until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)
