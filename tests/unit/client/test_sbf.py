"""Tests of the client with a scripted HTTP server."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from support.fake_machine.script import Script

from sbf_service.drivers.device_errors import LoginRefused
from virtcloud.client import http_clients
from virtcloud.client.api import Client
from virtcloud.client.cluster import Cluster
from virtcloud.client.http_clients import ProcessHttpClient, TlsTrust
from virtcloud.client.http_errors import error_of_answer
from virtcloud.client.sbf import SbfClient
from virtcloud.model.errors import (
    BadInput,
    Conflict,
    Forbidden,
    Gone,
    NoSuchCall,
    NotFound,
    NoVlanFree,
    Refused,
    ServiceUnreachable,
    TooManyRequests,
    Unreachable,
    Unsafe,
    VirtcloudError,
)
from virtcloud.model.guest_sessions import GuestSession, SessionKind, SessionRequest
from virtcloud.model.image import ImageContent
from virtcloud.model.views import ClusterView, Confirmation

POOL = '{"vlans": "100-199"}'
SITE = '{"name": "brno", "pool": "1", "claimed": "", "quarantined": "", "free": "1", "later": {"a": 1}}'
TOPOLOGY = """{"name": "small", "sites": [{"name": "brno",
    "switches": [{"name": "s", "ports": ["p"], "platform": "x", %s}]}]}"""
WANTED = '{"element": "h1", "revision": 3, "confirmed_revision": 2, "wanted": {"segments": []}}'


def test_calls_and_sessions_keep_the_path_of_the_url(script: Script) -> None:
    """The console session fails, because the scripted server uses HTTP/1.0."""
    for _ in range(2):
        script.problem(403, "forbidden", "not here")
    with SbfClient(f"{script.url}/sbf/") as client:
        wanted = SessionRequest(kind=SessionKind.CONSOLE)
        for call in (client.whoami, lambda: client.open_session("demo", "g1", wanted)):
            with pytest.raises((Forbidden, ServiceUnreachable)):
                call()
    paths = [path.partition("?")[0] for _, path, _ in script.asked]
    assert paths == ["/sbf/v1/whoami", "/sbf/v1/clusters/demo/guests/g1/session"]


@contextmanager
def count_connections() -> Iterator[tuple[str, list[int]]]:
    """Serve a pool, and keep connections open. Yield the server's address, and the client's port of each connection."""
    ports: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            ports.append(self.client_address[1])

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(POOL)))
            self.end_headers()
            self.wfile.write(POOL.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", ports
        finally:
            server.shutdown()
            thread.join()


def test_a_forked_process_opens_its_own_connection() -> None:
    """If two processes used one connection, a process could receive the answer to a call of the other process."""
    with count_connections() as (url, ports), SbfClient(url) as client:
        client.pool("brno")
        process = os.fork()
        if process == 0:
            with ExitStack() as stack:
                stack.callback(os._exit, 1)
                client.pool("brno")
                os._exit(0)
        assert os.waitpid(process, 0) == (process, 0)
        client.pool("brno")
    assert len(ports) == 2


@contextmanager
def as_forked_process(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the block with another process ID, as after a fork."""
    with patch.context() as changed:
        changed.setattr(http_clients, "os", SimpleNamespace(getpid=lambda: 0))
        yield


def test_threads_of_a_forked_process_use_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the connections of one client would remain open after the end of the process's work."""
    built, second = http_clients.build_http_client, threading.Event()
    started = threading.Event()

    def build(url: str, trust: TlsTrust) -> httpx.Client:
        if threading.current_thread().name == "first":
            started.set()
            second.wait()
        return built(url, trust)

    clients = ProcessHttpClient("http://sbf", TlsTrust())
    found: list[httpx.Client] = []
    first = threading.Thread(target=lambda: found.append(clients.get()), name="first")
    monkeypatch.setattr(http_clients, "build_http_client", build)
    with as_forked_process(monkeypatch):
        first.start()
        started.wait()
        found.append(clients.get())
        second.set()
        first.join()
        assert found[0] is found[1] is clients.get()


def test_a_forked_process_without_calls_closes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its `with` block must not fail because a certificate has been removed since the fork."""
    clients = ProcessHttpClient("http://sbf", TlsTrust())
    monkeypatch.setattr(http_clients, "build_http_client", None)
    with as_forked_process(monkeypatch):
        clients.close()
        assert clients.is_closed
    assert not clients.get().is_closed


def test_a_closed_client_is_closed_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SbfClient("http://sbf")
    client.close()
    with as_forked_process(monkeypatch), pytest.raises(BadInput, match="this client is closed"):
        client.pool("brno")


def test_https_to_a_plain_port_suggests_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with SbfClient(f"https://{host}:{port}") as client, pytest.raises(ServiceUnreachable) as raised:
            client.whoami()
        thread.join()
    assert f"the server at https://{host}:{port} does not use TLS" in str(raised.value)
    assert f"--url http://{host}:{port} or VIRTCLOUD_URL" in str(raised.value)


def test_a_client_with_another_timeout_shares_the_connections() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        SbfClient(f"http://127.0.0.1:{server.getsockname()[1]}") as client,
    ):

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                for _ in range(2):
                    peer.recv(65536)
                    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(POOL)}"
                    peer.sendall(f"{head}\r\n\r\n{POOL}".encode())
                peer.recv(65536)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            pools = [str(one.pool("brno").vlans) for one in (client, client.with_timeout(5))]
            with pytest.raises(ServiceUnreachable):
                client.with_timeout(0.01).pool("brno")
        finally:
            client.close()
            thread.join()
    assert pools == ["100-199", "100-199"]


def test_a_document_is_read(client: SbfClient, script: Script) -> None:
    script.answer(200, POOL)
    assert str(client.pool("brno").vlans) == "100-199"
    assert script.asked == [("GET", "/v1/sites/brno/pool", b"")]


FILTERED_LISTS: list[Callable[[SbfClient], object]] = [
    lambda client: next(client.cluster_pages(state="failed")),
    lambda client: next(client.cluster_pages(site="brno")),
    lambda client: next(client.cluster_pages(element="brno-h1")),
    lambda client: next(client.element_pages(troubled=True)),
    lambda client: next(client.token_pages(role="agent")),
    lambda client: next(client.audit_pages(who="eva")),
    lambda client: client.audit(request_id="a1"),
]


@pytest.mark.parametrize("read", FILTERED_LISTS)
def test_a_filter_that_an_older_sbf_ignores_is_refused(
    client: SbfClient, script: Script, read: Callable[[SbfClient], object]
) -> None:
    """The lists of version 0.2.0 have no entity tag, and that version ignores unknown query parameters."""
    script.answer(200, "[]")
    with pytest.raises(NoSuchCall, match=r"ignores the filter .* upgrade SBF first"):
        read(client)


def test_filters_that_an_older_sbf_supports_are_accepted(client: SbfClient, script: Script) -> None:
    reads: list[Callable[[], object]] = [
        lambda: next(client.cluster_pages("eva", ended=True)),
        lambda: next(client.audit_pages("brno-h1", "demo")),
        lambda: client.audit("brno-h1", after=3, wait=1),
        lambda: next(client.element_pages()),
    ]
    for read in reads:
        script.answer(200, "[]")
        assert read() == []


def test_a_confirmation_is_sent(client: SbfClient, script: Script) -> None:
    script.answer(204, "")
    client.confirm("h1", Confirmation(revision=7))
    assert script.asked == [("POST", "/v1/elements/h1/confirmed", b'{"revision":7}')]


def test_an_error_report_is_sent_with_its_message(client: SbfClient, script: Script) -> None:
    script.answer(204, "")
    client.report_error("h1", 7, "no uplink")
    assert script.asked == [("POST", "/v1/elements/h1/trouble", b'{"revision":7,"message":"no uplink"}')]


def test_a_long_poll_sends_its_version_and_its_wait(client: SbfClient, script: Script) -> None:
    script.answer(200, WANTED)
    client.wanted("h1", after=2, wait=30)
    assert script.asked[0][1] == "/v1/elements/h1/wanted?after=2&wait=30"


def test_a_long_poll_never_asks_for_more_than_a_minute(client: SbfClient, script: Script) -> None:
    script.answer(200, WANTED)
    client.wanted("h1", after=2, wait=600)
    assert script.asked[0][1].endswith("wait=60.0")


def test_a_first_fetch_does_not_wait(client: SbfClient, script: Script) -> None:
    script.answer(200, WANTED)
    client.wanted("h1", wait=30)
    assert script.asked[0][1] == "/v1/elements/h1/wanted"


@pytest.mark.parametrize(
    ("slug", "kind"),
    [
        ("bad-input", BadInput),
        ("not-found", NotFound),
        ("conflict", Conflict),
        ("no-vlan-free", NoVlanFree),
        ("gone", Gone),
        ("refused", Refused),
        ("unsafe", Unsafe),
        ("something-newer", Conflict),
    ],
)
def test_the_exception_that_sbf_raised_is_raised_again(
    client: SbfClient, script: Script, slug: str, kind: type[VirtcloudError]
) -> None:
    assert LoginRefused.slug == Refused.slug  # for this slug, the client must raise the base class Refused
    script.problem(409, slug, "no VLAN is free at brno")
    with pytest.raises(VirtcloudError, match="no VLAN is free at brno") as raised:
        client.topology()
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, Forbidden),
        (404, NotFound),
        (410, Gone),
        (422, BadInput),
        (428, VirtcloudError),
        (429, TooManyRequests),
        (503, ServiceUnreachable),
        (504, Unreachable),
    ],
)
def test_an_unknown_problem_type_becomes_the_error_of_its_status(
    client: SbfClient, script: Script, status: int, kind: type[VirtcloudError]
) -> None:
    script.problem(status, "something-newer", "words")
    with pytest.raises(VirtcloudError, match="words") as raised:
        client.topology()
    assert type(raised.value) is kind


def test_an_unknown_call_is_not_reported_as_a_missing_object(client: SbfClient, script: Script) -> None:
    script.problem(404, "no-such-route", "POST /v1/topology/dry-run: not found; see /docs")
    with pytest.raises(VirtcloudError, match="it is older than this client") as raised:
        client.topology()
    assert type(raised.value) is NoSuchCall


def test_an_address_with_the_apis_version_is_bad_input() -> None:
    problem = b'{"type": "urn:virtcloud:problem:no-such-route", "detail": "GET /v1/v1/sites: not found"}'
    error = error_of_answer("http://sbf:8800/v1/", 404, problem, "/v1/v1/sites")
    assert (type(error), "expected an address without /v1" in str(error)) == (BadInput, True)


def test_a_client_names_itself_and_its_version(client: SbfClient, script: Script) -> None:
    script.answer(200, POOL)
    client.pool("brno")
    assert script.headers[0]["user-agent"] == "virtcloud/0.3.0"


def test_unknown_keys_of_answers_are_ignored_at_every_depth(client: SbfClient, script: Script) -> None:
    segment = {"id": "1", "key": "a", "vlan": 100, "port": "eth0", "later": 1, "guests": []}
    script.answer(200, json.dumps(json.loads(WANTED) | {"wanted": {"segments": [segment], "later": {}}, "later": []}))
    (read,) = client.wanted("h1").wanted.segments
    assert (read.key, read.vlan) == ("a", 100)


def test_unknown_keys_in_a_list_of_answers_are_ignored(client: SbfClient, script: Script) -> None:
    script.answer(200, f"[{SITE}]")
    assert [site.name for site in client.sites()] == ["brno"]


def test_a_client_refuses_to_change_a_topology_with_unknown_keys(client: SbfClient, script: Script) -> None:
    script.answer(200, TOPOLOGY % '"guards": ["bob"]')
    with pytest.raises(Conflict, match=r"does not know sites\.0\.switches\.0\.guards at /v1/topology"):
        client.versioned_topology()


def test_a_client_reads_a_topology_with_unknown_keys(client: SbfClient, script: Script) -> None:
    script.answer(200, TOPOLOGY % '"guards": ["bob"]')
    assert client.topology().name == "small"


@pytest.mark.parametrize("nothing", ["null", "[]", "{}"])
def test_an_unknown_key_without_a_value_allows_a_change(client: SbfClient, script: Script, nothing: str) -> None:
    script.answer(200, TOPOLOGY % f'"guards": {nothing}')
    assert client.versioned_topology()[0].name == "small"


def test_an_error_without_a_problem_document_is_not_from_sbf(client: SbfClient, script: Script) -> None:
    script.answer(502, "<html>Bad Gateway</html>", "text/html")
    with pytest.raises(ServiceUnreachable, match=r"is not SBF: HTTP 502 for /v1/topology; check the address"):
        client.topology()


def test_an_invalid_answer_suggests_different_versions(client: SbfClient, script: Script) -> None:
    script.answer(200, '{"pools": []}')
    with pytest.raises(ServiceUnreachable, match="is not an SBF of this version"):
        client.pool("brno")


def test_a_refused_connection_has_a_remedy() -> None:
    with SbfClient("http://127.0.0.1:1") as client, pytest.raises(ServiceUnreachable) as raised:
        client.sites()
    assert str(raised.value) == (
        "SBF does not answer at http://127.0.0.1:1: Connection refused; check that SBF runs (systemctl status "
        "virtcloud-sbf) and that the address is correct (--url or VIRTCLOUD_URL). Running clusters are not affected"
    )


def test_an_upload_to_a_silent_replica_names_the_replica(client: SbfClient) -> None:
    session = {"kind": "clone", "image": "mine", "number": 1, "id": "x", "network": "n", "guest": "g1"}
    session["address"] = "http://127.0.0.1:1"
    content = {"sha256": "0" * 64, "size": 1, "format": "tar.gz", "architecture": "x86_64"}
    with pytest.raises(ServiceUnreachable, match=r"SBF does not answer at http://127\.0\.0\.1:1:"):
        client.upload_clone("h1", GuestSession.model_validate(session), ImageContent.model_validate(content), [b"x"])


def test_a_server_that_accepts_no_connection_ends_the_call(tmp_path: Path) -> None:
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(f"{tmp_path}/sbf.sock")
        listening.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(f"{tmp_path}/sbf.sock")
        client = stack.enter_context(SbfClient(f"unix://{tmp_path}/sbf.sock", 0.2))
        with pytest.raises(ServiceUnreachable):
            client.sites()


def test_a_missing_socket_has_a_remedy(tmp_path: Path) -> None:
    with SbfClient(f"unix://{tmp_path}/sbf.sock") as client, pytest.raises(ServiceUnreachable, match="No such file"):
        client.sites()


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user: needs root")
def test_a_denied_socket_is_reported_as_a_permission_error(tmp_path: Path) -> None:
    with (
        SbfClient(f"unix://{tmp_path}/sbf.sock") as client,
        acting_as(65534),
        pytest.raises(ServiceUnreachable) as raised,
    ):
        client.sites()
    assert str(raised.value).startswith(
        f"no permission to open SBF's socket at unix://{tmp_path}/sbf.sock: Permission denied; SBF itself may be "
        "running."
    )
    assert "Become a member of the socket's group" in str(raised.value)


def test_a_hanging_service_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with SbfClient(address, timeout=0.2) as client, pytest.raises(ServiceUnreachable, match="it timed out"):
            client.sites()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "url", ["", "sbf", "ftp://sbf", "http://", "unix://", "unix://host", "http://[::1", "8800", "http://sbf:65536"]
)
def test_an_invalid_address_is_bad_input(url: str) -> None:
    with pytest.raises(BadInput, match="is not an address of SBF"):
        SbfClient(url)


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(
        BadInput, match="expected no user name and no password, got a user name or a password: use a token file"
    ) as refusal:
        SbfClient("http://alice:secret@sbf")
    assert "secret" not in str(refusal.value)


def test_a_call_after_the_with_block_is_bad_input(script: Script) -> None:
    with SbfClient(script.url) as client:
        pass
    with pytest.raises(BadInput, match="this client is closed: expected all calls before the client is closed"):
        client.sites()


def test_a_malformed_name_is_not_sent(client: SbfClient, script: Script) -> None:
    with pytest.raises(BadInput):
        client.cluster("../elements")
    assert script.asked == []


def cluster_view(state: str = "draining") -> str:
    spec = {"owner": "eva", "hosts": ["brno-h1"]}
    ends = "2026-07-01T12:00:00Z"
    view = {"key": "demo", "id": "c1", "attempt": 2, "version": 5, "state": state, "vlans": {}, "lease_ends": ends}
    return json.dumps(view | {"spec": spec, "placements": []})


def test_a_cluster_is_deleted_by_its_key_once(script: Script) -> None:
    script.answer(202, cluster_view())
    with Client(script.url) as client:
        client.delete("demo")
    assert [request[:2] for request in script.asked] == [("DELETE", "/v1/clusters/demo")]


def test_a_cluster_is_deleted_by_attempt_owner_and_id(script: Script) -> None:
    script.answer(202, cluster_view())
    with Client(script.url) as client:
        Cluster(client.sbf, ClusterView.model_validate_json(cluster_view("active"))).delete()
    assert script.asked[0][1] == "/v1/clusters/demo?attempt=2&owner=eva&id=c1"
