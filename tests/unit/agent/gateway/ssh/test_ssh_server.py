import errno
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest.mock import Mock

import pytest
from support.gateways.ssh_world import GATEWAY, LISTENER, SECRET, SshWorld, StockSsh, make_segment, opened
from support.kernel.kernel_links import find_index, link
from support.kernel.mount_namespace import is_disk_released, unshare_mounts
from support.kernel.network_namespaces import Run

from sbf_service.domain.ssh_authority import make_ssh_server
from virtcloud.agent.gateway import ssh_gateway, ssh_requests, ssh_sessions, sshd_config
from virtcloud.agent.gateway.guest_connections import connect_by_namespace
from virtcloud.agent.gateway.ssh_admission import SshSession
from virtcloud.agent.gateway.ssh_difference import RunSshd, find_sshd_changes
from virtcloud.agent.gateway.ssh_gateway import SshGateway
from virtcloud.agent.gateway.ssh_requests import SshGrants, SshRequests
from virtcloud.agent.gateway.ssh_sessions import SshSessions
from virtcloud.agent.gateway.sshd_config import FIXED_OPTIONS
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.errors import Forbidden, Refused, TooManyRequests
from virtcloud.model.values import Address, UserName
from virtcloud.model.wanted import HostWanted

T = TypeVar("T")


def refuse_connection(network: str, _addresses: Sequence[Address], _port: int) -> socket.socket:
    raise AssertionError(f"expected no connection into {network}")


def test_without_an_agent_nobody_connects(world: SshWorld) -> None:
    world.gateway.close()
    code, _, error = StockSsh(world).run()
    world.restart_agent()
    assert (code, "the gateway's agent does not answer" in error) == (1, True)


