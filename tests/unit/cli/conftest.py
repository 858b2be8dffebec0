"""Fixtures: a fake SBF in memory that answers over real HTTP, and a function that runs commands with this SBF."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from cli_calls import RunCommand
from click.testing import CliRunner, Result
from fake_machine.clusters import FakeSbf

from virtcloud.cli import main


@pytest.fixture
def sbf() -> Iterator[FakeSbf]:
    sbf = FakeSbf()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            sbf.matched += self.headers.get_all("if-match", [])
            status, content = sbf.answer(self.command, self.path, body)
            self.send_response(status)
            if self.path.endswith("/topology"):
                self.send_header("etag", '"7"' if self.path == "/v1/topology" else '"abc"')
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        sbf.url = f"http://127.0.0.1:{server.server_port}"
        yield sbf
        server.shutdown()
        thread.join()


@pytest.fixture
def run(sbf: FakeSbf) -> RunCommand:
    def call(*arguments: str, stdin: str | None = None, url: str | None = None) -> Result:
        return CliRunner(env={"COLUMNS": "100"}).invoke(main, ["--url", url or sbf.url, *arguments], input=stdin)

    return call
