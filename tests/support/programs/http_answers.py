"""An HTTP server on the loopback interface that answers each request with the result of a function."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class HttpRequest:
    """A received request. The names of its ``headers`` are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> Any:
        return json.loads(self.body or b"null")


@dataclass(frozen=True)
class HttpAnswer:
    """The answer to a request."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def answer_json(status: int, document: object) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(document).encode())


@contextmanager
def serve_answers(answer: Callable[[HttpRequest], HttpAnswer]) -> Iterator[str]:
    """Serve the answers of a function within the block. Yield the server's address.

    Several threads may call ``answer`` at the same time.
    """

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answered = answer(HttpRequest(self.command, self.path, headers, body))
            self.send_response(answered.status)
            for name, value in answered.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answered.body)))
            self.end_headers()
            self.wfile.write(answered.body)

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
