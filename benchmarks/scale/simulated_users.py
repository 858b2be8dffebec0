"""The simulated users and agents of an installation: their HTTP calls, and what they observed.

A shared client would distort the times: with several hundred connections in httpx's pool, calls wait for seconds in the
simulator.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.installation import bearer
from benchmarks.scale.arrivals import Arrival, Trace
from virtcloud.client.connection import USER_AGENT

WAIT_S = 20
DARK_S = 0.2
"""The interval, in seconds, at which agents of a dark (disconnected) site check whether the site is connected again."""
FAILED = frozenset({"failing", "failed"})
REFUSED_LATER = frozenset({429, 503})
LIMITS = httpx.Limits(keepalive_expiry=2)
"""A client closes idle connections after 2 s. SBF would close them after 5 s, and a call at that moment would fail."""


@dataclass
class ObservedJob:
    """The times of a job in seconds: its arrival since the start of the trace, and how long its calls took."""

    arrival: Arrival
    claim_s: float | None = None
    active_s: float | None = None
    """The time from the request until the cluster is active."""
    delete_s: float | None = None


@dataclass
class Observations:
    """What the users and agents observed.

    ``shared``: errors about live clusters with the same VLAN ID at a site, or on a transport.
    """

    live: dict[tuple[str, int], str] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    jobs: list[ObservedJob] = field(default_factory=list)
    confirms_s: list[float] = field(default_factory=list)
    agent_errors: list[str] = field(default_factory=list)
    repeated: int = 0
    """The number of calls repeated after an overload or a broken connection."""

    def add(self, key: str, vlans: dict[str, int], transport: str | None) -> None:
        """Record the claims of a live cluster, and an error for each VLAN ID that another live cluster has claimed."""
        for claim in _list_claims(vlans, transport):
            other = self.live.setdefault(claim, key)
            if other != key:
                self.shared.append(f"VLAN {claim[1]} at {claim[0]}: clusters {other} and {key}")

    def remove(self, key: str, vlans: dict[str, int], transport: str | None) -> None:
        """Remove the claims of a cluster."""
        for claim in _list_claims(vlans, transport):
            if self.live.get(claim) == key:
                del self.live[claim]


def _list_claims(vlans: dict[str, int], transport: str | None) -> Iterator[tuple[str, int]]:
    """Yield the place (site or transport) and the VLAN ID of each claim. A cluster at one site has no transport."""
    yield from ((f"site {site}", vlan) for site, vlan in vlans.items())
    if transport is not None:
        yield from ((f"transport {transport}", vlan) for vlan in sorted(set(vlans.values())))


@dataclass(frozen=True)
class SimulatedCaller:
    """A user or an agent with a token."""

    client: httpx.AsyncClient
    seen: Observations

    async def call(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - any JSON
        """Send a call. Repeat the call while SBF is overloaded or the connection breaks.

        Return the answer's document, or None for an answer without a body. Raise AssertionError for other errors.
        """
        while (answer := await self._try(method, path, **options)) is None:
            self.seen.repeated += 1
        if answer.is_error:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    async def _try(self, method: str, path: str, **options: Any) -> httpx.Response | None:  # noqa: ANN401 - any JSON
        """Send a call. Wait and return None if the caller must repeat the call."""
        try:
            answer = await self.client.request(method, path, **options)
        except httpx.TransportError:
            await asyncio.sleep(0.1)
            return None
        if answer.status_code not in REFUSED_LATER:
            return answer
        await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
        return None

    async def wait(self, path: str, view: dict[str, Any], states: set[str]) -> None:
        """Wait with long polls until a cluster has one of these states. Raise AssertionError if the cluster fails."""
        while view["state"] not in states:
            if view["state"] in FAILED:
                raise AssertionError(f"{path}: expected {states}, found {view['state']}")
            news = {"after": view["version"], "wait": WAIT_S, "until": sorted(states | FAILED)}
            after = {} if view["version"] is None else news
            view = await self.call("GET", path, params=after)


@dataclass
class SimulatedInstallation:
    """A running simulated service, and its users and agents."""

    address: str
    process: subprocess.Popen[str]
    folder: Path
    seen: Observations = field(default_factory=Observations)
    dark: set[str] = field(default_factory=set)

    @asynccontextmanager
    async def open_caller(self, token: str) -> AsyncIterator[SimulatedCaller]:
        """Yield a caller with an HTTP client of its own."""
        headers = {"user-agent": USER_AGENT} | bearer(token)
        async with httpx.AsyncClient(
            base_url=f"http://{self.address}",
            timeout=120,
            limits=LIMITS,
            headers=headers,
            verify=False,  # noqa: S501 - no TLS: a TLS context for each client takes time
            trust_env=False,
        ) as client:
            yield SimulatedCaller(client, self.seen)

    def command(self, line: str) -> None:
        """Send a command to the process of the service."""
        assert self.process.stdin is not None  # noqa: S101 - for mypy
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    async def read_when_written(self, name: str) -> dict[str, str]:
        """Wait for a JSON file of the service and return its content. Raise AssertionError if the service ended."""
        while not (self.folder / name).exists():
            if self.process.poll() is not None:
                raise AssertionError(f"the service ended: {(self.folder / 'log').read_text('utf-8')[-2000:]}")
            await asyncio.sleep(0.05)
        content: dict[str, str] = json.loads((self.folder / name).read_text("utf-8"))
        return content

    async def run_agent(self, host: str, token: str) -> None:
        """Fetch and confirm the wanted documents of a host. A host of a dark site does nothing."""
        revision = None
        async with self.open_caller(token) as agent:
            while True:
                if host.partition("-")[0] in self.dark:
                    await asyncio.sleep(DARK_S)
                    continue
                try:
                    revision = await self._reconcile_host(agent, host, revision)
                except AssertionError as error:
                    self.seen.agent_errors.append(f"{host}: {error!r}")
                    await asyncio.sleep(1)

    async def _reconcile_host(self, agent: SimulatedCaller, host: str, revision: int | None) -> int:
        """Confirm a wanted document newer than ``revision``, and return its revision.

        Wait at most ``WAIT_S`` for the document. Do not confirm the document if it is already confirmed, or if the
        host's site has become dark.
        """
        after = {} if revision is None else {"after": revision}
        document = await agent.call("GET", f"/v1/elements/{host}/wanted", params=after | {"wait": WAIT_S})
        if host.partition("-")[0] not in self.dark and document["confirmed_revision"] < document["revision"]:
            asked = time.monotonic()
            await agent.call("POST", f"/v1/elements/{host}/confirmed", json={"revision": document["revision"]})
            self.seen.confirms_s.append(time.monotonic() - asked)
        return int(document["revision"])

    async def run_job(self, arrival: Arrival, began: float, token: str) -> None:
        """Create, use and delete the cluster of ``arrival``. ``began`` is the start of the trace."""
        await asyncio.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
        job = ObservedJob(arrival)
        self.seen.jobs.append(job)
        path, asked = f"/v1/clusters/{arrival.key}", time.monotonic()
        spec = {"owner": "simulation", "hosts": list(arrival.hosts), "deadline_s": 3600, "lease_s": 86400}
        async with self.open_caller(token) as user:
            view = await user.call("PUT", path, json={"spec": spec})
            job.claim_s = time.monotonic() - asked
            vlans, transport = view["vlans"], view["joined"]["transport"]
            self.seen.add(arrival.key, vlans, transport)
            await user.wait(path, view, {"active"})
            job.active_s = time.monotonic() - asked
            await asyncio.sleep(arrival.lifetime_s)
            self.seen.remove(arrival.key, vlans, transport)
            asked = time.monotonic()
            view = await user.call("DELETE", path)
            job.delete_s = time.monotonic() - asked
            await user.wait(path, view or {"version": None, "state": ""}, {"released"})

    async def darken(self, trace: Trace, began: float) -> None:
        """Disconnect the agents and switches of one site for some time."""
        await asyncio.sleep(max(0.0, began + trace.dark_from_s - time.monotonic()))
        self.dark.add(trace.dark_site)
        self.command(f"dark {trace.dark_site}")
        await asyncio.sleep(trace.dark_until_s - trace.dark_from_s)
        self.command(f"light {trace.dark_site}")
        self.dark.discard(trace.dark_site)
