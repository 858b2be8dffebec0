"""A fake SBF with scripted answers. The fake records the requests that it receives."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ScriptedAnswer = tuple[int, Any]


@dataclass
class ScriptedSbf:
    """Returns ``answers`` by method and path, in order, and repeats the last answer. Unknown calls get status 404."""

    url: str
    answers: dict[str, list[ScriptedAnswer]] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def say(self, call: str, *said: ScriptedAnswer) -> None:
        self.answers[call] = list(said)

    def answer(self, call: str, document: object) -> ScriptedAnswer:
        self.asked.append((call, document))
        answers = self.answers.get(call, [problem(404, "not-found", f"{call} is not known")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


def problem(status: int, slug: str, detail: str) -> ScriptedAnswer:
    return status, {"type": f"urn:virtcloud:problem:{slug}", "status": status, "detail": detail}


@contextmanager
def scripted_sbf() -> Iterator[ScriptedSbf]:
    """Run a fake SBF on the loopback interface."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _SbfHandler)
    server.daemon_threads = True
    fake = server.fake = ScriptedSbf(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _SbfHandler(BaseHTTPRequestHandler):
    def _any(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        document = json.loads(self.rfile.read(length)) if length else None
        fake: ScriptedSbf = self.server.fake  # type: ignore[attr-defined]
        fake.tokens.append(self.headers.get("authorization"))
        status, answer = fake.answer(f"{self.command} {self.path}", document)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST = do_DELETE = _any  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass
