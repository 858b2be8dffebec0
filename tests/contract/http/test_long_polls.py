import asyncio
import threading
from collections.abc import Collection
from datetime import timedelta

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.poll_calls import (
    Caller,
    agent,
    await_true,
    busy_threads,
    counted_statements,
    revoke,
    run,
    set_rate,
    start_polls,
    wanted,
)
from support.sbf_fakes.world import World, spec

from sbf_service import change_reader
from sbf_service.bootstrap import SbfService
from sbf_service.http.entity_tags import make_wanted_etag
from sbf_service.http.long_polls import PollAdmission
from sbf_service.store.elements.agent_heartbeats import AgentElement
from sbf_service.store.elements.confirmations import reset_confirmation
from sbf_service.store.elements.leases import holds_lease
from virtcloud.model.access import Role
from virtcloud.model.errors import DatabaseUnavailable, VirtcloudError


def change(world: World, key: str, host: str) -> None:
    world.put(key, spec(host))


def test_a_waiting_poll_sends_the_database_no_query(world: World) -> None:
    async def act(http: Caller) -> None:
        polls = await start_polls(world, http, *[wanted("brno-h1")] * 20)
        with counted_statements(world.service) as statements:
            await asyncio.sleep(1.2)
        assert statements == []
        assert busy_threads(http) == 0
        world.service.change_feed.close()
        await asyncio.gather(*polls)

    run(world, act)


def test_a_change_wakes_only_the_waiters_of_its_elements(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    receive = world.service.heartbeats.receive_many
    monkeypatch.setattr(
        world.service.heartbeats, "receive_many", lambda names: (reads.extend(names), receive(names))[1]
    )

    async def act(http: Caller) -> None:
        concerned, other = await start_polls(world, http, wanted("brno-h1"), wanted("praha-h1"))
        reads.clear()
        await asyncio.to_thread(change, world, "demo", "brno-h1")
        assert (await concerned).json()["revision"] == 2
        assert set(reads) == {"brno-h1"}
        assert not other.done()
        world.service.change_feed.close()
        await other

    run(world, act)


def test_a_poll_that_waits_for_a_state_skips_other_changes(world: World) -> None:
    before = world.put("demo", spec("brno-h1")).view

    async def act(http: Caller) -> None:
        path = "/v1/clusters/demo?after=0&wait=30&until=active"
        (poll,) = await start_polls(world, http, path)
        await asyncio.to_thread(world.settle)
        answer = (await asyncio.wait_for(poll, 10)).json()
        assert answer["state"] == "active"
        assert answer["version"] > before.version + 1, "expected a new version for each confirmation"

    run(world, act)


def test_a_poll_that_waits_for_a_state_ends_in_time(world: World) -> None:
    before = world.put("demo", spec("brno-h1")).view.version

    async def act(http: Caller) -> None:
        await asyncio.to_thread(world.delete, "demo")
        answer = await http.get(f"/v1/clusters/demo?after={before}&wait=0.1&until=active")
        assert answer.json()["state"] == "draining"

    run(world, act)


def test_a_change_during_the_reading_is_not_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change is committed after the poll has read the revision, and before the poll waits."""
    receive = world.service.heartbeats.receive_many
    reads = 0

    def receive_and_change(names: Collection[str]) -> dict[str, AgentElement | VirtcloudError]:
        nonlocal reads
        reads += 1
        found = receive(names)
        if reads == 1:
            change(world, "demo", "brno-h1")
        return found

    monkeypatch.setattr(world.service.heartbeats, "receive_many", receive_and_change)

    async def act(http: Caller) -> None:
        answer = await asyncio.wait_for(http.get(wanted("brno-h1")), 10)
        assert answer.json()["revision"] == 2

    run(world, act)


def test_the_slow_poll_finds_a_lost_notice(world: World) -> None:
    other = world.restarted()
    before = world.put("demo", spec("brno-h1")).view.version

    async def act(http: Caller) -> None:
        polls = await start_polls(
            world,
            http,
            wanted("praha-h1"),
            f"/v1/clusters/demo?after={before}&wait=30",
            f"/v1/clusters/demo?after={before}&wait=30&until=draining",
            "/v1/audit?after=9999&wait=30",
        )
        world.service, own = other, world.service
        await asyncio.to_thread(change, world, "second", "praha-h1")
        await asyncio.to_thread(world.delete, "demo")
        world.service = own
        await asyncio.to_thread(world.service.change_reader.poll_once)
        answers = await asyncio.wait_for(asyncio.gather(*polls[:3]), 10)
        assert [answer.json().get("state", "element") for answer in answers] == ["element", "draining", "draining"]
        assert answers[0].json()["revision"] == 2
        assert not polls[3].done()
        world.service.change_feed.close()
        await polls[3]

    run(world, act)


def test_the_slow_poll_sends_one_query_for_many_polls(world: World) -> None:
    world.put("demo", spec("brno-h1"))

    async def act(http: Caller) -> None:
        paths = [wanted(host, 9) for host in ("brno-h1", "brno-h2", "praha-h1", "praha-h2")] * 10
        polls = await start_polls(world, http, *paths, *["/v1/clusters/demo?after=99&wait=30"] * 10)
        await asyncio.to_thread(world.service.change_reader.poll_once)  # this call reads the number of revoked tokens
        with counted_statements(world.service) as statements:
            await asyncio.to_thread(world.service.change_reader.poll_once)
        assert len([one for one in statements if "known_" in one or "json_each" in one]) == 1
        assert len(statements) <= 4, "expected at most two queries (settled agents, polls), each after BEGIN"
        assert not any(poll.done() for poll in polls)
        world.service.change_feed.close()
        await asyncio.gather(*polls)

    run(world, act)


def test_a_poll_whose_token_is_revoked_ends_without_the_document(world: World) -> None:
    token = agent(world)

    async def act(http: Caller) -> None:
        (poll,) = await start_polls(world, http, wanted("brno-h1"))
        await asyncio.to_thread(revoke, world, token)
        status, slug, _ = problem(await asyncio.wait_for(poll, 10))
        assert (status, slug) == (401, "unauthenticated")

    run(world, act, token)


def test_a_revocation_by_another_replica_ends_a_waiting_poll(world: World) -> None:
    """The notice of the revocation was lost. When a later change wakes the poll, SBF checks the token again."""
    token = agent(world)
    own, other = world.service, world.restarted()

    async def act(http: Caller) -> None:
        (poll,) = await start_polls(world, http, wanted("brno-h1"))
        world.service = other
        await asyncio.to_thread(revoke, world, token)
        world.service = own
        await asyncio.to_thread(world.service.change_reader.poll_once)
        await asyncio.to_thread(change, world, "demo", "brno-h1")
        assert (await asyncio.wait_for(poll, 10)).status_code == 401

    run(world, act, token)


def test_a_poll_for_a_guest_hides_the_next_owners_guest(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()

    async def act(http: Caller) -> None:
        (poll,) = await start_polls(world, http, "/v1/clusters/demo/guests/g1?after=999&wait=3")
        world.delete("demo")  # these calls block the event loop, so that the poll reads the guest after the last call
        world.settle()
        world.put("demo", spec("brno-h1", owner="bob"))
        assert problem(await poll)[:2] == (404, "not-found")

    run(world, act, world.token(Role.USER, "alice"))


def test_a_poll_for_a_guest_ends_with_the_cluster(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()

    async def act(http: Caller) -> None:
        (poll,) = await start_polls(world, http, "/v1/clusters/demo/guests/g1?after=999&wait=30")
        await asyncio.to_thread(world.delete, "demo")
        await asyncio.to_thread(world.settle)
        assert problem(await poll)[:2] == (409, "conflict")

    run(world, act, world.token(Role.USER, "alice"))


def test_a_client_in_a_tight_loop_gets_status_429(world: World, caplog: pytest.LogCaptureFixture) -> None:
    set_rate(world, "3/minute")

    async def act(http: Caller) -> None:
        answers = [await http.get(wanted("brno-h1", 0)) for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 429, 429]
        assert answers[-1].headers["retry-after"] == "10"
        assert "expected a call with 'after' and 'wait', which waits for a change" in problem(answers[-1])[2]

    run(world, act, agent(world))
    assert [record.message.split()[0] for record in caplog.records].count("polls_without_wait") == 1


def test_changes_do_not_count_as_a_tight_loop(world: World) -> None:
    set_rate(world, "3/minute")

    async def act(http: Caller) -> None:
        for number in range(1, 7):
            await asyncio.to_thread(change, world, f"c{number}", "brno-h1")
            assert (await http.get(wanted("brno-h1", number))).json()["revision"] == number + 1

    run(world, act, agent(world))


def test_a_stopping_service_answers_polls_with_a_retry_time(world: World) -> None:
    async def act(http: Caller) -> None:
        polls = await start_polls(world, http, *[wanted("brno-h1")] * 5, "/v1/audit?after=9999&wait=30")
        with counted_statements(world.service) as statements:
            world.service.change_feed.close()
            answers = await asyncio.wait_for(asyncio.gather(*polls), 10)
        assert {problem(answer)[:2] for answer in answers} == {(503, "service-stopping")}
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
        assert statements == []

    run(world, act)


def test_ten_thousand_polls_are_spread_over_twenty_seconds(world: World) -> None:
    polls = PollAdmission(world.service)
    assert [polls.spread(10_000) <= 21 for _ in range(100)] == [True] * 100
    assert len({polls.spread(10_000) for _ in range(500)}) > 10


def test_an_unchanged_document_is_not_sent_again(world: World) -> None:
    world.confirm("brno-h1", 1)
    etag = ask(world, "GET", wanted("brno-h1", 1, 0)).headers["etag"]
    again = ask(world, "GET", wanted("brno-h1", 1, 0), headers={"if-none-match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)


def test_an_unconfirmed_document_is_always_sent(world: World) -> None:
    assert ask(world, "GET", wanted("brno-h1", 1, 0)).headers["etag"] != make_wanted_etag(1)
    known = {"if-none-match": make_wanted_etag(1)}
    assert ask(world, "GET", wanted("brno-h1", 1, 0), headers=known).status_code == 200


def test_a_reset_confirmation_sends_the_document_again(world: World) -> None:
    world.confirm("brno-h1", 1)

    async def act(http: Caller) -> None:
        etag = (await http.get(wanted("brno-h1", 1, 0))).headers["etag"]
        with world.store.change() as unit:
            reset_confirmation(unit, "brno-h1", "the test", timedelta(minutes=1))
        answer = await http.get(wanted("brno-h1", 1, 0), headers={"if-none-match": etag})
        assert (answer.status_code, answer.json()["confirmed_revision"]) == (200, 0)

    run(world, act)


def test_the_heartbeats_of_polls_are_recorded_together(world: World) -> None:
    for host in ("brno-h1", "brno-h2"):
        ask(world, "GET", wanted(host, 0, 0), token=agent(world, host))
    world.clock.advance(20)
    for host in ("brno-h1", "brno-h2"):
        ask(world, "GET", wanted(host, 0, 0), token=agent(world, host))
    with counted_statements(world.service) as statements:
        world.service.heartbeats.record()
    assert len([one for one in statements if one.startswith("UPDATE")]) == 1
    assert ask(world, "GET", "/v1/elements/brno-h2").json()["last_seen"] == "2026-01-01T00:00:20Z"


@pytest.mark.parametrize("query", ["", "?after=0&wait=0", "?after=1&wait=0.1"])
def test_an_operators_poll_is_no_heartbeat(world: World, query: str) -> None:
    operator = world.token(Role.OPERATOR, "olga")
    assert ask(world, "GET", f"/v1/elements/brno-h1/wanted{query}", token=operator).status_code == 200
    assert ask(world, "GET", "/v1/elements/brno-h1").json()["last_seen"] is None


def test_heartbeats_do_not_wait_for_a_locked_element(world: World) -> None:
    """One transaction records several heartbeats. If this transaction waited for locks, a deadlock could occur."""
    if world.store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no locks of rows")
    for host in ("brno-h1", "brno-h2"):
        ask(world, "GET", wanted(host, 0, 0), token=agent(world, host))
    world.clock.advance(20)
    for host in ("brno-h1", "brno-h2"):
        ask(world, "GET", wanted(host, 0, 0), token=agent(world, host))
    with world.store.change_row() as unit:
        assert holds_lease(unit, "brno-h1", 0)
        world.service.heartbeats.record()
    seen = [ask(world, "GET", f"/v1/elements/{host}").json()["last_seen"] for host in ("brno-h1", "brno-h2")]
    assert seen == ["2026-01-01T00:00:00Z", "2026-01-01T00:00:20Z"]


def test_heartbeats_survive_a_failed_transaction(world: World) -> None:
    for _ in range(2):
        world.clock.advance(20)
        ask(world, "GET", wanted("brno-h1", 0, 0), token=agent(world))

    def fail(_connection: Connection) -> None:
        raise OperationalError("COMMIT", {}, Exception("the connection is lost"))

    event.listen(world.store.engine, "commit", fail)
    with pytest.raises(DatabaseUnavailable):
        world.service.heartbeats.record()
    event.remove(world.store.engine, "commit", fail)
    world.service.heartbeats.record()
    assert ask(world, "GET", "/v1/elements/brno-h1").json()["last_seen"] == "2026-01-01T00:00:40Z"


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_notice_of_another_replica_wakes_the_poll(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_interrupted: bool
) -> None:
    """If the change reader's database connection is lost, the notice is lost too.

    After the reconnection, the slow poll (the change reader's query of the database) finds the change.
    """
    if world.store.engine.dialect.name != "postgresql":
        pytest.skip("SQLite has no second replica")
    monkeypatch.setattr(change_reader, "RECONNECT_S", 0.05)
    own, other, reader = world.service, world.restarted(), world.service.change_reader

    async def act(http: Caller) -> None:
        (poll,) = await start_polls(world, http, wanted("brno-h1"))
        reader.start()
        await await_true(lambda: reader.listens)
        if is_interrupted:
            await asyncio.to_thread(end_listening, other)
        world.service = other
        await asyncio.to_thread(change, world, "demo", "brno-h1")
        world.service = own
        assert (await asyncio.wait_for(poll, 10)).json()["revision"] == 2

    try:
        run(world, act)
    finally:
        reader.stop()
    assert not any(thread.name == "change-reader" for thread in threading.enumerate())


def end_listening(service: SbfService) -> None:
    with service.store.engine.begin() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query IN ('LISTEN virtcloud_changes', 'SELECT 1')"
        )
