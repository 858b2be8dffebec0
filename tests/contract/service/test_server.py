import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from support.migrated import create_sqlite
from support.processor_wait import seconds_to_end
from support.programs.sbf_process import SbfProcess, run_sbf
from support.sbf_fakes.world import spec, three_sites

from sbf_service.bootstrap import SbfService
from sbf_service.change_feed import ChangeFeed
from sbf_service.listen_sockets import _listen_tcp, _listen_unix, listen
from sbf_service.local_listeners import LocalListeners
from sbf_service.server import SbfServer
from sbf_service.settings import ListenAddress, ServiceSettings
from virtcloud.client.api import Client
from virtcloud.client.connection import USER_AGENT
from virtcloud.model.errors import BadInput, ServiceBusy
from virtcloud.model.guest_sessions import SessionKind, SessionRequest

SBF = [sys.executable, "-m", "sbf_service"]


def write_settings(folder: Path, **changes: str) -> Path:
    values = {"database": f"sqlite:///{folder / 'sbf.db'}", "listen": "127.0.0.1:0"} | changes
    if "database" not in changes:
        create_sqlite(values["database"])
    path = folder / "sbf.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()), encoding="utf-8")
    return path


@contextmanager
def running_service(path: Path) -> Iterator[SbfProcess]:
    with SbfProcess("serve", "--config", str(path), stderr=subprocess.PIPE) as process:
        try:
            process.read_address()
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def start_interpreter(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own
        [*SBF, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def connect_to_socket(path: Path) -> httpx.Client:
    return httpx.Client(transport=httpx.HTTPTransport(uds=str(path), retries=3), base_url="http://sbf", timeout=60)


def test_sbf_answers_on_tcp_and_on_its_group_socket(tmp_path: Path) -> None:
    path = write_settings(tmp_path, socket=str(tmp_path / "run" / "sbf.sock"))
    (tmp_path / "sbf.db").unlink()  # the service creates the database when it starts
    with running_service(path) as process, connect_to_socket(tmp_path / "run" / "sbf.sock") as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert httpx.get(f"http://{process.address}/healthz", timeout=60).json() == {"status": "ok"}
        assert stat.S_IMODE((tmp_path / "run" / "sbf.sock").stat().st_mode) == 0o660


def test_sigterm_stops_a_busy_service_within_two_seconds(tmp_path: Path) -> None:
    hung = socket.create_server(("127.0.0.1", 0))
    path = write_settings(tmp_path, socket=str(tmp_path / "sbf.sock"))
    with (
        running_service(path) as process,
        connect_to_socket(tmp_path / "sbf.sock") as client,
        ThreadPoolExecutor(1) as threads,
    ):
        client.put("/v1/topology", json=hung_switches(hung)).raise_for_status()
        client.put("/v1/sites/brno/pool", json={"vlans": "100-109"}).raise_for_status()
        cluster = client.put("/v1/clusters/demo", json={"spec": spec("brno-h1").model_dump(mode="json")}).json()
        accepted, _ = hung.accept()
        is_sent = threading.Event()

        def trace(step: str, _about: object) -> None:
            if step == "http11.send_request_body.complete":
                is_sent.set()

        url = f"/v1/clusters/demo?after={cluster['version'] + 9}&wait=60"
        poll = threads.submit(client.get, url, timeout=60, extensions={"trace": trace})
        assert is_sent.wait(30)
        client.get("/healthz").raise_for_status()  # this answer shows that SBF has received the poll
        process.send_signal(signal.SIGTERM)
        assert seconds_to_end(process) < 2
        assert process.returncode == 0
        assert (poll.result().status_code, poll.result().headers["retry-after"]) == (503, "1")
        assert not (tmp_path / "sbf.sock").exists()
        accepted.close()
    hung.close()


def test_sigterm_answers_a_session_that_waits_for_its_agent(tmp_path: Path) -> None:
    path = write_settings(tmp_path, socket=str(tmp_path / "sbf.sock"))
    with (
        running_service(path) as process,
        connect_to_socket(tmp_path / "sbf.sock") as client,
        Client(f"unix://{tmp_path / 'sbf.sock'}") as user,
        ThreadPoolExecutor(1) as threads,
    ):
        client.put("/v1/topology", json=place_switches("127.0.0.1:1")).raise_for_status()
        client.put("/v1/sites/brno/pool", json={"vlans": "100-109"}).raise_for_status()
        request = {"spec": spec("brno-h1").model_dump(mode="json")}
        client.put("/v1/clusters/demo", json=request).raise_for_status()
        session = threads.submit(user.sbf.open_session, "demo", "g1", SessionRequest(kind=SessionKind.LOG))
        while not client.get("/v1/elements/brno-h1/sessions").json():
            assert not session.done(), session.result()
        process.terminate()
        with pytest.raises(ServiceBusy, match="this SBF stops: try again in 1 s"):
            session.result(10)
        assert process.wait(30) == 0
    with closing(sqlite3.connect(tmp_path / "sbf.db")) as database:
        assert database.execute("SELECT count(*) FROM guest_sessions").fetchone() == (0,)


HungCall = tuple[SbfProcess, "Future[httpx.Response]", Callable[[], None]]


@contextmanager
def reading_a_hung_switch(tmp_path: Path) -> Iterator[HungCall]:
    """Yield a service, a call that waits for a silent switch, and a function that closes the switch's connections."""
    hung = socket.create_server(("127.0.0.1", 0))
    accepted: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):  # raised when ``reset`` closes the socket
            while True:
                accepted.append(hung.accept()[0])

    def reset() -> None:
        hung.shutdown(socket.SHUT_RDWR)
        hung.close()
        for opened in accepted:
            opened.close()

    path = write_settings(tmp_path, socket=str(tmp_path / "sbf.sock"))
    with (
        running_service(path) as process,
        connect_to_socket(tmp_path / "sbf.sock") as client,
        ThreadPoolExecutor(2) as threads,
    ):
        # SBF treats a client with httpx's default User-Agent as a client of version 0.1.
        client.headers["user-agent"] = USER_AGENT
        threads.submit(accept)
        client.put("/v1/topology", json=hung_switches(hung)).raise_for_status()
        is_sent = threading.Event()

        def trace(step: str, _about: object) -> None:
            if step == "http11.send_request_body.complete":
                is_sent.set()

        call = threads.submit(client.get, "/v1/elements/brno-sw1/ports", extensions={"trace": trace})
        assert is_sent.wait(30)
        client.get("/healthz").raise_for_status()  # this answer shows that SBF has received the call
        try:
            yield process, call, reset
        finally:
            with suppress(OSError):  # raised if the test has already called ``reset``
                reset()


def hung_switches(hung: socket.socket) -> dict[str, Any]:
    return place_switches(f"127.0.0.1:{hung.getsockname()[1]}")


def place_switches(address: str) -> dict[str, Any]:
    document = three_sites().model_dump(mode="json")
    for site in document["sites"]:
        site["switches"][0] |= {"platform": "linux_bridge", "address": address}
    return document


def test_sigterm_waits_for_a_running_call(tmp_path: Path) -> None:
    with reading_a_hung_switch(tmp_path) as (process, call, reset):
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        reset()
        assert (call.result().status_code, call.result().json()["type"]) == (504, "urn:virtcloud:problem:unreachable")
        assert process.wait(30) == 0


def test_sigterm_answers_a_call_that_lasts_too_long(tmp_path: Path) -> None:
    with reading_a_hung_switch(tmp_path) as (process, call, _):
        process.terminate()
        answer = call.result()
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:virtcloud:problem:service-stopping")
        assert "it is safe to repeat the call" in answer.json()["detail"]
        assert answer.headers["retry-after"] == "1"
        assert process.wait(30) == 0
        assert process.stderr is not None
        log = process.stderr.read()
        assert "call_cancelled" in log
        assert "Traceback" not in log


def test_a_signal_does_not_wait_for_the_change_feed() -> None:
    """The signal interrupts the event loop's thread while this thread holds the lock of the change feed."""
    feed = ChangeFeed()

    async def interrupt() -> None:
        server = SbfServer(uvicorn.Config(FastAPI()))
        server.service = cast("SbfService", SimpleNamespace(change_feed=feed))
        server.loop = asyncio.get_running_loop()
        with feed._lock:
            server.handle_exit(signal.SIGTERM, None)
        with feed.watch("a topic") as closed:
            await closed.wait(30)

    thread = threading.Thread(target=asyncio.run, args=(interrupt(),), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_committed_clusters_survive_a_kill(tmp_path: Path) -> None:
    path = write_settings(tmp_path, socket=str(tmp_path / "sbf.sock"))
    with running_service(path) as process, connect_to_socket(tmp_path / "sbf.sock") as client:
        client.put("/v1/topology", json=place_switches("127.0.0.1:1")).raise_for_status()
        client.put("/v1/sites/brno/pool", json={"vlans": "100-109"}).raise_for_status()
        cluster = client.put("/v1/clusters/demo", json={"spec": spec("brno-h1").model_dump(mode="json")}).json()
        process.kill()
    with running_service(path), connect_to_socket(tmp_path / "sbf.sock") as client:
        again = client.get("/v1/clusters/demo").json()
        assert (again["id"], again["vlans"]) == (cluster["id"], {"brno": 100})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listen": "nowhere"}, "listen: expected an address and a port such as 127.0.0.1:8800"),
        ({"listen": "127.0.0.1:70000"}, "listen = '127.0.0.1:70000': expected a port up to 65535"),
        ({"database": "sqlite:////proc/sbf.db"}, "database sqlite:////proc/sbf.db cannot be opened for writing"),
        ({"database": "oracle"}, "database: "),
        ({"database": "postgresql://sbf:p@ss:w@db/sbf"}, "database: expected an address such as sqlite:///"),
        ({"socket": "/proc/sbf.sock"}, "socket = '/proc/sbf.sock': "),
        ({"workers": "many"}, "workers: expected a valid integer"),
    ],
)
def test_invalid_settings_exit_with_code_2(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    ended = run_sbf("serve", "--config", str(write_settings(tmp_path, **changes)))
    assert ended.returncode == 2
    assert ended.stderr.startswith("sbf: ")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "w@db" not in ended.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"listen": "192.0.2.1:1"}, "this machine does not have the address: set an address of this machine"),
        ({"listen": "a..b:1"}, ": correct the name of the host, or set an IP address"),
        ({"socket": "/tmp/" + "x" * 108}, "AF_UNIX path too long: set another address"),  # noqa: S108 - not created
    ],
)
def test_an_unusable_address_has_a_remedy(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    path = write_settings(tmp_path, **changes)
    path.write_text(f"allow_plaintext = true\n{path.read_text()}")
    ended = run_sbf("serve", "--config", str(path))
    assert ended.returncode == 2
    assert message in ended.stderr


@pytest.mark.parametrize(("make", "kind"), [(Path.touch, "file"), (Path.mkdir, "folder")])
def test_a_file_at_the_sockets_path_is_not_replaced(tmp_path: Path, make: Callable[[Path], object], kind: str) -> None:
    make(tmp_path / "s")
    with pytest.raises(BadInput) as raised:
        _listen_unix(tmp_path / "s")
    assert str(raised.value) == (
        f"socket = '{tmp_path}/s': expected a path without a file, found a {kind} that is no socket: remove it, or set "
        "another path"
    )
    assert (tmp_path / "s").exists()


@pytest.mark.postgresql
def test_sbf_does_not_start_on_a_database_that_refuses_changes(tmp_path: Path, postgresql: str) -> None:
    """SBF writes to the database before it answers calls, and therefore detects a standby server.

    This database needs no migration. The first write is then the ``UPDATE`` of ``repair_claims``.
    """
    read_only = f"{postgresql}&options=-c%20default_transaction_read_only%3Don"
    ended = run_sbf("serve", "--config", str(write_settings(tmp_path, database=read_only)))
    assert ended.returncode == 2
    assert " cannot be opened for writing: cannot execute UPDATE in a read-only transaction" in ended.stderr
    assert (
        "; change the setting 'database' to the address of the primary server, or let the server accept changes"
        in ended.stderr
    )
    assert "listening" not in ended.stderr


def test_the_log_reports_a_database_without_tables(tmp_path: Path) -> None:
    """An operator changed the setting ``database``. The message shows that the new database has no clusters."""
    path = write_settings(tmp_path)
    with running_service(path) as process:
        process.kill()
        assert process.stderr is not None
        assert "database_created" not in process.stderr.read()
    (tmp_path / "sbf.db").unlink()
    with running_service(path) as process:
        assert process.stderr is not None
        assert "database_created" in process.stderr.readline()


def test_the_log_names_an_unreadable_ca_file_of_the_collector(tmp_path: Path) -> None:
    path = write_settings(tmp_path)
    keys = f'[telemetry]\nendpoint = "https://127.0.0.1:1"\nca_file = "{tmp_path}/absent.pem"\n'
    path.write_text(path.read_text() + keys)
    with SbfProcess("serve", "--config", str(path), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert f'traces_not_sent why="telemetry.ca_file {tmp_path}/absent.pem: expected certificates (PEM): No such' in line


def test_the_log_names_an_unreadable_ca_file_of_the_login_provider(tmp_path: Path) -> None:
    path = write_settings(tmp_path)
    keys = f'[console.oidc]\nissuer = "https://127.0.0.1:1"\nclient_id = "sbf"\nca_file = "{tmp_path}/absent.pem"\n'
    path.write_text(path.read_text() + keys + '[console.oidc.roles]\nuser_claim = "uid"\n')
    with running_service(path) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        line = next(line for line in lines if "oidc_unusable" in line or "ready" in line)
    assert (
        f'oidc_unusable why="console.oidc.ca_file {tmp_path}/absent.pem: expected certificates (PEM): No such' in line
    )


def test_missing_settings_exit_with_code_2(tmp_path: Path) -> None:
    ended = start_interpreter("serve", "--config", str(tmp_path / "none.toml"))
    remedy = "name the settings file with --config, or correct its rights"
    message = f"sbf: {tmp_path}/none.toml: cannot be read: No such file or directory; {remedy}\n"
    assert (ended.returncode, ended.stderr) == (2, message)


def test_a_port_in_use_exits_with_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        ended = run_sbf("serve", "--config", str(write_settings(tmp_path, listen=address)))
    assert ended.returncode == 2
    assert ended.stderr == (
        f"sbf: listen = '{address}': in use by another process: stop that process, or set another address\n"
    )


def test_the_log_shows_the_port_that_the_kernel_chose(tmp_path: Path) -> None:
    path = write_settings(tmp_path, listen="127.0.0.1:0")
    with SbfProcess("serve", "--config", str(path), stderr=subprocess.PIPE) as process:
        address = process.read_address()
        process.kill()
    assert re.fullmatch(r"127\.0\.0\.1:[1-9][0-9]*", address)


def test_only_a_socket_without_a_running_service_is_replaced(tmp_path: Path) -> None:
    path = write_settings(tmp_path, socket=str(tmp_path / "sbf.sock"))
    with running_service(path) as process:
        second = tmp_path / "second"
        second.mkdir()
        ended = run_sbf("serve", "--config", str(write_settings(second, socket=str(tmp_path / "sbf.sock"))))
        assert ended.returncode == 2
        assert "in use by another process" in ended.stderr
        process.kill()
    with running_service(path), connect_to_socket(tmp_path / "sbf.sock") as client:
        assert client.get("/healthz").status_code == 200


def test_a_removed_socket_file_is_created_again(tmp_path: Path) -> None:
    file = tmp_path / "run/sbf.sock"
    with running_service(write_settings(tmp_path, socket=str(file))) as process, connect_to_socket(file) as former:
        assert former.get("/healthz").status_code == 200
        file.unlink()
        wait_for_file(file)
        with connect_to_socket(file) as client:
            assert client.get("/healthz").status_code == 200
        assert stat.S_IMODE(file.stat().st_mode) == 0o660
        assert former.get("/healthz").status_code == 200
        process.terminate()
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "socket_file_replaced" in process.stderr.read()
    assert not file.exists()


def test_a_failed_recreation_of_a_socket_file_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "run/sbf.sock"

    async def lose_folder() -> None:
        sockets, servers = [_listen_unix(file)], list[asyncio.Server]()
        listeners = LocalListeners(sockets, servers, asyncio.Protocol)
        await listeners.start()
        shutil.rmtree(file.parent)
        file.parent.write_text("a file instead of the folder")
        for _ in range(2):
            await listeners.replace_lost()
        file.parent.unlink()
        await listeners.replace_lost()
        assert (len(servers), file.is_socket()) == (1, True)
        servers[0].close()

    asyncio.run(lose_folder())
    assert [record.message.split()[0] for record in caplog.records] == ["socket_file_lost", "socket_file_replaced"]
    assert "set another address" in caplog.text


@contextmanager
def holding_lock(path: Path, flags: int) -> Iterator[None]:
    """Hold the lock of a file or folder, as another process can (`flock PATH sleep infinity`)."""
    descriptor = os.open(path, flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_file_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.lock")


def test_a_lock_of_the_folder_does_not_prevent_the_start(tmp_path: Path) -> None:
    """Every user who can read a folder can lock the folder."""
    settings = ServiceSettings.model_validate({"listen": "127.0.0.1:0", "socket": str(tmp_path / "sbf.sock")})
    opened = list[socket.socket]()
    with holding_lock(tmp_path, os.O_RDONLY | os.O_DIRECTORY):
        start = threading.Thread(target=lambda: opened.extend(listen(settings)), daemon=True)
        start.start()
        start.join(10)
        assert not start.is_alive()
    assert [each.family for each in opened] == [socket.AF_UNIX, socket.AF_INET]
    for each in opened:
        each.close()


def test_the_lock_of_a_socket_is_closed_to_other_users(tmp_path: Path) -> None:
    file = tmp_path / "sbf.sock"
    _listen_unix(file).close()
    status = lock_file_of(file).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, tmp_path.stat().st_uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of a folder")
def test_the_services_user_can_lock_after_root(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    _listen_unix(tmp_path / "sbf.sock").close()
    status = lock_file_of(tmp_path / "sbf.sock").stat()
    assert (status.st_uid, status.st_gid) == (65534, 65534)


def test_a_locked_socket_is_refused_after_a_wait(tmp_path: Path) -> None:
    file = tmp_path / "sbf.sock"
    _listen_unix(file).close()
    lock = lock_file_of(file)
    with holding_lock(lock, os.O_RDWR), pytest.raises(BadInput) as raised:
        _listen_unix(file, patience=0.2)
    assert str(raised.value) == (
        f"socket = '{file}': expected to lock the file {lock}, but another process holds the lock: end that process "
        f"(fuser {lock}), or set another path"
    )


def test_a_symbolic_link_is_no_lock_file(tmp_path: Path) -> None:
    """In a folder such as `/tmp`, another user could create the link."""
    target = tmp_path / "target"
    target.write_text("content")
    lock_file_of(tmp_path / "sbf.sock").symlink_to(target)
    with pytest.raises(BadInput, match=r"socket = '.*/sbf\.sock': lock file .*\.lock: Too many levels"):
        _listen_unix(tmp_path / "sbf.sock")
    assert target.read_text() == "content"


@pytest.mark.parametrize("locked", ["folder", "lock file"])
def test_a_lock_does_not_stop_a_running_service(tmp_path: Path, caplog: pytest.LogCaptureFixture, locked: str) -> None:
    file = tmp_path / "sbf.sock"
    events = {"folder": ["socket_file_replaced"], "lock file": ["socket_file_lost", "socket_file_replaced"]}

    async def lose_file() -> None:
        sockets, servers = [_listen_unix(file)], list[asyncio.Server]()
        listeners = LocalListeners(sockets, servers, asyncio.Protocol)
        await listeners.start()
        file.unlink()
        lock = (tmp_path, os.O_RDONLY | os.O_DIRECTORY) if locked == "folder" else (lock_file_of(file), os.O_RDWR)
        with holding_lock(*lock):
            started = time.monotonic()
            for _ in range(2):
                await listeners.replace_lost()
            assert time.monotonic() - started < 1
        await listeners.replace_lost()
        assert (len(servers), file.is_socket()) == (1, True)
        servers[0].close()

    asyncio.run(lose_file())
    assert [record.message.split()[0] for record in caplog.records] == events[locked]


def wait_for_file(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stopping_service_keeps_the_socket_of_its_successor(tmp_path: Path) -> None:
    file = tmp_path / "sbf.sock"
    with running_service(write_settings(tmp_path, socket=str(file))) as process, socket.socket(socket.AF_UNIX) as busy:
        with connect_to_socket(file) as client:
            client.get("/healthz")  # an answer shows that the service handles signals
        busy.connect(str(file))
        busy.sendall(b"POST /console/login HTTP/1.1\r\nhost: sbf\r\ncontent-length: 9\r\n\r\n")  # the body is missing
        process.terminate()
        with open_when_free(file) as successor:
            assert process.poll() is None
            busy.close()
            process.wait(30)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(file))
            successor.accept()[0].close()


def open_when_free(file: Path) -> socket.socket:
    deadline = time.monotonic() + 30
    while True:
        try:
            return _listen_unix(file)
        except BadInput:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_socket_file_survives_a_second_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second start begins after the first start has bound its socket, and before this socket listens."""
    file, chmod = tmp_path / "sbf.sock", Path.chmod
    refused: list[BadInput] = []

    def start() -> None:
        try:
            _listen_unix(file).close()
        except BadInput as error:
            refused.append(error)

    second = threading.Thread(target=start)

    def change_mode(path: Path, mode: int) -> None:
        monkeypatch.setattr(Path, "chmod", chmod)
        second.start()
        second.join(0.2)
        path.chmod(mode)

    monkeypatch.setattr(Path, "chmod", change_mode)
    with _listen_unix(file):
        second.join(30)
        assert len(refused) == 1


def test_the_unix_socket_opens_before_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may wait until the TCP port is open, and then use the AF_UNIX socket."""
    settings = ServiceSettings.model_validate({"database": "sqlite://", "socket": str(tmp_path / "sbf.sock")})
    addresses: list[str] = []

    def listen_tcp(address: str) -> socket.socket:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(settings.socket))
        addresses.append(address)
        return _listen_tcp(ListenAddress("127.0.0.1:0"))

    monkeypatch.setattr("sbf_service.listen_sockets._listen_tcp", listen_tcp)
    for opened in listen(settings):
        opened.close()
    assert addresses == [settings.listen]


def test_openapi_prints_the_document_without_a_database() -> None:
    ended = start_interpreter("openapi")
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["info"]["title"] == "SBF"


def test_the_listening_socket_names_its_protocol_tcp() -> None:
    with _listen_tcp(ListenAddress("127.0.0.1:0")) as opened:
        assert opened.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("trusted", "logged"),
    [("", "127.0.0.1"), ('trusted_proxies = ["127.0.0.0/8"]\n', "192.0.2.9")],
    ids=["not set", "set"],
)
def test_only_trusted_proxies_may_name_the_caller(tmp_path: Path, trusted: str, logged: str) -> None:
    path = write_settings(tmp_path)
    path.write_text(path.read_text() + trusted)
    with running_service(path) as process:
        headers = {"x-forwarded-for": "192.0.2.9", "authorization": "Bearer wrong"}
        assert httpx.get(f"http://{process.address}/v1/whoami", headers=headers, timeout=60).status_code == 401
        assert process.stderr is not None
        assert process.stderr.readline().split()[-2] == f"address={logged}"  # the last word is the request ID


def test_a_forwarded_call_does_not_count_as_local(tmp_path: Path) -> None:
    path = write_settings(tmp_path)
    with running_service(path) as process, httpx.Client(base_url=f"http://{process.address}", timeout=60) as client:
        forwarded = client.get("/metrics", headers={"x-forwarded-for": "192.0.2.9"})
        assert (forwarded.status_code, client.get("/metrics").status_code) == (401, 200)


def test_sighup_applies_settings_and_names_those_that_need_a_restart(tmp_path: Path) -> None:
    path = write_settings(tmp_path)
    settings = path.read_text()
    with running_service(path) as process:
        assert process.stderr is not None
        path.write_text(settings.replace("listen = ", "workers = 3\nlisten = ").replace("127.0.0.1", "localhost"))
        process.send_signal(signal.SIGHUP)
        lines = [process.stderr.readline()]
        while "settings_reloaded" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1]
        assert any("setting_changed key=workers former=64 new=3" in line for line in lines), lines
        assert any("setting_needs_restart key=listen running=127.0.0.1:" in line for line in lines), lines


def test_sigterm_answers_the_waiting_polls(tmp_path: Path) -> None:
    path = write_settings(tmp_path, socket=str(tmp_path / "run" / "sbf.sock"))
    polls = 30
    with running_service(path) as process, connect_to_socket(tmp_path / "run" / "sbf.sock") as client:
        newest = client.get("/v1/audit").json()
        after = max((entry["id"] for entry in newest), default=0)
        with ThreadPoolExecutor(polls) as threads:
            started = threading.Barrier(polls + 1)

            def poll() -> httpx.Response:
                with connect_to_socket(tmp_path / "run" / "sbf.sock") as own:
                    own.get("/healthz", timeout=60)
                    started.wait(60)
                    # SBF treats a client with httpx's default User-Agent as a client of version 0.1.
                    own.headers["user-agent"] = USER_AGENT
                    return own.get(f"/v1/audit?after={after + 9999}&wait=60", timeout=60)

            answers = [threads.submit(poll) for _ in range(polls)]
            started.wait(60)
            await_waiters(client, polls)
            process.send_signal(signal.SIGTERM)
            answered = [answer.result() for answer in answers]
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert {(answer.status_code, answer.json()["type"]) for answer in answered} == {
        (503, "urn:virtcloud:problem:service-stopping")
    }
    assert {answer.headers["retry-after"] for answer in answered} == {"1"}


def await_waiters(client: httpx.Client, count: int) -> None:
    deadline = time.monotonic() + 20
    while f"virtcloud_waiting_polls {count}.0" not in client.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.02)
