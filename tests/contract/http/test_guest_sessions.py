"""Tests of sessions with guests. SBF and the listener of an agent are real, and socket pairs replace the guests."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from support.sbf_fakes.session_world import CHUNK, Installation, Start, await_true, serve_worlds
from support.sbf_fakes.world import spec

from sbf_service.http.routes import sessions
from sbf_service.store.users.tokens import revoke_token
from virtcloud.client import session_stream
from virtcloud.model.access import Role, TokenId
from virtcloud.model.errors import (
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    ServiceUnreachable,
    TooManyRequests,
    Unreachable,
)
from virtcloud.model.guest_sessions import SessionKind, SessionRequest

pytest.importorskip("websockets", reason="NOT TESTED: websockets is not installed")


def start_user(made: Installation) -> threading.Thread:
    """Start a thread that requests a session as the user, and expects Unreachable.

    The test must act as the agent, and must join and close the session. When the session is closed, the thread ends.
    """

    def use() -> None:
        with pytest.raises(Unreachable):
            made.connect()

    user = threading.Thread(target=use)
    user.start()
    return user


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with serve_worlds(tmp_path) as start:
        yield start


def test_bytes_pass_in_both_directions(start: Start) -> None:
    made = start()
    stream = made.connect(8080)
    guest = made.guests.served[0][0]
    stream.send(b"question")
    assert guest.recv(CHUNK) == b"question"
    guest.sendall(b"answer")
    assert stream.receive() == b"answer"
    assert (made.guests.asked[0].port, made.guests.asked[0].guest) == (8080, "g1")


def test_a_guest_can_answer_after_the_end_of_input(start: Start) -> None:
    made = start()
    stream = made.connect()
    guest = made.guests.served[0][0]
    stream.send(b"question")
    stream.send_end()
    assert guest.makefile("rb").read() == b"question"
    guest.sendall(b"late answer")
    guest.close()
    assert (stream.receive(), stream.receive()) == (b"late answer", b"")


def test_a_revoked_token_ends_the_session(start: Start) -> None:
    made = start()
    alice = made.client(Role.USER, "alice")
    stream = alice.get("demo").guests["g1"].connect(22)
    token = alice.sbf.token()
    assert token is not None
    with made.world.store.change() as unit:
        revoke_token(unit, TokenId(token.get_secret_value().split("_")[1]))
    with pytest.raises(ServiceUnreachable, match="your token was revoked or has expired"):
        stream.receive()


def test_both_directions_of_a_session_can_be_full(start: Start) -> None:
    """The guest reads the next bytes only after the user has received enough of its answer."""
    size = 16 << 20
    made = start()
    stream = made.connect()
    guest = made.guests.served[0][0]

    def echo() -> None:
        while data := guest.recv(CHUNK):
            guest.sendall(data)
        guest.close()

    def send() -> None:
        stream.send(bytes(size))
        stream.send_end()

    threads = [threading.Thread(target=work, daemon=True) for work in (echo, send)]
    for thread in threads:
        thread.start()
    received = 0
    while data := stream.receive():
        received += len(data)
    assert received == size


def test_a_slow_reader_slows_the_guest_down(start: Start) -> None:
    made, size = start(), 64 << 20
    stream = made.connect()
    guest, channel = made.guests.served[0]
    writer = threading.Thread(target=lambda: (guest.sendall(bytes(size)), guest.close()))
    writer.start()
    await_true(lambda: channel.sent)
    before = -1
    while before != channel.sent:
        before = channel.sent
        time.sleep(0.3)
    assert 0 < channel.sent < size / 2
    received = 0
    while data := stream.receive():
        received += len(data)
    writer.join()
    assert received == size


def test_a_reader_may_pause_longer_than_the_agents_timeout(start: Start) -> None:
    made, size = start(agent_timeout=0.5), 64 << 20
    stream = made.connect()
    guest, _ = made.guests.served[0]
    writer = threading.Thread(target=lambda: (guest.sendall(bytes(size)), guest.close()), daemon=True)
    writer.start()
    time.sleep(2)
    received = 0
    while data := stream.receive():
        received += len(data)
    writer.join()
    assert received == size


def test_a_stream_is_closed_even_if_its_connection_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_stream, "CLOSE_S", 0.0)
    connection, is_closed = Mock(), threading.Event()
    connection.socket.shutdown.side_effect = OSError(107, "Transport endpoint is not connected")

    @contextmanager
    def open_connection() -> Iterator[Mock]:
        yield connection
        is_closed.set()

    stream = session_stream.SessionStream(open_connection())
    with stream._sending:
        stream.close()
    assert is_closed.is_set()


def test_a_blocked_send_does_not_delay_a_sessions_end(start: Start) -> None:
    made = start()
    stream = made.connect()
    failed: list[ServiceUnreachable] = []

    def send() -> None:
        with pytest.raises(ServiceUnreachable) as caught:
            stream.send(bytes(64 << 20))
        failed.append(caught.value)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    time.sleep(1)
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 8
    sender.join(10)
    assert len(failed) == 1
    while made.guests.served[0][0].recv(CHUNK):
        pass  # the agent ends the session after the guest has read the earlier bytes
    assert made.guests.ended.acquire(timeout=10)
    await_true(lambda: made.open_sessions == 0)


def test_the_agents_refusal_reaches_the_user(start: Start) -> None:
    made = start()
    made.guests.refusal = "no process of guest g1 listens at port 22 (10.0.0.1)"
    with pytest.raises(Refused, match="host brno-h1: no process of guest g1 listens at port 22"):
        made.connect()
    assert (made.open_sessions, made.rows) == (0, 0)


def test_a_session_without_agent_is_refused_in_time(start: Start) -> None:
    made = start(agent=False, agent_wait=0.2)
    expected = r"host brno-h1: expected its agent to connect within 0\.2 s, .* \(virtcloud element show brno-h1\)"
    with pytest.raises(Unreachable, match=expected):
        made.connect()
    assert (made.open_sessions, made.rows) == (0, 0)


def test_an_agent_that_never_answers_is_reported_in_time(start: Start) -> None:
    made = start(agent=False, agent_wait=3)
    agent = made.client(Role.AGENT, "brno-h1").sbf
    refused: list[str] = []

    def use() -> None:
        with pytest.raises(Unreachable) as caught:
            made.connect()
        refused.append(str(caught.value))

    user = threading.Thread(target=use, daemon=True)
    user.start()
    (session,) = agent.waiting_sessions("brno-h1", wait=10)
    with agent.join_session("brno-h1", session):
        user.join(10)
        assert "host brno-h1: expected its agent to reach the guest within 3 s" in refused[0]
    await_true(lambda: (made.open_sessions, made.rows) == (0, 0))


def is_pooled(thread: threading.Thread) -> bool:
    """Return whether the thread is in the service's thread pool. The agent's requests may start such threads."""
    return thread.name == "AnyIO worker thread"


def test_no_session_or_thread_remains_when_the_user_disconnects(start: Start) -> None:
    made = start()
    before = set(threading.enumerate())
    stream = made.connect()
    stream.close()
    assert made.guests.ended.acquire(timeout=10)
    await_true(lambda: made.open_sessions == 0)
    await_true(lambda: all(map(is_pooled, set(threading.enumerate()) - before)))
    assert made.rows == 0


def test_no_session_remains_if_users_disconnect_before_an_agent_joins(start: Start) -> None:
    made = start(agent=False)
    token = made.world.token(Role.USER, "alice")
    with socket.create_connection(("127.0.0.1", int(made.url.rpartition(":")[2]))) as user:
        headers = f"Host: sbf\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        user.sendall(f"GET /v1/clusters/demo/guests/g1/session?kind=console HTTP/1.1\r\n{headers}{key}".encode())
        await_true(lambda: made.rows == 1)
    await_true(lambda: made.open_sessions == 0)
    await_true(lambda: made.rows == 0)
    assert (made.open_sessions, made.rows) == (0, 0)


def test_the_user_learns_that_the_agent_was_killed(start: Start) -> None:
    made = start(agent=False)
    agent = made.client(Role.AGENT, "brno-h1").sbf
    outcome: list[object] = []

    def use() -> None:
        try:
            outcome.append(made.connect().receive())
        except ServiceUnreachable as error:
            outcome.append(error)

    user = threading.Thread(target=use)
    user.start()
    (session,) = agent.waiting_sessions("brno-h1", wait=10)
    stream = agent.join_session("brno-h1", session)
    stream.send_text("{}")
    stream._connection.socket.shutdown(socket.SHUT_RDWR)
    user.join(10)
    assert str(outcome[0]) == "the session was interrupted: the connection was lost"
    await_true(lambda: made.open_sessions == 0)


def test_sessions_end_when_the_service_stops(start: Start) -> None:
    made = start()
    stream = made.connect()
    made.world.service.change_feed.close()
    made.server.should_exit = True
    with pytest.raises(ServiceUnreachable, match="the session was interrupted"):
        stream.receive()
    assert made.guests.ended.acquire(timeout=10)


def test_an_idle_session_ends_with_the_reason(start: Start) -> None:
    made = start(idle=0.2)
    with pytest.raises(ServiceUnreachable, match=r"no byte was sent for 0\.2 s"):
        made.connect().receive()


def test_a_user_has_a_limited_number_of_sessions(start: Start) -> None:
    made = start(sessions_per_user=2)
    first, _ = made.connect(), made.connect()
    with pytest.raises(TooManyRequests, match="alice has 2 sessions with guests, and the limit is 2"):
        made.connect()
    first.close()
    await_true(lambda: made.open_sessions == 1)
    made.connect()


def test_many_sessions_are_served_together(start: Start) -> None:
    made = start()
    guest = made.client(Role.USER, "alice").get("demo").guests["g1"]
    with ExitStack() as streams:
        opened = [streams.enter_context(guest.connect(22)) for _ in range(25)]
        for number, (end, _) in enumerate(made.guests.served):
            end.sendall(b"%d" % number)
        assert sorted(int(stream.receive()) for stream in opened) == list(range(25))
    await_true(lambda: made.open_sessions == 0)


def test_other_users_reach_no_guest(start: Start) -> None:
    made = start()
    made.world.token(Role.USER, "bob")
    with pytest.raises(NotFound, match="cluster demo is not known"):
        made.client(Role.USER, "bob").sbf.open_session("demo", "g1", SESSION)
    assert made.guests.asked == []


SESSION = SessionRequest(kind=SessionKind.PORT, port=22)


def test_a_session_never_reaches_the_keys_next_owner(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    made = start()
    insert = sessions._insert

    def insert_late(*call: object) -> None:
        """End alice's cluster, create bob's cluster with the same key, and only then insert the session."""
        made.world.delete("demo")
        made.world.settle()
        made.world.put("demo", spec("brno-h1", owner="bob"))
        made.world.settle()
        insert(*call)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "_insert", insert_late)
    with pytest.raises(Refused, match="guest g1 is not wanted on this host"):
        made.connect()
    assert made.guests.asked == []


def test_a_site_administrator_reads_the_log_only(start: Start) -> None:
    made = start()
    ivo = made.client(Role.SITE_ADMINISTRATOR, "ivo", "brno").sbf
    with pytest.raises(Forbidden, match=r"ivo \(site-administrator\) may not connect to guest g1 of cluster demo: "):
        ivo.open_session("demo", "g1", SESSION)
    ivo.open_session("demo", "g1", SessionRequest(kind=SessionKind.LOG)).close()


def test_an_agent_cannot_take_another_hosts_session(start: Start) -> None:
    made = start(agent=False)
    user, agent = start_user(made), made.client(Role.AGENT, "brno-h1").sbf
    (session,) = agent.waiting_sessions("brno-h1", wait=10)
    other = made.client(Role.AGENT, "brno-h2").sbf
    with pytest.raises(Forbidden):
        other.waiting_sessions("brno-h1")
    with pytest.raises(NotFound, match="does not wait for brno-h2"):
        other.join_session("brno-h2", session)
    agent.join_session("brno-h1", session).close()
    user.join()


@pytest.mark.parametrize("query", ["port=" + "9" * 5000, "port=1%D9%A1", "port=22&id=a%00b", "port=22&id=X"])
def test_a_malformed_session_is_refused(start: Start, query: str) -> None:
    made = start(agent=False)
    upgrade = {
        "authorization": f"Bearer {made.world.token(Role.USER, 'alice')}",
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "sec-websocket-version": "13",
    }
    answer = httpx.get(f"{made.url}/v1/clusters/demo/guests/g1/session?kind=port&{query}", headers=upgrade)
    assert (answer.status_code, "expected" in answer.json()["detail"]) == (422, True)


def test_a_stopped_guest_is_not_reached(start: Start) -> None:
    made = start()
    made.client(Role.USER, "alice").get("demo").guests["g1"].stop(wait=False)
    with pytest.raises(Conflict, match="guest g1 of cluster demo is stopped: start it"):
        made.connect()


def test_the_audit_log_names_user_guest_and_port(start: Start) -> None:
    made = start()
    made.connect(8080)
    row = made.world.audit("guest_session")[0]
    assert (row.who, row.why, row.element) == ("alice", "port 8080 of guest g1", "brno-h1")


def test_agents_receive_the_address_of_a_sessions_replica(start: Start) -> None:
    made = start(agent=False, address="http://127.0.0.1:1")
    user = start_user(made)
    agent = made.client(Role.AGENT, "brno-h1").sbf
    (session,) = agent.waiting_sessions("brno-h1", wait=10)
    with pytest.raises(ServiceUnreachable, match=r"SBF does not answer at http://127\.0\.0\.1:1"):
        agent.join_session("brno-h1", session)
    agent.join_session("brno-h1", session.model_copy(update={"address": None})).close()
    user.join()
