"""A server that replaces SBF on a socket: it serves an agent's wanted document, and records confirmations."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from virtcloud.model.wanted import HostWanted, WantedDocument


class WantedServer:
    """The wanted document of one element, as SBF would serve it. Each change increments the document's revision."""

    def __init__(self, element: str) -> None:
        self._element = element
        self._wanted, self._revision, self._confirmed = HostWanted(), 1, 0
        self._changed = threading.Condition()
        self.polls = 0
        """Number of requests for the document."""
        self.reports: list[tuple[str, Any]] = []
        """All reports of the agent, including confirmations.

        Each report is a pair: the last component of the request's path, and the JSON document.
        """

    def change(self, wanted: HostWanted) -> None:
        with self._changed:
            self._wanted, self._revision = wanted, self._revision + 1
            self._changed.notify_all()

    def wait_until_confirmed(self, limit_s: float = 30) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self._confirmed == self._revision, limit_s)
            assert done, self.reports[-3:]

    def get(self, path: str) -> bytes | None:
        """Return the answer to a GET, or None for an unknown path. Like SBF, wait for a revision above ``after``."""
        parts = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if not parts.path.endswith("/wanted"):
            return None
        with self._changed:
            self.polls += 1
            after = int(query.get("after", 0))
            self._changed.wait_for(lambda: self._revision > after, float(query.get("wait", 0)))
            document = WantedDocument(
                element=self._element, revision=self._revision, confirmed_revision=self._confirmed, wanted=self._wanted
            )
        return document.model_dump_json().encode()

    def report(self, path: str, document: Any) -> None:
        name = path.rpartition("/")[2]
        with self._changed:
            if name == "confirmed":
                self._confirmed = document["revision"]
            self.reports.append((name, document))
            self._changed.notify_all()


class _SocketServer(ThreadingHTTPServer):
    address_family = UnixStreamServer.address_family
    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


@contextmanager
def serving_wanted(server: WantedServer, path: Path) -> Iterator[None]:
    """Serve the document at a socket within the block. Afterwards, the socket accepts no connection."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = server.get(self.path)
            if answer is None:
                time.sleep(1)  # do not answer at once, so that the agent does not poll in a busy loop
            self._send(200 if answer else 404, answer or b"{}")

        def do_POST(self) -> None:
            server.report(self.path, json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._send(200, b"{}")

        def do_PUT(self) -> None:
            self.do_POST()

        def _send(self, status: int, answer: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            with suppress(BrokenPipeError):  # the test has killed the agent
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Print nothing."""

    http = _SocketServer(str(path), Handler)  # type: ignore[arg-type]  # the address of a Unix socket is a path
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
        path.unlink()
