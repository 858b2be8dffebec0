"""Tests of replicas that share a PostgreSQL database."""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import text
from support.programs.postgres import PostgresServer
from support.sbf_fakes.world import SITES, World, spec

from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.clusters.clusters import get_cluster
from sbf_service.store.connections.database import make_engine, probe_write
from sbf_service.store.connections.replica_lock import hold_replica_name
from sbf_service.store.elements.leases import acquire_lease, find_stale_agents, record_agent_heartbeat
from sbf_service.store.maintenance.database_migration import migrate
from sbf_service.store.store import Store
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.errors import DatabaseUnavailable

pytestmark = pytest.mark.postgresql

REPLICAS = 20
HOUR = timedelta(hours=1)


def wait_until(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_twenty_replicas_start_at_once_on_an_empty_database(empty_postgresql: str) -> None:
    """Exactly one replica migrates the database. A second migration would fail, because the tables exist."""
    start, ready = Barrier(REPLICAS), Barrier(REPLICAS)

    def run_replica(name: str) -> None:
        engine = make_engine(empty_postgresql)
        start.wait()
        migrate(engine)
        with hold_replica_name(engine, name):
            probe_write(Store(engine), name)
            ready.wait(60)
        engine.dispose()

    names = [f"r{number:02}" for number in range(REPLICAS)]
    with ThreadPoolExecutor(REPLICAS) as threads:
        assert list(threads.map(run_replica, names)) == [None] * REPLICAS
    engine = make_engine(empty_postgresql)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM topology")).scalar_one() == 1
        assert connection.execute(text("SELECT name FROM replicas ORDER BY name")).scalars().all() == names
    engine.dispose()


def test_a_database_restart_under_load_loses_and_duplicates_nothing(
    postgresql: str, postgres_server: PostgresServer
) -> None:
    world = World(postgresql)
    world.furnish(pool="100-399")
    stores = [world.store, world.restarted().store]
    made, restarted, failures = [0, 0], threading.Event(), [0]

    def create(number: int) -> list[str]:
        keys, wanted = list[str](), [spec(f"{site}-h1") for site in SITES]
        store = stores[number % 2]
        after = 0
        while after < 10:
            key, request = f"c{number}-{len(keys)}", ClusterRequest(spec=wanted[(number + len(keys)) % 3])
            try:
                put_cluster(store, key, request, world.service.reserved, "alice")
            except DatabaseUnavailable:
                failures[0] += 1
                time.sleep(0.01)
                continue
            keys.append(key)
            made[number % 2] += 1
            after += restarted.is_set()
        return keys

    with ThreadPoolExecutor(4) as threads:
        callers = [threads.submit(create, number) for number in range(4)]
        wait_until(lambda: min(made) >= 5)
        postgres_server.stop(signal.SIGQUIT)
        wait_until(lambda: failures[0] > 0)
        postgres_server.start()
        restarted.set()
        keys = sorted(key for caller in callers for key in caller.result(60))
    with world.store.engine.connect() as connection:
        stored = connection.execute(text("SELECT key FROM clusters ORDER BY key")).scalars().all()
        claims = connection.execute(text("SELECT site, vlan FROM claims")).all()
    world.close()
    assert stored == keys
    assert len(claims) == len(keys) == len(set(claims))


@pytest.mark.parametrize("offset_s", [-86_400, 86_400])
def test_a_wrong_clock_of_a_replica_ends_no_lease_early(
    postgresql: str, monkeypatch: pytest.MonkeyPatch, offset_s: int
) -> None:
    world = World(postgresql)
    world.furnish()
    world.clock.stands = False
    true, wrong = world.service, world.restarted()
    cluster = put_cluster(true.store, "demo", ClusterRequest(spec=spec("brno-h1")), true.reserved, "alice").view
    record_agent_heartbeat(true.store, "brno-h1")
    with true.store.change_row() as unit:
        fence = acquire_lease(unit, "brno-sw1", "true", HOUR)
        now = unit.now
    monkeypatch.setattr(time, "time", lambda read=time.time: read() + offset_s)
    wrong.scheduler.sweep.run()
    with wrong.store.change_row() as unit:
        assert abs(unit.now - now) < HOUR
        assert acquire_lease(unit, "brno-sw1", "wrong", HOUR) is None
        assert "brno-h1" not in find_stale_agents(unit, HOUR)
        assert get_cluster(unit, "demo").state == cluster.state
    assert fence is not None
    world.close()
