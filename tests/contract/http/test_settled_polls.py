"""Tests of the polls that SBF answers from memory: the polls of settled agents.

An agent is settled if the agent's element has confirmed its wanted revision and has no error report. The *slow poll* is
no call of an agent: SBF itself regularly reads the database, to find changes whose notices were lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing, nullcontext
from datetime import timedelta
from threading import Event, Thread

import httpx
import pytest
from sqlalchemy import select
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.poll_calls import Caller, agent, await_true, counted_statements, revoke, run, set_rate
from support.sbf_fakes.world import World, spec

from sbf_service.http import entity_tags
from sbf_service.http.entity_tags import make_wanted_etag
from sbf_service.http.settled_polls import SettledPollMiddleware
from sbf_service.server import make_server_config
from sbf_service.store.elements.confirmations import reset_confirmation
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.transactions.change_notices import ChangeNotice, Doorbell
from virtcloud.model.access import Role
from virtcloud.model.errors import DatabaseUnavailable
from virtcloud.model.topology import Topology

HOST = "brno-h1"
Act = Callable[[Caller], Awaitable[None]]


@pytest.fixture
def settled(world: World) -> World:
    world.confirm(HOST, 1)
    world.service.change_reader.listens = True
    world.service.settled_agents.load()
    return world


async def poll(http: Caller, wait: float = 0.01, revision: int = 1, element: str = HOST) -> httpx.Response:
    path = f"/v1/elements/{element}/wanted?after={revision}&wait={wait}"
    return await http.get(path, headers={"if-none-match": make_wanted_etag(revision)})


def run_as_agent(world: World, act: Act) -> None:
    """Run a coroutine as the agent of `HOST`, whose token SBF has already checked and cached."""
    token = agent(world)
    assert ask(world, "GET", "/v1/whoami", token=token).is_success
    run(world, act, token)


def run_waiting(world: World, change: Callable[[], object]) -> httpx.Response:
    answers: list[httpx.Response] = []

    async def act(http: Caller) -> None:
        waiting = asyncio.create_task(poll(http, 30))
        await await_true(world.service.change_feed.count_waiters)
        await asyncio.to_thread(change)
        answers.append(await asyncio.wait_for(waiting, 10))

    run_as_agent(world, act)
    return answers[0]


def reset(world: World) -> None:
    with world.store.change() as unit:
        reset_confirmation(unit, HOST, "the test", timedelta(minutes=1))


@pytest.mark.parametrize("wait", [0, 0.01])
def test_a_settled_agents_poll_sends_the_database_no_query(settled: World, wait: float) -> None:
    async def act(http: Caller) -> None:
        with counted_statements(settled.service) as statements:
            answer = await poll(http, wait)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", make_wanted_etag(1))
        assert len(answer.headers["x-request-id"]) == 32
        assert statements == []

    run_as_agent(settled, act)


def test_without_notices_a_poll_reads_the_database(settled: World) -> None:
    settled.service.change_reader.listens = False

    async def act(http: Caller) -> None:
        with counted_statements(settled.service) as statements:
            assert (await poll(http)).status_code == 304
        assert statements

    run_as_agent(settled, act)


def test_a_settled_agent_receives_a_change(settled: World) -> None:
    answer = run_waiting(settled, lambda: settled.put("demo", spec(HOST)))
    assert (answer.status_code, answer.json()["revision"]) == (200, 2)


def test_an_agent_that_was_reset_receives_the_document(settled: World) -> None:
    reset(settled)

    async def act(http: Caller) -> None:
        assert (await poll(http)).json()["confirmed_revision"] == 0

    run_as_agent(settled, act)


def test_the_slow_poll_finds_a_lost_reset(settled: World) -> None:
    own, settled.service = settled.service, settled.restarted()
    reset(settled)
    settled.service = own
    assert own.settled_agents.find(HOST) == 1
    own.change_reader.before_poll()
    assert own.settled_agents.find(HOST) is None


def test_a_waiting_agent_receives_a_change_whose_notice_was_lost(settled: World) -> None:
    def change_elsewhere() -> None:
        own, settled.service = settled.service, settled.restarted()
        settled.put("demo", spec(HOST))
        settled.service = own
        own.change_reader.poll_once()

    assert run_waiting(settled, change_elsewhere).json()["revision"] == 2


def test_the_slow_poll_reads_no_versions_of_settled_agents(settled: World) -> None:
    def poll_slowly() -> None:
        with counted_statements(settled.service) as statements:
            settled.service.change_reader.poll_once()
        assert len([one for one in statements if "given_tokens" in one]) == 1
        assert not [one for one in statements if "given_element" in one]
        settled.put("demo", spec(HOST))

    run_waiting(settled, poll_slowly)


def test_the_server_answers_settled_polls_outside_of_fastapi(settled: World) -> None:
    """FastAPI and its middleware would take a fifth of the processor time of a settled agent's poll."""
    assert isinstance(make_server_config(settled.service, None).app, SettledPollMiddleware)


def test_two_readings_do_not_overlap(settled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """``load`` first empties the set of changed topics, and then reads the settled agents.

    An overlapping call would lose changes.
    """
    agents, reading = settled.service.settled_agents, [0]
    second = Thread(target=agents.load)

    def read_clock() -> float:
        reading.append(reading[-1] + 1)
        if not second.ident:
            second.start()
            second.join(0.1)  # an overlapping reading would end within this time
            reading.append(0)
        return 0.0

    monkeypatch.setattr(agents, "clock", read_clock)
    agents.load()
    second.join()
    assert reading == [0, 1, 0, 1]


def test_a_document_of_another_version_is_read_again(settled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an upgrade, SBF may compute another document for the same revision."""
    former = make_wanted_etag(1)
    monkeypatch.setattr(entity_tags, "__version__", "9.9")

    async def act(http: Caller) -> None:
        path = f"/v1/elements/{HOST}/wanted?after=1&wait=0"
        answer = await http.get(path, headers={"if-none-match": former})
        assert (answer.status_code, answer.headers["etag"]) == (200, '"1-9.9"')

    run_as_agent(settled, act)


def test_a_change_during_the_reading_is_kept(settled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = settled.service.settled_agents
    monkeypatch.setattr(agents, "clock", lambda: (agents.on_change(frozenset({f"element:{HOST}"})), 0.0)[1])
    agents.load()
    assert agents.find(HOST) is None


def test_an_outdated_reading_answers_no_poll_after_a_reconnection(settled: World) -> None:
    """A change reader without a connection receives no notices of other replicas' changes."""
    reader, found, has_polled = settled.service.change_reader, list[int | None](), Event()
    reader.listens = False

    def record_found() -> None:
        found.append(settled.service.settled_agents.find(HOST))
        has_polled.set()

    reader.before_poll = record_found
    reader.start()
    assert has_polled.wait(10)
    reader.stop()
    assert found == [None]


def test_a_removed_host_is_no_longer_settled(settled: World) -> None:
    settled.put_topology(Topology.model_validate({"name": "other", "sites": [{"name": "wien"}]}))

    async def act(http: Caller) -> None:
        assert problem(await poll(http))[:2] == (404, "not-found")

    run_as_agent(settled, act)


def test_a_settled_agents_revoked_token_ends_its_poll(settled: World) -> None:
    token = agent(settled)
    assert ask(settled, "GET", "/v1/whoami", token=token).is_success

    async def act(http: Caller) -> None:
        waiting = asyncio.create_task(poll(http, 30))
        await await_true(settled.service.change_feed.count_waiters)
        await asyncio.to_thread(revoke, settled, token)
        assert (await asyncio.wait_for(waiting, 10)).status_code == 401

    run(settled, act, token)


def test_a_settled_agent_may_not_poll_for_another_host(settled: World) -> None:
    token = settled.token(Role.AGENT, "praha-h1")
    assert ask(settled, "GET", "/v1/whoami", token=token).is_success

    async def act(http: Caller) -> None:
        assert (await poll(http)).status_code == 403

    run(settled, act, token)


def test_a_stopping_service_tells_a_settled_agent_to_retry(settled: World) -> None:
    answer = run_waiting(settled, settled.service.change_feed.close)
    assert (problem(answer)[:2], answer.headers["retry-after"]) == ((503, "service-stopping"), "1")


def test_a_settled_agent_in_a_tight_loop_is_refused(settled: World) -> None:
    set_rate(settled, "3/minute")

    async def act(http: Caller) -> None:
        assert [(await poll(http)).status_code for _ in range(5)] == [304, 304, 304, 304, 429]

    run_as_agent(settled, act)


def test_a_settled_agents_poll_is_a_heartbeat(settled: World) -> None:
    settled.clock.advance(100)
    settled.service.settled_agents.load()

    async def act(http: Caller) -> None:
        assert (await poll(http)).status_code == 304

    run_as_agent(settled, act)
    settled.service.heartbeats.record()
    assert ask(settled, "GET", f"/v1/elements/{HOST}").json()["last_seen"][:18] == "2026-01-01T00:01:4"


def test_a_heartbeat_of_a_locked_element_is_recorded_later(settled: World) -> None:
    """The lock delays the record only on PostgreSQL, because SQLite has no row locks."""
    heartbeats, at = settled.service.heartbeats, settled.clock.now + timedelta(seconds=30)
    heartbeats.receive_settled(HOST, at)
    with settled.store.engine.connect() as other:
        other.execute(select(ElementRow.name).where(ElementRow.name == HOST).with_for_update())
        heartbeats.record()
    heartbeats.record()
    with settled.store.read() as unit:
        assert unit.session.scalar(select(ElementRow.last_seen).where(ElementRow.name == HOST)) == at


def test_each_heartbeat_is_recorded_with_its_own_time(settled: World) -> None:
    """After an outage of the database, a dead agent's last heartbeat can be minutes older than that of other agents."""
    times = {name: settled.clock.now + timedelta(seconds=seconds) for name, seconds in ((HOST, 30), ("praha-h1", 200))}
    for name, at in times.items():
        settled.service.heartbeats.receive_settled(name, at)
    settled.service.heartbeats.record()
    with settled.store.read() as unit:
        rows = unit.session.execute(select(ElementRow.name, ElementRow.last_seen).where(ElementRow.name.in_(times)))
        assert {row.name: row.last_seen for row in rows} == times


@pytest.mark.parametrize("revision", [1, 5])
def test_an_agent_calls_twice_before_it_counts_as_stale(settled: World, revision: int) -> None:
    """SBF answers the poll for revision 1 from memory, and the poll for revision 5 from the database."""
    settled.service.heartbeats.find_max_age = lambda: timedelta(milliseconds=50)

    async def act(http: Caller) -> None:
        answer = await asyncio.wait_for(poll(http, 60, revision), 10)
        assert answer.status_code == {1: 304, 5: 200}[revision]

    run_as_agent(settled, act)


class EndingListener:
    """A listener that loses its connection.

    If ``change`` is set, the listener first runs ``change`` and returns one notice without topics.
    """

    def __init__(self, change: Callable[[], object] | None = None) -> None:
        self.change = change

    def check(self) -> None:
        """Do nothing: the connection works."""

    def wait(self, _seconds: float, _doorbell: Doorbell) -> list[ChangeNotice]:
        change, self.change = self.change, None
        if change is None:
            raise ConnectionError
        change()
        return [ChangeNotice(None)]


def follow(world: World, listener: EndingListener) -> None:
    with closing(Doorbell()) as doorbell, pytest.raises(ConnectionError):
        world.service.change_reader._follow(listener, doorbell)  # type: ignore[arg-type]


def test_notices_are_not_trusted_after_a_failed_poll(settled: World) -> None:
    def fail() -> None:
        raise DatabaseUnavailable("the database does not answer")

    settled.service.change_reader.listens = False
    settled.service.change_reader.before_poll = fail
    follow(settled, EndingListener())
    assert not settled.service.change_reader.listens


def test_notices_are_not_trusted_while_the_connection_is_lost(settled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, trusted = settled.service.change_reader, list[bool]()

    def pause(_seconds: float) -> None:
        trusted.append(reader.listens)
        reader._stopping = True

    monkeypatch.setattr(reader, "_listen", lambda: nullcontext(EndingListener()))
    with closing(Doorbell()) as doorbell:
        monkeypatch.setattr(doorbell, "wait", pause)
        reader._run(doorbell)
    assert trusted == [False]


def test_a_notice_without_topics_updates_the_settled_agents(settled: World) -> None:
    other = settled.restarted()

    def change() -> None:
        with other.store.change() as unit:
            reset_confirmation(unit, HOST, "the test", timedelta(minutes=1))

    follow(settled, EndingListener(change))
    assert settled.service.settled_agents.find(HOST) is None
