"""An agent's socket that says what a test tells it to, for hooks and scripts: the socket is real."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Request = dict[str, Any]
Answer = dict[str, Any] | Iterable[bytes]
"""A document, or these very pieces, and then the connection is closed."""


@dataclass
class FakeAgentSocket:
    """Answers as ``answer`` says; keeps what it was asked, in order."""

    path: Path
    answer: Callable[[Request], Answer]
    asked: list[Request] = field(default_factory=list)

    def serve(self, listening: socket.socket) -> None:
        """Answer one connection after the other until the socket is closed."""
        while True:
            try:
                talk, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(talk,), daemon=True).start()

    def _one(self, talk: socket.socket) -> None:
        with talk, talk.makefile("rb") as lines:
            request = json.loads(lines.readline())
            self.asked.append(request)
            answer = self.answer(request)
            with suppress(BrokenPipeError):  # who asked may have waited long enough
                for piece in [json.dumps(answer).encode() + b"\n"] if isinstance(answer, dict) else answer:
                    talk.sendall(piece)


@contextmanager
def agent_socket(path: Path, answer: Callable[[Request], Answer]) -> Iterator[FakeAgentSocket]:
    """Listen at ``path`` for the length of a test."""
    fake = FakeAgentSocket(path, answer)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        server = threading.Thread(target=fake.serve, args=(listening,))
        server.start()
        yield fake
        listening.shutdown(socket.SHUT_RDWR)
    server.join()
