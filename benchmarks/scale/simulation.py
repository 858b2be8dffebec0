"""Simulates an installation over a trace: the real SBF, agents over HTTP, switches in memory, and checks at the end.

Usage: ``PYTHONPATH=tests python -m benchmarks.scale.simulation [--database sqlite|postgresql] [--json FILE] TRACE``.
The exit code is 1 if a check failed.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.installation import bearer, free_port
from benchmarks.scale.__main__ import open_database
from benchmarks.scale.arrivals import TRACES, Arrival, Trace, TraceSize, make_trace
from benchmarks.scale.sizes import make_topology, name_site
from virtcloud.client.connection import USER_AGENT

ROOT = Path(__file__).parents[2]
POOL = "100-2099"
WAIT_S = 20
DARK_S = 0.2
"""The interval in seconds at which an agent of a dark site looks whether its site returned."""
END_S = 60
"""Seconds after the trace in which every cluster must be released."""
REFUSED_LATER = frozenset({429, 503})


@dataclass
class Observations:
    """What the callers and agents saw. ``shared`` names clusters that had the same VLAN ID at a site at one time."""

    live: dict[tuple[str, int], str] = field(default_factory=dict)
    shared: list[str] = field(default_factory=list)
    claims_s: list[float] = field(default_factory=list)
    deletes_s: list[float] = field(default_factory=list)
    confirms_s: list[float] = field(default_factory=list)
    active_s: list[float] = field(default_factory=list)
    agent_errors: list[str] = field(default_factory=list)
    """Refused calls and broken connections of agents, which try again."""
    waited: int = 0
    """Calls that were repeated because SBF was overloaded or a VLAN ID was not free."""

    def add(self, key: str, vlans: dict[str, int]) -> None:
        """Record the claims of a live cluster. Record an error for each VLAN ID that another live cluster has."""
        for claim in vlans.items():
            other = self.live.setdefault(claim, key)
            if other != key:
                self.shared.append(f"VLAN {claim[1]} at site {claim[0]}: clusters {other} and {key}")

    def remove(self, key: str, vlans: dict[str, int]) -> None:
        """Forget the claims of a cluster that its owner deletes."""
        for claim in vlans.items():
            if self.live.get(claim) == key:
                del self.live[claim]


@dataclass
class SimulatedInstallation:
    """A running simulated service, and the calls of its users and agents."""

    client: httpx.AsyncClient
    process: subprocess.Popen[str]
    folder: Path
    seen: Observations = field(default_factory=Observations)
    dark: set[str] = field(default_factory=set)

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

    async def call(self, method: str, path: str, token: str, times: list[float] | None = None, **options: Any) -> Any:  # noqa: ANN401 - any JSON
        """Send a call, again while SBF is overloaded. Return the answer's document, or None without one."""
        while True:
            started = time.monotonic()
            answer = await self.client.request(method, path, headers=bearer(token), **options)
            if answer.status_code not in REFUSED_LATER:
                break
            self.seen.waited += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))
        if answer.is_error:
            raise AssertionError(f"{method} {path}: {answer.status_code} {answer.text}")
        if times is not None:
            times.append(time.monotonic() - started)
        return answer.json() if answer.content else None

    async def run_agent(self, host: str, token: str) -> None:
        """Fetch and confirm the wanted documents of a host. A host of a dark site does nothing."""
        revision = None
        while True:
            if host.partition("-")[0] in self.dark:
                await asyncio.sleep(DARK_S)
                continue
            try:
                revision = await self.reconcile_host(host, token, revision)
            except (AssertionError, httpx.TransportError) as error:
                self.seen.agent_errors.append(f"{host}: {error!r}")
                await asyncio.sleep(1)

    async def reconcile_host(self, host: str, token: str, revision: int | None) -> int:
        """Wait for a wanted document that is newer than ``revision``, confirm it, and return its revision."""
        after = {} if revision is None else {"after": revision}
        document = await self.call("GET", f"/v1/elements/{host}/wanted", token, params=after | {"wait": WAIT_S})
        if host.partition("-")[0] not in self.dark and document["confirmed_revision"] < document["revision"]:
            body = {"revision": document["revision"]}
            await self.call("POST", f"/v1/elements/{host}/confirmed", token, self.seen.confirms_s, json=body)
        return int(document["revision"])

    async def run_job(self, arrival: Arrival, began: float, token: str) -> None:
        """Create a cluster at its time, wait until it is active, use it, delete it, and wait until it is released."""
        await asyncio.sleep(max(0.0, began + arrival.at_s - time.monotonic()))
        path, asked = f"/v1/clusters/{arrival.key}", time.monotonic()
        spec = {"owner": "simulation", "hosts": list(arrival.hosts), "deadline_s": 3600, "lease_s": 86400}
        view = await self.call("PUT", path, token, self.seen.claims_s, json={"spec": spec})
        self.seen.add(arrival.key, view["vlans"])
        await self.wait(path, token, view, {"active"})
        self.seen.active_s.append(time.monotonic() - asked)
        await asyncio.sleep(arrival.lifetime_s)
        self.seen.remove(arrival.key, view["vlans"])
        view = await self.call("DELETE", path, token, self.seen.deletes_s)
        await self.wait(path, token, view or {"version": None, "state": ""}, {"released"})

    async def wait(self, path: str, token: str, view: dict[str, Any], states: set[str]) -> None:
        """Wait with long polls until a cluster has one of these states. Raise AssertionError if the cluster fails."""
        while view["state"] not in states:
            if view["state"] in {"failing", "failed"}:
                raise AssertionError(f"{path}: expected {states}, found {view['state']}")
            after = {} if view["version"] is None else {"after": view["version"], "wait": WAIT_S}
            view = await self.call("GET", path, token, params=after)

    async def darken(self, trace: Trace, began: float) -> None:
        """Disconnect the agents and switches of one site for some time."""
        await asyncio.sleep(max(0.0, began + trace.dark_from_s - time.monotonic()))
        self.dark.add(trace.dark_site)
        self.command(f"dark {trace.dark_site}")
        await asyncio.sleep(trace.dark_until_s - trace.dark_from_s)
        self.command(f"light {trace.dark_site}")
        self.dark.discard(trace.dark_site)


