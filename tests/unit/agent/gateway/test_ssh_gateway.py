"""Tests of SSH access through a gateway, with a real sshd and real ssh clients on the real kernel."""

import os
import pwd
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from kernel_links import find_index, link
from pydantic import SecretBytes
from ssh_world import GATEWAY, LISTENER, SECRET, OpenSsh, SshWorld, StockSsh, make_segment

from sbf_service.domain.ssh_authority import make_ssh_server
from virtcloud.agent.gateway import ssh_gateway, ssh_requests, ssh_sessions, sshd_config
from virtcloud.agent.gateway.guest_connections import connect_by_namespace
from virtcloud.agent.gateway.ssh_admission import SshSession
from virtcloud.agent.gateway.ssh_difference import RunSshd, find_sshd_changes
from virtcloud.agent.gateway.ssh_gateway import SshGateway
from virtcloud.agent.gateway.sshd_config import FIXED_OPTIONS
from virtcloud.agent.host_services.server_isolation import join_network_namespace
from virtcloud.agent.own_processes import read_start_time
from virtcloud.model.errors import Forbidden, Refused, TooManyRequests
from virtcloud.model.values import Address
from virtcloud.model.wanted import HostWanted

T = TypeVar("T")
PERMITS = ("permit-X11-forwarding", "permit-agent-forwarding", "permit-port-forwarding", "permit-pty", "permit-user-rc")
"""All extensions of SSH certificates that permit an action.

SBF's certificates contain none of them. The sshd must refuse these actions even to a certificate with the extensions.
"""


@pytest.fixture(scope="module")
def shared(
    in_namespace: Callable[[Callable[[], T]], T], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshWorld]:
    def start() -> SshWorld:
        link("set", index=find_index("lo"), state="up")
        world = SshWorld(tmp_path_factory.mktemp("ssh"))
        world.gateway.ensure_sshd(world.server)
        return world

    world = in_namespace(start)
    yield world
    world.close()


@pytest.fixture
def world(shared: SshWorld, monkeypatch: pytest.MonkeyPatch) -> SshWorld:
    """Return a gateway whose sshd is running, with a grant for alice. A user without a grant is refused at once."""
    monkeypatch.setattr(ssh_requests, "GRANT_S", 0.0)
    shared.grant(make_segment("alice"))
    shared.wait_for_sessions(0)
    return shared


@pytest.fixture
def in_gateway(in_namespace: Callable[[Callable[[], T]], T], world: SshWorld) -> Callable[[Callable[[], T]], T]:
    """Return a function that runs code in the gateway's network namespace."""

    def run(work: Callable[[], T]) -> T:
        def enter() -> T:
            join_network_namespace(os.dup(world.namespace))
            return work()

        return in_namespace(enter)

    return run


def test_a_user_with_a_grant_reaches_the_guest(world: SshWorld) -> None:
    assert StockSsh(world).run(stdin="hello\n") == (0, "c1 10.0.0.1/24 22\nhello\n", "")


def test_a_user_without_a_grant_is_refused(world: SshWorld) -> None:
    code, output, error = StockSsh(world, "bob").run()
    assert (code, output) == (1, "")
    assert "bob may not reach the guests of this cluster" in error


def test_a_login_waits_for_a_late_grant(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_requests, "GRANT_S", 20.0)
    world.grant()
    late = threading.Timer(1.0, world.grant, [make_segment("alice")])
    late.start()
    assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"
    late.join()


def test_a_guest_of_another_cluster_is_refused(world: SshWorld) -> None:
    world.grant(make_segment("alice"), make_segment("bob", cluster="c2", guest="secret"))
    code, output, error = StockSsh(world).run("secret")
    assert (code, output) == (1, "")
    assert "expected the name of a guest with an address, got 'secret'; guests: g1" in error


def test_two_clusters_with_the_same_addresses_stay_apart(world: SshWorld) -> None:
    world.grant(make_segment("alice"), make_segment("alice", cluster="c2"))
    greetings = [StockSsh(world, cluster=cluster).run()[1] for cluster in ("c1", "c2")]
    assert greetings == ["c1 10.0.0.1/24 22\n", "c2 10.0.0.1/24 22\n"]


@pytest.mark.parametrize("command", ["", "sh", "g1; id", "$(id)", "g1\nid", "10.0.0.1"], ids=repr)
def test_no_command_but_a_guest_has_an_effect(world: SshWorld, command: str) -> None:
    code, output, error = StockSsh(world, permits=PERMITS).run(command, stdin="id\n")
    assert (code, output) == (1, "")
    assert "uid=" not in error


@pytest.mark.parametrize("option", ["-L", "-D"], ids=["local", "dynamic"])
def test_the_gateway_forwards_no_port(
    world: SshWorld, in_gateway: Callable[[Callable[[], bytes]], bytes], option: str
) -> None:
    target = "" if option == "-D" else f":127.0.0.1:{LISTENER.port}"
    request = b"\5\1\0" + b"\5\1\0\1\x7f\0\0\1" + LISTENER.port.to_bytes(2) if option == "-D" else b""

    def use_tunnel() -> bytes:
        tunnel = socket.socket()
        with _opened(StockSsh(world, permits=PERMITS), option, f"127.0.0.1:9999{target}"), tunnel, suppress(OSError):
            tunnel.settimeout(5)
            tunnel.connect(("127.0.0.1", 9999))
            tunnel.sendall(request)
            return b"".join(iter(lambda: tunnel.recv(100), b""))
        return b""

    assert b"SSH-" not in in_gateway(use_tunnel)


def test_the_gateway_listens_for_no_user(world: SshWorld) -> None:
    code, _, error = StockSsh(world, permits=PERMITS).run(
        "g1", "-o", "ExitOnForwardFailure=yes", "-R", "9999:127.0.0.1:22"
    )
    assert (code, "remote port forwarding failed" in error) == (255, True)


def test_a_connection_through_the_gateway_to_elsewhere_is_refused(world: SshWorld) -> None:
    code, output, error = StockSsh(world, permits=PERMITS).run("", "-W", f"{LISTENER.address}:{LISTENER.port}")
    assert (code, output) == (255, "")
    assert "open failed: administratively prohibited" in error


def test_no_terminal_is_granted(world: SshWorld) -> None:
    assert "PTY allocation request failed" in StockSsh(world, permits=PERMITS).run("g1", "-tt", "-v")[2]


def test_an_sftp_server_is_not_offered(world: SshWorld) -> None:
    assert StockSsh(world, permits=PERMITS).run("sftp", "-s")[1] == ""


def test_a_certificate_of_another_authority_is_refused(world: SshWorld) -> None:
    code, _, error = StockSsh(world, secret=SecretBytes(b"x" * 32)).run()
    assert (code, "Permission denied (publickey)" in error) == (255, True)


def test_an_expired_certificate_is_refused(world: SshWorld) -> None:
    code, _, error = StockSsh(world, valid=timedelta(seconds=-1)).run()
    assert (code, "Permission denied (publickey)" in error) == (255, True)


def test_a_key_without_a_certificate_is_refused(world: SshWorld) -> None:
    client = StockSsh(world)
    (client.folder / "key-cert.pub").unlink()
    code, _, error = client.run()
    assert (code, "Permission denied (publickey)" in error) == (255, True)


def test_a_withdrawn_grant_ends_the_open_connection(world: SshWorld) -> None:
    world.grant(make_segment("alice", "bob"))
    with _opened(StockSsh(world)) as alice, _opened(StockSsh(world, "bob")) as bob:
        world.grant(make_segment("bob"))
        assert alice.wait() == 255
        assert bob.echo("still here") == "still here"


def test_a_revoked_certificate_ends_its_connections_within_a_second(world: SshWorld) -> None:
    client = StockSsh(world)
    with _opened(client) as revoked, _opened(StockSsh(world)) as other:
        began = time.monotonic()
        world.grant(make_segment("alice", revoked=[client.serial]))
        assert (revoked.wait(), time.monotonic() - began < 1) == (255, True)
        assert other.echo("still here") == "still here"


def test_a_revoked_certificate_is_refused(world: SshWorld) -> None:
    client = StockSsh(world)
    world.grant(make_segment("alice", revoked=[client.serial]))
    code, output, error = client.run()
    assert (code, output, "the certificate was revoked: request a new one" in error) == (1, "", True)
    assert StockSsh(world).run()[1] == "c1 10.0.0.1/24 22\n"


def test_the_next_agent_ends_connections_of_revoked_certificates(world: SshWorld) -> None:
    client = StockSsh(world)
    with _opened(client) as revoked:
        world.restart_agent(make_segment("alice", revoked=[client.serial]))
        assert revoked.wait() == 255


def test_an_open_connection_is_reported_with_its_certificate(world: SshWorld) -> None:
    client = StockSsh(world)
    with _opened(client):
        (found,) = world.gateway.connections or ()
        assert (found.serial, found.user, found.cluster, found.guest) == (client.serial, "alice", "c1", "g1")
        assert found.remote.startswith("127.0.0.1 ")


def test_the_end_of_the_lease_ends_the_open_connection(world: SshWorld) -> None:
    with _opened(StockSsh(world)) as client:
        ends = datetime.now(UTC) + timedelta(seconds=1)
        world.grant(make_segment("alice", ends=ends))
        client.wait()
        assert timedelta(0) <= datetime.now(UTC) - ends < timedelta(seconds=2)


def test_connections_survive_a_killed_agent(world: SshWorld) -> None:
    former = world.pid()
    with _opened(StockSsh(world)) as client:
        world.restart_agent(make_segment("alice"))
        assert client.echo("hello") == "hello"
        assert (len(world.gateway.sessions.sessions), world.pid()) == (1, former)


