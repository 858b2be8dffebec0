"""The check of a cluster's paths: at SBF's request, the agents of the cluster's hosts exchange frames.

1. SBF inserts a session of the kind ``frames`` for each host (decision 56). Each agent opens the cluster's bridge and
   connects to the replica of SBF that runs the check.
2. When all agents have connected, or after the time limit, SBF sends the connected agents a description of the
   exchange.
3. Each agent reports which frames arrived. Then SBF ends the sessions.

The state of a check is only in memory, and is lost if SBF stops.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from sbf_service.bootstrap import SbfService
from sbf_service.domain.path_verification import choose_size, decide_pace
from sbf_service.domain.paths import LiveCluster
from sbf_service.http.session_relay import NORMAL, SessionRelay, WaitingSession, check_answer, close
from sbf_service.store.clusters.guest_sessions import delete_session, insert_check
from virtcloud.model.document import Document
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_seed import WITH_SECRETS
from virtcloud.model.guest_sessions import SessionKind
from virtcloud.model.message_text import printable
from virtcloud.model.path_check import BridgeEnd, ExchangePeer, FrameExchange, FrameReport, UnverifiedHost
from virtcloud.model.values import Name, format_utc

REPORT_S = 10.0
"""The time limit in seconds for the agents' reports, counted from the planned end of the exchange."""
EARLIER_AGENT = "its agent has an earlier version that does not support this check: upgrade the agent"
D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """A host of a check, and its last contact with SBF."""

    name: Name
    reachable: bool
    seen_at: datetime | None


@dataclass(slots=True)
class ExchangeOutcome:
    """The result of an exchange, by host. A host's number in the exchange is its position in ``ends``."""

    size: int | None = None
    ends: dict[Name, BridgeEnd] = field(default_factory=dict)
    reports: dict[Name, FrameReport] = field(default_factory=dict)
    unverified: list[UnverifiedHost] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PathCheck:
    """A check of the paths between hosts. Only the event loop of the service uses this object."""

    service: SbfService
    relay: SessionRelay
    who: str
    cluster: LiveCluster
    mtu: int | None

    async def run(self, hosts: tuple[CheckedHost, ...]) -> ExchangeOutcome:
        """Run an exchange of frames between these hosts, and return the outcome.

        Unreachable hosts, and hosts whose agents do not support the check, exchange no frames. They are in the
        outcome's list ``unverified``, with the hosts whose agents fail.
        """
        outcome, reachable = ExchangeOutcome(), dict[Name, CheckedHost]()
        for host in hosts:
            if not host.reachable:
                outcome.unverified.append(_make_unverified(host, "its agent is not reachable"))
            elif not self.relay.knows(host.name, SessionKind.FRAMES):
                outcome.unverified.append(_make_unverified(host, EARLIER_AGENT))
            else:
                reachable[host.name] = host
        if len(reachable) < 2:  # noqa: PLR2004 - a path has two ends
            return outcome
        async with self._connect(reachable, outcome) as agents:
            if len(agents) > 1:
                await self._exchange(agents, reachable, outcome)
        return outcome

    @asynccontextmanager
    async def _connect(
        self, hosts: Mapping[Name, CheckedHost], outcome: ExchangeOutcome
    ) -> AsyncIterator[dict[Name, WebSocket]]:
        with ExitStack() as stack:
            sessions = {name: stack.enter_context(self.relay.expect(name)) for name in hosts}
            await run_in_threadpool(self._insert, sessions)
            try:
                await asyncio.gather(
                    *(self._wait_for_agent(hosts[name], session, outcome) for name, session in sessions.items())
                )
            finally:
                await run_in_threadpool(self._delete, sessions)
            outcome.ends = {name: outcome.ends[name] for name in hosts if name in outcome.ends}
            agents = {name: sessions[name].agent.result() for name in outcome.ends}
            try:
                yield agents
            finally:
                await asyncio.gather(*(close(agent, NORMAL, "") for agent in agents.values()))

    def _insert(self, sessions: Mapping[Name, WaitingSession]) -> None:
        settings, ids = self.service.settings.relay, {name: session.id for name, session in sessions.items()}
        with self.service.store.change(who=self.who) as unit:
            insert_check(unit, self.cluster, ids, settings.address, timedelta(seconds=settings.agent_wait))

    def _delete(self, sessions: Mapping[Name, WaitingSession]) -> None:
        with self.service.store.change_row() as unit:
            for session in sessions.values():
                delete_session(unit, session.id)

    async def _wait_for_agent(self, host: CheckedHost, session: WaitingSession, outcome: ExchangeOutcome) -> None:
        """Wait until a host's agent has opened the bridge. Record the agent's answer (`BridgeEnd`) in ``outcome``.

        After a failure or timeout, record the reason instead.
        """
        limit = self.service.settings.relay.agent_wait
        try:
            async with asyncio.timeout(limit):
                agent = await session.agent
                await check_answer(host.name, agent)
                outcome.ends[host.name] = await _receive(agent, BridgeEnd)
        except TimeoutError:
            reason = (
                f"its agent did not take up the check within {limit:g} s: check that the agent runs (virtcloud element "
                f"show {host.name}), and upgrade an agent of an earlier version"
            )
            outcome.unverified.append(_make_unverified(host, reason))
        except VirtcloudError as error:
            reason = str(error).removeprefix(f"host {host.name}: ")
            outcome.unverified.append(_make_unverified(host, reason))
        except (WebSocketDisconnect, ValidationError, KeyError):
            outcome.unverified.append(_make_unverified(host, "its agent ended the check: read the agent's log"))

    async def _exchange(
        self, agents: Mapping[Name, WebSocket], hosts: Mapping[Name, CheckedHost], outcome: ExchangeOutcome
    ) -> None:
        numbers = {name: number for number, name in enumerate(agents)}
        outcome.size = choose_size(self.mtu, (outcome.ends[name].mtu for name in agents))
        pace = decide_pace(len(agents), outcome.size)
        check, secret = secrets.token_hex(8), secrets.token_hex(32)

        async def run(name: Name, agent: WebSocket) -> None:
            peers = tuple(
                ExchangePeer(number=number, mac=outcome.ends[peer].mac)
                for peer, number in numbers.items()
                if peer != name
            )
            request = FrameExchange.model_validate(
                {
                    "check": check,
                    "secret": secret,
                    "number": numbers[name],
                    "peers": peers,
                    "mtu": outcome.size,
                    "round_s": pace.round_s,
                    "seconds": pace.seconds,
                }
            )
            try:
                await agent.send_bytes(request.model_dump_json(context=WITH_SECRETS).encode())
                async with asyncio.timeout(pace.seconds + REPORT_S):
                    outcome.reports[name] = await _receive(agent, FrameReport)
            except (TimeoutError, WebSocketDisconnect, RuntimeError, ValidationError, KeyError):
                reason = "its agent did not report what it received: read the agent's log"
                outcome.unverified.append(_make_unverified(hosts[name], reason))

        await asyncio.gather(*(run(name, agent) for name, agent in agents.items()))


async def _receive(agent: WebSocket, kind: type[D]) -> D:
    return kind.model_validate_json(await agent.receive_bytes(), extra="ignore")


def _make_unverified(host: CheckedHost, reason: str) -> UnverifiedHost:
    seen = "SBF never had contact" if host.seen_at is None else f"last contact {format_utc(host.seen_at)}"
    return UnverifiedHost(host=host.name, reason=f"{printable(reason)} ({seen})", seen_at=host.seen_at)
