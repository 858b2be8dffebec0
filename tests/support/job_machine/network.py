"""Calls to SBF in this process, with faults of the network between the caller and SBF."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx

from sbf_service.http.app import answer_settled_polls
from support.job_machine.tasks import Tasks
from support.sbf_fakes.http_calls import app_of
from support.sbf_fakes.world import World


class CallFault(StrEnum):
    """Faults of one call."""

    LOST = "the call is lost"
    UNANSWERED = "the answer is lost"
    LATE = "the call has its effect later, and the caller receives no answer"


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call that changes SBF's state."""

    method: str
    path: str
    body: bytes | None
    headers: Mapping[str, str]


class CallTimedOut(Exception):
    """The caller receives no answer in time."""


class CallRefused(Exception):
    """SBF does not run."""


class SbfNetwork:
    """SBF's HTTP API. ``faults`` maps a caller to the fault of the caller's next call."""

    def __init__(self, world: World, tasks: Tasks) -> None:
        self.world, self.tasks, self.up = world, tasks, True
        self.faults: dict[str, CallFault] = {}
        self.sent: list[SentCall] = []
        self.late: list[SentCall] = []
        self.readings: dict[tuple[str, str], httpx.Response] = {}
        self.disturbed_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._client: httpx.AsyncClient | None = None

    def restart(self) -> None:
        """Kill SBF and start it again on its database."""
        self.world.service = self.world.restarted()
        self.readings.clear()
        self._close_client()

    def close(self) -> None:
        self._close_client()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def call(self, caller: str, sent: SentCall) -> httpx.Response:
        """Execute a call. SBF answers a long poll at once: its caller has already waited in simulated time."""
        fault = self.faults.pop(caller, None)
        if fault or not self.up:
            self.disturbed_at = self.tasks.now
        if not self.up:
            raise CallRefused
        if fault is CallFault.LOST:
            raise CallTimedOut
        if fault is CallFault.LATE:
            self.late.append(sent)
            raise CallTimedOut
        if sent.method != "GET":
            self.sent.append(sent)
        answer = self.deliver(sent)
        if fault is CallFault.UNANSWERED:
            raise CallTimedOut
        return answer

    def deliver(self, sent: SentCall) -> httpx.Response:
        """Send a call to SBF. The answer to a GET is reused until another call may have changed SBF's state."""
        reading = (sent.path, sent.headers.get("authorization") or sent.headers.get("Authorization") or "")
        if sent.method == "GET" and reading in self.readings:
            return self.readings[reading]
        if sent.method != "GET":
            self.readings.clear()
        response = self._execute(sent)
        if sent.method == "GET":
            self.readings[reading] = response
        return response

    def _execute(self, sent: SentCall) -> httpx.Response:
        async def run() -> httpx.Response:
            return await self._open_client().request(
                sent.method, sent.path, content=sent.body, headers=dict(sent.headers)
            )

        response = self._loop.run_until_complete(run())
        assert response.status_code != HTTPStatus.INTERNAL_SERVER_ERROR, (sent, response.text)
        return response

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            app = answer_settled_polls(app_of(self.world.service))
            transport = httpx.ASGITransport(app, raise_app_exceptions=True)
            self._client = httpx.AsyncClient(transport=transport, base_url="http://sbf")
        return self._client

    def _close_client(self) -> None:
        if self._client is not None:
            self._loop.run_until_complete(self._client.aclose())
            self._client = None


class SimulatedTransport(httpx.BaseTransport):
    """Replaces the HTTP connections of an `SbfClient`."""

    def __init__(self, network: SbfNetwork, caller: str) -> None:
        self._network, self._caller = network, caller

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path, wait = split_wait(request.url.raw_path.decode())
        if wait:
            self._network.tasks.sleep(wait)
        headers = {name: value for name, value in request.headers.items() if name not in {"host", "content-length"}}
        try:
            answer = self._network.call(self._caller, SentCall(request.method, path, request.read() or None, headers))
        except CallRefused:
            raise httpx.ConnectError("connection refused", request=request) from None
        except CallTimedOut:
            self._network.tasks.sleep(request.extensions["timeout"]["read"])
            raise httpx.ReadTimeout("timed out", request=request) from None
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content, request=request)


def split_wait(path: str) -> tuple[str, float]:
    """Return a path without the parameter ``wait`` of a long poll, and the value of this parameter."""
    parts = urlsplit(path)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    wait = float(query.pop("wait", "0"))
    return parts.path + (f"?{urlencode(query)}" if query else ""), wait