def test_the_next_agent_ends_connections_without_a_grant(world: SshWorld) -> None:
    with _opened(StockSsh(world)) as client:
        world.restart_agent(make_segment("bob"))
        assert client.wait() == 255


def test_without_an_agent_nobody_connects(world: SshWorld) -> None:
    world.gateway.close()
    code, _, error = StockSsh(world).run()
    world.restart_agent()
    assert (code, "the gateway's agent does not answer" in error) == (1, True)


def test_waiting_requests_of_one_user_are_limited(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user without a grant could occupy all threads. Only one of two requests waits for the grant."""
    monkeypatch.setattr(ssh_requests, "GRANT_S", 60.0)
    monkeypatch.setattr(ssh_requests, "MAX_WAITING", 1)
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(StockSsh(world, "bob").run) for _ in range(2)]
        refused = next(as_completed(runs)).result()
        world.grant(make_segment("alice", "bob"))
    assert "too many requests of bob wait for a grant: expected at most 1;" in refused[2]
    assert sorted(run.result()[1] for run in runs) == ["", "c1 10.0.0.1/24 22\n"]


def make_session(pid: int, started: int, left_s: float = 3600) -> SshSession:
    """Return a session of alice that ends in ``left_s`` seconds."""
    names = {"network": "c1", "cluster": "c1", "user": "alice", "guest": "g1@c1", "remote": "192.0.2.1 5000"}
    ends = datetime.now(UTC) + timedelta(seconds=left_s)
    return SshSession.model_validate({**names, "serial": 1, "pid": pid, "started": started, "expires_at": ends})


def test_one_user_has_a_limited_number_of_connections(world: SshWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_sessions, "MAX_OF_USER", 1)
    world.grant(make_segment("alice", "bob"))
    with _opened(StockSsh(world)):
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


def test_no_file_of_the_gateway_has_the_private_host_key(world: SshWorld) -> None:
    secret = world.server.host_key.get_secret_value().encode()
    files = [path for path in (world.folder / "ssh").rglob("*") if path.is_file()]
    assert [path for path in files if secret in path.read_bytes()] == []


def test_the_sshd_has_no_privileges(world: SshWorld) -> None:
    lines = Path(f"/proc/{world.pid()}/status").read_text().splitlines()
    found = {line for line in lines if line.startswith(("CapEff", "CapBnd", "NoNewPrivs"))}
    assert found == {"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"}


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


def test_a_stopped_sshd_leaves_no_connection(world: SshWorld, in_gateway: Callable[[Callable[[], None]], None]) -> None:
    with _opened(StockSsh(world)) as client:
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
    with _opened(StockSsh(world)):
        world.wait_for_sessions(1)
    world.wait_for_sessions(0)


def test_a_second_start_waits_for_the_end_of_former_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the new threads would see the former request to stop, and end as well."""
    monkeypatch.setattr(ssh_gateway, "find_ssh_user", lambda: pwd.getpwuid(os.getuid()))
    monkeypatch.setattr(ssh_gateway, "STOP_S", 0.0)
    (tmp_path / sshd_config.REQUESTS).mkdir()
    gateway = SshGateway(tmp_path, connect_by_namespace)
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
    starting.join(0.3)  # time for a start that does not wait
    is_free.set()
    starting.join()
    gateway._threads[1].join(0.3)
    assert gateway._threads[1].is_alive()
    gateway.close()


def test_the_thread_of_the_connections_continues_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_gateway, "find_ssh_user", lambda: pwd.getpwuid(os.getuid()))
    monkeypatch.setattr(ssh_gateway, "RETRY_S", 0.0)
    (tmp_path / sshd_config.REQUESTS).mkdir()
    gateway = SshGateway(tmp_path, connect_by_namespace)
    gateway._ensure_requests()
    thread, has_failed, continues = gateway._threads[1], threading.Event(), threading.Event()

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


def test_a_missing_user_does_not_prevent_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_gateway, "USER", "nosuchuser")
    wanted = HostWanted(ssh=make_ssh_server(SECRET, GATEWAY, LISTENER))
    gateway = SshGateway(tmp_path, connect_by_namespace)
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


def test_a_taken_port_is_named(world: SshWorld, in_gateway: Callable[[Callable[[], str]], str]) -> None:
    def start() -> str:
        world.gateway.ensure_no_sshd()
        with socket.create_server(("", LISTENER.port)), pytest.raises(Refused) as error:
            world.gateway.ensure_sshd(world.server)
        world.gateway.ensure_sshd(world.server)
        return str(error.value)

    assert in_gateway(start) == "cannot start sshd: cannot use TCP port 2222: Address already in use"


def test_connections_are_made_in_the_namespace_of_the_network(in_namespace: Callable[[Callable[[], T]], T]) -> None:
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


@contextmanager
def _opened(client: StockSsh, *options: str) -> Iterator[OpenSsh]:
    connection = client.open(*options)
    try:
        yield connection
    finally:
        connection.close()
