"""Tests of an open page while SBF is killed and started again."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page
from support.migrated import create_sqlite
from support.programs.sbf_process import SbfProcess, run_sbf
from support.sbf_fakes.browser_visit import Visit

from virtcloud.client.sbf import SbfClient
from virtcloud.model.topology import Topology

LOST = "#live-state.lost"
CONNECTED = "#live-state:not([hidden]):not(.lost)"
TIMEOUT_MS = 60_000


class KilledSbf:
    """A real SBF on a port of the loopback interface. A test kills and starts SBF."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = find_port()
        database = f"sqlite:///{folder}/sbf.db"
        create_sqlite(database)
        for name, port in (("sbf", self.port), ("other", find_port())):
            lines = [f'database = "{database}"', f'listen = "127.0.0.1:{port}"', f'socket = "{folder}/{name}.sock"']
            (folder / f"{name}.toml").write_text("\n".join([*lines, ""]))
        created = run_sbf("token", "create", "eva", "--role", "operator", "--config", str(folder / "sbf.toml"))
        assert created.returncode == 0, created
        self.token = created.stdout.strip()
        self.process: SbfProcess | None = None

    def start(self, name: str = "sbf") -> None:
        """Start SBF, and wait until SBF answers. The SBF named ``other`` has the same database, but another port."""
        with (self.folder / "log").open("a") as log:
            self.process = SbfProcess("serve", "--config", str(self.folder / f"{name}.toml"), stderr=log)
        with SbfClient(f"unix://{self.folder}/{name}.sock") as client:
            while not (self.folder / f"{name}.sock").is_socket() or not answers(client):
                assert self.process.poll() is None, (self.folder / "log").read_text()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
        for path in self.folder.glob("*.sock"):
            path.unlink()

    def put_site(self, site: str) -> None:
        """While SBF is dead, store a topology with one site through a second SBF on the same database."""
        self.start("other")
        with SbfClient(f"unix://{self.folder}/other.sock") as client:
            client.put_topology(Topology.model_validate({"name": "small", "sites": [{"name": site}]}))
        self.kill()


def find_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port: int = probe.getsockname()[1]
        return port


def answers(client: SbfClient) -> bool:
    from virtcloud.model.errors import ServiceUnreachable  # noqa: PLC0415

    try:
        client.whoami()
    except ServiceUnreachable:
        return False
    return True


@contextmanager
def proxy_without_sbf(port: int) -> Iterator[threading.Event]:
    """Answer every request with 503, as a proxy does while SBF restarts. Yield an event that the first answer sets."""
    answered = threading.Event()

    class Unavailable(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)
            answered.set()

        def log_message(self, *_: object) -> None:
            pass

    HTTPServer.allow_reuse_address = True
    with HTTPServer(("127.0.0.1", port), Unavailable) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield answered
        server.shutdown()
        thread.join()


@pytest.fixture
def sbf(tmp_path: Path) -> Iterator[KilledSbf]:
    made = KilledSbf(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def page(chromium: Browser, sbf: KilledSbf) -> Iterator[Page]:
    context = chromium.new_context()
    visit = Visit(context.new_page(), f"http://127.0.0.1:{sbf.port}")
    visit.page.set_default_timeout(TIMEOUT_MS)
    visit.log_in(sbf.token)
    visit.page.locator(CONNECTED).wait_for()
    visit.page.evaluate("window.notReloaded = true")
    yield visit.page
    context.close()


def test_a_page_continues_after_a_restart_of_sbf(page: Page, sbf: KilledSbf) -> None:
    """The topology changes while SBF is dead, so the page receives no event about the change."""
    sbf.kill()
    page.locator(LOST).wait_for()
    assert re.search(r"The connection to SBF was lost at 20\d\d-\d\d-\d\d [\d:]{8} UTC", page.inner_text("#live-state"))
    sbf.put_site("brno")
    sbf.start()
    page.locator("th a", has_text="brno").wait_for()
    page.locator(CONNECTED).wait_for()
    assert page.evaluate("window.notReloaded") is True


def test_a_page_continues_after_errors_of_a_proxy(page: Page, sbf: KilledSbf) -> None:
    """After an answer with an error, a browser does not reopen a stream of events. The page must reopen the stream."""
    sbf.kill()
    with proxy_without_sbf(sbf.port) as answered:
        page.locator(LOST).wait_for()
        while not answered.is_set():
            page.wait_for_timeout(50)
        assert page.locator("h1", has_text="Overview").is_visible()
    sbf.put_site("praha")
    sbf.start()
    page.locator("th a", has_text="praha").wait_for()
    page.locator(CONNECTED).wait_for()


def test_a_silent_connection_is_opened_again(chromium: Browser, sbf: KilledSbf) -> None:
    """The browser's clock advances by 160 s without an event, as when a laptop sleeps."""
    context = chromium.new_context()
    visit = Visit(context.new_page(), f"http://127.0.0.1:{sbf.port}")
    visit.page.clock.install()
    visit.log_in(sbf.token)
    visit.page.locator(CONNECTED).wait_for()
    requests: list[str] = []
    context.on("request", lambda request: requests.append(request.url))
    visit.page.clock.fast_forward(120_000)
    visit.page.clock.fast_forward(40_000)
    visit.page.locator(CONNECTED).wait_for()
    assert any(urlsplit(url).path == "/console/events" for url in requests)
    context.close()
