"""Fixtures: a real SBF on a Unix socket, a scripted HTTP server, and a client of this server."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_machine.script import Script
from real_sbf import running_sbf

from virtcloud.client.sbf import SbfClient


@pytest.fixture
def script() -> Iterator[Script]:
    scripted = Script()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            scripted.asked.append((self.command, self.path, body))
            scripted.headers.append({name.lower(): value for name, value in self.headers.items()})
            status, kind, content = scripted.answers.pop(0)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        scripted.url = f"http://127.0.0.1:{server.server_port}"
        yield scripted
        server.shutdown()
        thread.join()


@pytest.fixture
def client(script: Script) -> Iterator[SbfClient]:
    with SbfClient(script.url, timeout=2) as connected:
        yield connected


@pytest.fixture(scope="module")
def sbf() -> Iterator[str]:
    """The address of a real SBF with an empty database."""
    with running_sbf() as address:
        yield address