def test_waiting_requests_of_one_user_are_limited(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, a user without a grant could occupy all threads."""
    monkeypatch.setattr(ssh_requests, "GRANT_S", 60.0)
    monkeypatch.setattr(ssh_requests, "MAX_WAITING", 1)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(StockSsh(world, "bob").run) for _ in range(2)]
        refused = next(as_completed(runs)).result()
        world.grant(make_segment("alice", "bob"))
    assert "too many requests of bob wait for a grant: expected at most 1;" in refused[2]
    assert sorted(run.result()[1] for run in runs) == ["", "c1 10.0.0.1/24 22\n"]


def test_silent_guests_of_one_user_do_not_lock_others_out(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(ssh_requests, "MAX_REQUESTS", 3)
    assert world.gateway._requests is not None
    connect = world.gateway._requests._connect

    def connect_slowly(network: str, addresses: Sequence[Address], port: int) -> socket.socket:
        if not is_asked.is_set():
            is_asked.set()
            answers.wait(60)
        return connect(network, addresses, port)

    monkeypatch.setattr(world.gateway._requests, "_connect", connect_slowly)
    world.grant(make_segment("alice", "bob"))
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(StockSsh(world).run)
        is_asked.wait(60)
        assert "too many requests of alice wait for a guest: expected at most 1;" in StockSsh(world).run()[2]
        assert StockSsh(world, "bob").run()[1] == "c1 10.0.0.1/24 22\n"
        answers.set()
    assert first.result()[1] == "c1 10.0.0.1/24 22\n"


def test_a_user_gets_at_most_half_of_the_free_threads(tmp_path: Path) -> None:
    """Three users can each run a command on 32 guests at once. 32 is the default of ``cluster run``."""
    sessions = SshSessions(tmp_path / "sessions.json", lambda: datetime.now(UTC))
    requests = SshRequests(tmp_path / "socket", os.getuid(), SshGrants(), sessions, Mock())
    counts = Counter[str]()
    with closing(requests), ExitStack() as waiting:
        for user in ("alice", "bob", "eva", "dan", "zoe"):
            with suppress(TooManyRequests):
                while True:
                    waiting.enter_context(requests._count_waiting("a guest", UserName(user), ssh_requests.MAX_OF_USER))
                    counts[user] += 1
    assert counts == {"alice": 32, "bob": 32, "eva": 32, "dan": 16, "zoe": 8}


def make_session(pid: int, started: int, left_s: float = 3600) -> SshSession:
    names = {"network": "c1", "cluster": "c1", "user": "alice", "guest": "g1@c1", "remote": "192.0.2.1 5000"}
    ends = datetime.now(UTC) + timedelta(seconds=left_s)
    return SshSession.model_validate({**names, "serial": 1, "pid": pid, "started": started, "expires_at": ends})


def test_one_user_has_a_limited_number_of_connections(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_sessions, "MAX_OF_USER", 1)
    world.grant(make_segment("alice", "bob"))
    with opened(StockSsh(world)):
        assert "too many connections through this gateway" in StockSsh(world).run()[2]
        assert StockSsh(world, "bob").run()[1] == "c1 10.0.0.1/24 22\n"


def test_simultaneous_connections_do_not_exceed_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_sessions, "MAX_OF_USER", 1)
    both, started = threading.Barrier(2), read_start_time(os.getpid()) or 0

    def wait_for_other(pid: int) -> int | None:
        both.wait(20)
        return read_start_time(pid)

    monkeypatch.setattr(ssh_sessions, "read_start_time", wait_for_other)
    sessions = ssh_sessions.SshSessions(tmp_path / "sessions.json")
    session = make_session(os.getpid(), started)

    def add(_number: int) -> str:
        with suppress(TooManyRequests):
            sessions.add(session)
            return "added"
        return "refused"

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(add, range(2))) == ["added", "refused"]


def test_the_extended_end_of_a_lease_is_recorded(tmp_path: Path) -> None:
    """A restarted agent applies the recorded end until it has received a wanted document."""
    record, ends = tmp_path / "sessions.json", datetime.now(UTC) + timedelta(hours=3)
    sessions = SshSessions(record)
    sessions.add(make_session(os.getpid(), read_start_time(os.getpid()) or 0))
    sessions.receive([make_segment("alice", ends=ends)])
    (recorded,) = ssh_sessions.RecordedSshSessions.model_validate_json(record.read_bytes()).sessions
    assert recorded.expires_at == ends


def test_a_disk_that_does_not_answer_delays_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, sessions = list[str](), SshSessions(tmp_path / "sessions.json")
    sessions.add(make_session(os.getpid(), read_start_time(os.getpid()) or 0))
    for name in ("end_expired", "_write"):
        monkeypatch.setattr(sessions, name, partial(calls.append, name))
    sessions.receive([make_segment("alice", ends=datetime.now(UTC) + timedelta(hours=3))])
    assert calls == ["end_expired", "_write"]


def test_an_extended_lease_is_reported_to_nobody(tmp_path: Path) -> None:
    """SBF stores the connections. A lease changes no connection."""
    reports, sessions = list[None](), SshSessions(tmp_path / "sessions.json")
    sessions.add(make_session(os.getpid(), read_start_time(os.getpid()) or 0))
    sessions.changed = lambda: reports.append(None)
    sessions.receive([make_segment("alice", ends=datetime.now(UTC) + timedelta(hours=3))])
    assert reports == []


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ESRCH, "the relay has ended: No such process"),
        (errno.EMFILE, "cannot examine the relay of alice: Too many open files"),
    ],
)
def test_a_relay_that_cannot_be_examined_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(Refused, match=f"^{message}$"):
        SshSessions(tmp_path / "sessions.json").add(make_session(os.getpid(), 1))


def test_a_reused_process_id_ends_no_other_connection(tmp_path: Path) -> None:
    sessions = ssh_sessions.SshSessions(tmp_path / "sessions.json")
    former, relay = (subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) for _ in range(2))
    with former, relay:
        sessions._open = {
            os.pidfd_open(former.pid): make_session(relay.pid, 1, left_s=-1),
            os.pidfd_open(relay.pid): make_session(relay.pid, 2),
        }
        sessions.end_expired()
        assert former.wait(20) == -signal.SIGKILL
        assert relay.poll() is None
        for descriptor in sessions._open:
            os.close(descriptor)


def test_only_the_sshd_may_request_connections(world: SshWorld) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(world.folder / "ssh/requests/agent.sock"))
        assert agent.recv(1000) == b"only the relays of this gateway's sshd may request connections"


def test_a_relay_that_sends_single_bytes_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_requests, "REQUEST_S", 0.2)
    relay, agent = socket.socketpair()
    is_refused, began = threading.Event(), time.monotonic()

    def send() -> None:
        while not is_refused.wait(0.02) and time.monotonic() < began + 60:
            relay.send(b" ")
        relay.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    with relay, agent:
        sender.start()
        with pytest.raises(Forbidden, match=r"expected a request for a guest within 0\.2 s"):
            ssh_requests._read_request(agent)
        is_refused.set()
        sender.join()


def test_a_relay_that_ends_before_its_answer_is_refused() -> None:
    relay, agent = socket.socketpair()
    relay.close()
    with agent, pytest.raises(Refused, match="the relay has ended: "):
        ssh_requests._send_connection(agent, agent)


def test_silent_connections_do_not_lock_others_out(
    world: SshWorld, in_gateway: Callable[[Callable[[], str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"MaxStartups 200:30:300": "MaxStartups 8:100:8", "PerSourceMaxStartups 100": "PerSourceMaxStartups 5"}
    assert set(limits) <= set(FIXED_OPTIONS)
    fewer = tuple(limits.get(option, option) for option in FIXED_OPTIONS)
    monkeypatch.setattr(sshd_config, "FIXED_OPTIONS", fewer)

    def flood() -> str:
        world.gateway.ensure_sshd(world.server)
        silent = [socket.create_connection(("127.0.0.1", LISTENER.port)) for _ in range(10)]
        greeting = StockSsh(world).run("g1", "-b", "127.0.0.2")[1]
        for connection in silent:
            connection.close()
        return greeting

    assert in_gateway(flood) == "c1 10.0.0.1/24 22\n"


def test_a_killed_sshd_is_started_again(world: SshWorld, in_gateway: Callable[[Callable[[], None]], None]) -> None:
    former = world.pid()
    os.kill(former, signal.SIGKILL)
    while read_start_time(former) is not None:
        pass
    observed = world.gateway.read()
    assert [type(step) for step in find_sshd_changes(HostWanted(ssh=world.server), observed)] == [RunSshd]
    in_gateway(lambda: world.gateway.ensure_sshd(world.server))
    assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"


@pytest.mark.parametrize("is_wanted", [True, False])
def test_an_sshd_with_an_unreadable_record_is_stopped(
    world: SshWorld, in_gateway: Callable[[Callable[[], None]], None], is_wanted: bool
) -> None:
    former = world.pid()
    (world.folder / "ssh/record.json").write_text("{")
    wanted = HostWanted(ssh=world.server if is_wanted else None)
    (step,) = find_sshd_changes(wanted, world.gateway.read())
    in_gateway(lambda: world.gateway.apply(step))
    assert read_start_time(former) is None
    in_gateway(lambda: world.gateway.ensure_sshd(world.server))
    assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"


@pytest.mark.parametrize("lost", [(), ("record.json",), ("record.json", "sessions.json")])
def test_the_remains_of_an_unwanted_sshd_are_removed(
    world: SshWorld, in_gateway: Callable[[Callable[[], None]], None], lost: tuple[str, ...]
) -> None:
    """The sshd ended, or the agent was killed while it removed the sshd."""
    world.gateway._stop_sshd()
    world.gateway.sessions._write()
    for name in lost:
        (world.folder / "ssh" / name).unlink()
    for name in (".record.new", "sessions.new"):  # incomplete records
        (world.folder / "ssh" / name).touch()
    for step in find_sshd_changes(HostWanted(), world.gateway.read()):
        world.gateway.apply(step)
    assert [path for path in (world.folder / "ssh").rglob("*") if path.is_file() or path.is_socket()] == []
    assert world.gateway.read().has_remains is False
    in_gateway(lambda: world.gateway.ensure_sshd(world.server))


def test_a_new_sshd_takes_over_no_connection(world: SshWorld, in_gateway: Callable[[Callable[[], None]], None]) -> None:
    """After a crash of the host, another process can have the recorded process ID and the recorded start time."""
    world.gateway.ensure_no_sshd()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as other:
        session = make_session(other.pid, read_start_time(other.pid) or 0, left_s=-1)
        recorded = ssh_sessions.RecordedSshSessions(sessions=(session,))
        (world.folder / "ssh/sessions.json").write_text(recorded.model_dump_json())
        world.gateway = world.make_gateway()
        in_gateway(lambda: world.gateway.ensure_sshd(world.server))
        assert other.poll() is None


def test_a_stopped_sshd_leaves_no_connection(world: SshWorld, in_gateway: Callable[[Callable[[], None]], None]) -> None:
    with opened(StockSsh(world)) as client:
        world.gateway.ensure_no_sshd()
        assert client.wait() == 255
    assert world.gateway.sessions.sessions == ()
    assert [path for path in (world.folder / "ssh").rglob("*") if path.is_file()] == []
    in_gateway(lambda: world.gateway.ensure_sshd(world.server))


def test_ended_connections_are_removed_after_a_second_start(
    world: SshWorld, in_gateway: Callable[[Callable[[], None]], None]
) -> None:
    world.gateway.ensure_no_sshd()
    in_gateway(lambda: world.gateway.ensure_sshd(world.server))
    with opened(StockSsh(world)):
        world.wait_for_sessions(1)
    world.wait_for_sessions(0)


def test_a_second_start_waits_for_the_end_of_former_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the start did not wait, the new threads would also obey the request that stops the former threads."""
    monkeypatch.setattr(ssh_gateway, "find_ssh_user", lambda: pwd.getpwuid(os.getuid()))
    monkeypatch.setattr(ssh_gateway, "STOP_S", 0.0)
    (tmp_path / sshd_config.REQUESTS).mkdir()
    gateway = SshGateway(tmp_path, refuse_connection)
    gateway._ensure_requests()
    former, end_expired, is_free = gateway._threads, gateway.sessions.end_expired, threading.Event()

    def end_late() -> None:
        if threading.current_thread() in former:
            is_free.wait(60)
        end_expired()

    monkeypatch.setattr(gateway.sessions, "end_expired", end_late)
    gateway.close()
    starting = threading.Thread(target=gateway._ensure_requests)
    starting.start()
    starting.join(0.3)  # a start that did not wait would return within this time
    is_free.set()
    starting.join()
    gateway._threads[0].join(0.3)
    assert gateway._threads[0].is_alive()
    gateway.close()


def test_the_thread_of_the_connections_continues_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_gateway, "find_ssh_user", lambda: pwd.getpwuid(os.getuid()))
    monkeypatch.setattr(ssh_gateway, "RETRY_S", 0.0)
    (tmp_path / sshd_config.REQUESTS).mkdir()
    gateway = SshGateway(tmp_path, refuse_connection)
    gateway._ensure_requests()
    thread, has_failed, continues = gateway._threads[0], threading.Event(), threading.Event()

    def fail_once() -> None:
        if threading.current_thread() is thread and not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("dictionary changed size during iteration")
        if has_failed.is_set():
            continues.set()

    monkeypatch.setattr(gateway.sessions, "end_expired", fail_once)
    gateway.receive(HostWanted(), ())
    assert continues.wait(20)
    gateway.close()
    assert not thread.is_alive()


def list_sessions(sessions: SshSessions) -> list[SshSession]:
    return list(sessions.sessions)


@pytest.mark.parametrize("name", ["SSH requests", "SSH sessions"])
def test_a_thread_that_did_not_start_is_started_later(
    world: SshWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start, failed = threading.Thread.start, list[threading.Thread]()

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == name and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    with opened(StockSsh(world)):
        world.wait_for_sessions(1)
        world.gateway.close()
        world.gateway = world.make_gateway()
        world.grant(make_segment("alice"))
        monkeypatch.setattr(threading.Thread, "start", fail_once)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            world.gateway.read()
        assert list_sessions(world.gateway.sessions) == []
        world.gateway.read()
        assert len(list_sessions(world.gateway.sessions)) == 1
        assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"
    world.wait_for_sessions(0)


def test_a_connection_that_cannot_be_taken_over_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the error was ignored, the connection would continue after the end of its grant."""
    session = make_session(os.getpid(), read_start_time(os.getpid()) or 0)
    recorded = ssh_sessions.RecordedSshSessions(sessions=(session,))
    (tmp_path / "sessions.json").write_text(recorded.model_dump_json())
    sessions = SshSessions(tmp_path / "sessions.json")
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=OSError(24, "Too many open files")))
    with pytest.raises(Refused, match="cannot take over the SSH connection of alice: "):
        sessions.take_over()
    monkeypatch.undo()
    sessions.take_over()
    sessions.take_over()
    assert list_sessions(sessions) == [session]
    sessions.release()
    assert list_sessions(sessions) == []


def test_the_gateway_is_read_even_if_sshds_user_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_gateway, "USER", "nosuchuser")
    wanted = HostWanted(ssh=make_ssh_server(SECRET, GATEWAY, LISTENER))
    gateway = SshGateway(tmp_path, refuse_connection)
    gateway.receive(wanted, ())
    (step,) = find_sshd_changes(wanted, gateway.read())
    with pytest.raises(Refused, match="this gateway has no user nosuchuser, as which sshd runs: "):
        gateway.apply(step)


def test_a_configuration_that_sshd_refuses_is_named(
    world: SshWorld, in_gateway: Callable[[Callable[[], str]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> str:
        monkeypatch.setattr(sshd_config, "FIXED_OPTIONS", (*FIXED_OPTIONS, "NewOption yes"))
        with pytest.raises(Refused) as error:
            world.gateway.ensure_sshd(world.server)
        monkeypatch.setattr(sshd_config, "FIXED_OPTIONS", FIXED_OPTIONS)
        world.gateway.ensure_sshd(world.server)
        return str(error.value)

    assert "Bad configuration option: NewOption" in in_gateway(start)


def test_a_port_in_use_is_named(world: SshWorld, in_gateway: Callable[[Callable[[], str]], str]) -> None:
    def start() -> str:
        world.gateway.ensure_no_sshd()
        with socket.create_server(("", LISTENER.port)), pytest.raises(Refused) as error:
            world.gateway.ensure_sshd(world.server)
        world.gateway.ensure_sshd(world.server)
        return str(error.value)

    assert in_gateway(start) == "cannot start sshd: cannot use TCP port 2222: Address already in use"


def test_new_accounts_of_the_gateway_do_not_disturb_the_sshd(in_namespace: Run, tmp_path: Path) -> None:
    """Like useradd(8), the test replaces /etc/passwd with a new file."""
    shutil.copytree("/etc", tmp_path / "etc", symlinks=True)

    def work() -> object:
        link("set", index=find_index("lo"), state="up")
        unshare_mounts()
        subprocess.run(("/usr/bin/mount", "--bind", tmp_path / "etc", "/etc"), check=True)  # noqa: S603 - mount(8)
        world = SshWorld(tmp_path)
        try:
            world.gateway.ensure_sshd(world.server)
            world.grant(make_segment("alice"))
            shutil.copy("/etc/passwd", "/etc/passwd+")
            Path("/etc/passwd+").rename("/etc/passwd")
            return StockSsh(world).run()
        finally:
            world.close()

    assert in_namespace(work) == (0, "c1 10.0.0.1/24 22\n", "")


def test_a_disk_that_is_unmounted_later_is_released(in_namespace: Run, tmp_path: Path) -> None:
    def work() -> bool:
        link("set", index=find_index("lo"), state="up")
        unshare_mounts()
        world = SshWorld(tmp_path)
        try:
            return is_disk_released(tmp_path, lambda: world.gateway.ensure_sshd(world.server))
        finally:
            world.close()

    assert in_namespace(work)


def test_connections_are_made_in_the_namespace_of_the_network(in_namespace: Run) -> None:
    def listen() -> tuple[int, socket.socket]:
        link("set", index=find_index("lo"), state="up")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY), socket.create_server(("127.0.0.1", 22))

    opened = {network: in_namespace(listen) for network in ("c1", "c2")}

    @contextmanager
    def open_namespace(network: str) -> Iterator[int]:
        yield opened[network][0]

    connect = connect_by_namespace(open_namespace)
    try:
        with connect("c2", [Address("127.0.0.1/8")], 22) as connection, opened["c2"][1].accept()[0] as accepted:
            assert accepted.getpeername() == connection.getsockname()
            assert os.get_blocking(connection.fileno())  # the relay needs a blocking socket
            assert not os.get_inheritable(connection.fileno())  # OpenVPN must not inherit the connection
    finally:
        for namespace, listener in opened.values():
            os.close(namespace)
            listener.close()
