"""A fake agent for tests of hooks and scripts. The socket is real. The test sets the answers."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FakeRequest = dict[str, Any]
FakeAnswer = dict[str, Any] | Iterable[bytes]
"""An answer: a document, or raw bytes in pieces. The connection is closed after the last piece."""


@dataclass
class FakeAgentSocket:
    """A socket that answers each request with the result of ``answer``, and records the requests in order."""

    path: Path
    answer: Callable[[FakeRequest], FakeAnswer]
    asked: list[FakeRequest] = field(default_factory=list)

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            if not (line := lines.readline()):
                return  # the client was killed before it sent a request
            request = json.loads(line)
            self.asked.append(request)
            answer = self.answer(request)
            with suppress(BrokenPipeError, ConnectionResetError):  # the client may have closed the connection
                for piece in [json.dumps(answer).encode() + b"\n"] if isinstance(answer, dict) else answer:
                    connection.sendall(piece)


@contextmanager
def agent_socket(path: Path, answer: Callable[[FakeRequest], FakeAnswer]) -> Iterator[FakeAgentSocket]:
    fake = FakeAgentSocket(path, answer)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        server = threading.Thread(target=fake.serve, args=(listening,))
        server.start()
        yield fake
        listening.shutdown(socket.SHUT_RDWR)
    server.join()


FACTS = {"VCLUSTER_ID": "12.pbssrv", "VCLUSTER_GUESTS": "g1 g2", "VCLUSTER_VLAN": "1203"}


@dataclass
class FakeAgent:
    """An agent that answers ``state`` requests with the prepared state.

    A request to cancel an attempt changes the attempt's state to ``cancelled``, and a request to remove an attempt
    changes it to ``ended``. ``refuses`` maps the name of a request to the slug of the error that answers the request.
    """

    socket: FakeAgentSocket
    state: str = "up"
    missing: list[str] = field(default_factory=list)
    reason: str | None = None
    facts: dict[str, str] = field(default_factory=lambda: dict(FACTS))
    refuses: dict[str, str] = field(default_factory=dict)
    gone: bool = True
    runs: dict[tuple[str, int], str] = field(default_factory=dict)
    reasons: dict[tuple[str, int], str] = field(default_factory=dict)
    in_turn: list[tuple[str, list[str]]] = field(default_factory=list)
    """The first answers to ``state`` requests: pairs of a state and the missing elements."""
    _told: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def asked(self, do: str | None = None) -> list[FakeRequest]:
        return [request for request in self.socket.asked if do in (None, request["do"])]

    def say(self, state: str, *missing: str, reason: str | None = None) -> None:
        with self._news:
            self.state, self.missing, self.reason = state, list(missing), reason
            self._news.notify_all()

    def answer(self, request: FakeRequest) -> dict[str, Any]:
        slug = self.refuses.get(request["do"])
        if slug is not None:
            return {"ok": False, "error": slug, "detail": f"cluster {request.get('cluster')}: {slug}"}
        answer: dict[str, Any] = getattr(self, "_" + request["do"])(request)
        return {"ok": True, **answer}

    def _up(self, request: FakeRequest) -> dict[str, Any]:
        self.runs[_run(request)] = "here"
        return {}

    def _cancel(self, request: FakeRequest) -> dict[str, Any]:
        self._change(request, "cancelled", request["reason"])
        return {}

    def _remove(self, request: FakeRequest) -> dict[str, Any]:
        self._change(request, "ended", "its job ended")
        return {"gone": self.gone, "missing": [] if self.gone else ["host n1 still has guest g1"]}

    def _running(self, _request: FakeRequest) -> dict[str, Any]:
        return {}

    def _change(self, request: FakeRequest, state: str, reason: str) -> None:
        with self._news:
            self.runs[_run(request)] = state
            self.reasons[_run(request)] = reason
            self._news.notify_all()

    def _state(self, request: FakeRequest) -> dict[str, Any]:
        run = _run(request)
        deadline = time.monotonic() + request["wait"]
        with self._news:
            is_prepared = bool(self.in_turn)
            if is_prepared:
                self.state, self.missing = self.in_turn.pop(0)
            while (
                not is_prepared
                and self._says(run) == "waiting"
                and self.missing == self._told.get(run)
                and time.monotonic() < deadline
            ):
                self._news.wait(deadline - time.monotonic())
            state = self._says(run)
            self._told[run] = self.missing
        reason = self.reasons.get(run, self.reason)
        return {"state": state, "missing": self.missing, "reason": reason, "facts": self.facts if state == "up" else {}}

    def _says(self, run: tuple[str, int]) -> str:
        state = self.runs.get(run, "here")
        return self.state if state == "here" else state


def _run(request: FakeRequest) -> tuple[str, int]:
    return request["cluster"], request["attempt"]


BUSY: FakeAnswer = {"ok": False, "error": "too-many-requests", "detail": "too many requests are waiting"}


def answer_first_request(agent: FakeAgent, answer: FakeAnswer) -> None:
    """Answer the first request with ``answer``, and later requests with the answers of ``agent``.

    An empty list closes the first connection without an answer, as if the agent were restarting.
    """

    def once(_request: FakeRequest) -> FakeAnswer:
        agent.socket.answer = agent.answer
        return answer

    agent.socket.answer = once


@contextmanager
def fake_agent(path: Path) -> Iterator[FakeAgent]:
    with agent_socket(path, lambda _: {}) as socket:
        agent = FakeAgent(socket)
        socket.answer = agent.answer
        yield agent