async def simulate(installation: SimulatedInstallation, size: TraceSize, trace: Trace) -> dict[str, Any]:
    """Install the sites, start the agents, run the trace, and return the figures and the list of faults."""
    operator = (await installation.read_when_written("operator.json"))["operator"]
    while not await is_ready(installation.client):  # noqa: ASYNC110 - the condition is in another process
        await asyncio.sleep(0.05)
    ready = time.monotonic()
    topology = make_topology(size.sites, size.hosts).model_dump(mode="json", exclude_none=True)
    await installation.call("PUT", "/v1/topology", operator, json=topology)
    topology_s = time.monotonic() - ready
    for number in range(size.sites):
        await installation.call("PUT", f"/v1/sites/{name_site(number)}/pool", operator, json={"vlans": POOL})
    installation.command("tokens")
    tokens = await installation.read_when_written("agents.json")
    before_s = read_processor_s(installation.process.pid)
    faults: list[str] = []
    agents = [asyncio.create_task(installation.run_agent(host, token)) for host, token in tokens.items()]
    try:
        faults += await run_trace(installation, trace, operator)
        faults += [f"agent: {task.exception()!r}" for task in agents if task.done() and not task.cancelled()]
        remaining = await installation.call("GET", "/v1/clusters", operator)
        faults += [f"cluster {view['key']} is {view['state']}" for view in remaining]
    finally:
        for task in agents:
            task.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
    seen = installation.seen
    used = read_processor_s(installation.process.pid) - before_s
    return {
        "faults": faults + seen.shared,
        "agents": len(agents),
        "clusters": len(trace.arrivals),
        "topology PUT, seconds": topology_s,
        "processor time of SBF for a cluster, ms": 1000 * used / len(trace.arrivals),
        "calls repeated": seen.waited,
        "errors of agents": len(seen.agent_errors),
        "first errors of agents": seen.agent_errors[:3],
        **{
            f"{name}, {share}": quantile(values, fraction)
            for name, values in (
                ("claim, seconds", seen.claims_s),
                ("delete, seconds", seen.deletes_s),
                ("confirmation, seconds", seen.confirms_s),
                ("until active, seconds", seen.active_s),
            )
            for share, fraction in (("median", 0.5), ("p99", 0.99))
        },
    }


async def run_trace(installation: SimulatedInstallation, trace: Trace, token: str) -> list[str]:
    """Run all jobs of a trace. Return the errors of jobs."""
    began = time.monotonic()
    work = [installation.darken(trace, began), *(installation.run_job(job, began, token) for job in trace.arrivals)]
    tasks = [asyncio.create_task(one) for one in work]
    _, late = await asyncio.wait(tasks, timeout=trace.arrivals[-1].at_s + END_S)
    for task in late:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return [f"job: {result!r}" for result in results if isinstance(result, BaseException)]


async def is_ready(client: httpx.AsyncClient) -> bool:
    """Return whether the service is ready."""
    try:
        return (await client.get("/readyz")).is_success
    except httpx.TransportError:
        return False


def read_processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], fraction: float) -> float:
    """Return the smallest value that is not exceeded by this fraction of the values, or 0 without values."""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))] if values else 0.0


@contextmanager
def run_service(database: str, listen: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the simulated service in a process of its own until the block ends."""
    command = [sys.executable, "-m", "benchmarks.scale.simulated_service", database, listen, str(folder)]
    paths = [str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(  # noqa: S603 - the command is our own
            command, env=environment, stdin=subprocess.PIPE, stderr=log, stdout=log, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            assert process.stdin is not None  # noqa: S101 - for mypy
            process.stdin.close()
            process.wait(60)


@asynccontextmanager
async def open_client(listen: str) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with as many connections as there are agents and jobs."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    headers = {"user-agent": USER_AGENT}
    async with httpx.AsyncClient(base_url=f"http://{listen}", timeout=120, limits=limits, headers=headers) as client:
        yield client


def run(trace_name: str, database: str, seed: int = 1) -> dict[str, Any]:
    """Simulate a trace on a new database and return the figures. ``faults`` lists the checks that failed."""
    size, listen, load = TRACES[trace_name], f"127.0.0.1:{free_port()}", os.getloadavg()[0]

    async def simulate_with_client(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
        async with open_client(listen) as client:
            return await simulate(SimulatedInstallation(client, process, folder), size, make_trace(size, seed))

    with TemporaryDirectory() as name, open_database(database) as (address, _):
        folder = Path(name)
        with run_service(address, listen, folder) as process:
            found = asyncio.run(simulate_with_client(process, folder))
        end = json.loads((folder / "end.json").read_text("utf-8"))
    found["faults"] += [f"switch {switch} still carries VLANs: {ports}" for switch, ports in end["configured"].items()]
    return found | {
        "highest memory of SBF, MB": end["memory_mb"],
        "load of the machine before": load,
        "load of the machine after": os.getloadavg()[0],
    }


def main() -> int:
    """Simulate one trace, and print the figures and the faults."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.simulation")
    parser.add_argument("trace", choices=TRACES)
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = run(options.trace, options.database, options.seed)
    for name, value in found.items():
        print(f"{name:45} {value:.3f}" if isinstance(value, float) else f"{name:45} {value}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), "utf-8")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
