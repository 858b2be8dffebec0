"""Measures a real SBF while simulated users create and delete clusters as a trace describes (``arrivals.py``).

Simulated agents call SBF over HTTP. At the end, the simulation checks that no cluster and no VLAN remains.

Usage: ``PYTHONPATH=tests python -m benchmarks.scale.simulation [--database sqlite|postgresql] [--seed NUMBER] [--json
FILE] [--plot FILE] TRACE``. The exit code is 1 if a check failed.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from benchmarks.installation import free_port
from benchmarks.scale.__main__ import open_database
from benchmarks.scale.arrivals import TRACES, Trace, TraceSize, make_trace
from benchmarks.scale.samples import Samples, read_processor_s
from benchmarks.scale.simulated_users import ObservedJob, SimulatedCaller, SimulatedInstallation
from benchmarks.scale.sizes import Regions, make_topology, name_site

ROOT = Path(__file__).parents[2]
POOL = "100-2099"
END_S = 120
"""Time limit in seconds from the last arrival of the trace until every cluster is released."""


async def simulate(installation: SimulatedInstallation, size: TraceSize, trace: Trace) -> dict[str, Any]:
    """Install the sites, start the agents, run the trace, and return the figures and the list of faults."""
    token = (await installation.read_when_written("operator.json"))["operator"]
    async with installation.open_caller(token) as operator:
        topology_s = await install_sites(operator, size)
        installation.command("tokens")
        tokens = await installation.read_when_written("agents.json")
        before_s = read_processor_s(installation.process.pid)
        samples = Samples(installation.process.pid)
        agents = [asyncio.create_task(installation.run_agent(host, token)) for host, token in tokens.items()]
        sampling = asyncio.create_task(samples.take())
        try:
            faults = await run_trace(installation, trace, token)
            faults += [f"agent: {task.exception()!r}" for task in agents if task.done() and not task.cancelled()]
            remaining = await operator.call("GET", "/v1/clusters")
            faults += [f"cluster {view['key']} is {view['state']}" for view in remaining]
        finally:
            for task in (*agents, sampling):
                task.cancel()
            await asyncio.gather(*agents, sampling, return_exceptions=True)
    seen = installation.seen
    used = read_processor_s(installation.process.pid) - before_s
    return {
        "faults": faults + seen.shared,
        "agents": len(agents),
        "clusters": len(trace.arrivals),
        "topology PUT, seconds": topology_s,
        "processor time of SBF for a cluster, ms": 1000 * used / len(trace.arrivals),
        "calls repeated": seen.repeated,
        "errors of agents": len(seen.agent_errors),
        "first errors of agents": seen.agent_errors[:3],
        "delay of the simulator itself, seconds, p99": quantile(samples.delays_s, 0.99),
        **describe_times("confirmation", seen.confirms_s),
        **describe_jobs("single", [job for job in seen.jobs if not job.arrival.in_burst]),
        **describe_jobs("burst", [job for job in seen.jobs if job.arrival.in_burst]),
        "samples": samples.to_document(),
        "jobs": [[job.arrival.at_s, job.claim_s, job.active_s, job.delete_s] for job in seen.jobs],
    }


async def install_sites(operator: SimulatedCaller, size: TraceSize) -> float:
    """Wait until SBF is ready, and store the topology and the pools.

    Return the duration of the topology's PUT in seconds.
    """
    while not await is_ready(operator.client):  # noqa: ASYNC110 - the condition is in another process
        await asyncio.sleep(0.05)
    ready = time.monotonic()
    topology = make_topology(Regions(size.sites), size.hosts).model_dump(mode="json", exclude_none=True)
    await operator.call("PUT", "/v1/topology", json=topology)
    topology_s = time.monotonic() - ready
    for number in range(size.sites):
        await operator.call("PUT", f"/v1/sites/{name_site(number)}/pool", json={"vlans": POOL})
    return topology_s


def describe_jobs(group: str, jobs: list[ObservedJob]) -> dict[str, float]:
    """Return the figures of a group of jobs."""
    return {
        **describe_times(f"{group}: claim", [job.claim_s for job in jobs if job.claim_s is not None]),
        **describe_times(f"{group}: delete", [job.delete_s for job in jobs if job.delete_s is not None]),
        **describe_times(f"{group}: until active", [job.active_s for job in jobs if job.active_s is not None]),
    }


def describe_times(name: str, values: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile of times in seconds."""
    return {f"{name}, seconds, {share}": quantile(values, part) for share, part in (("median", 0.5), ("p99", 0.99))}


async def run_trace(installation: SimulatedInstallation, trace: Trace, token: str) -> list[str]:
    """Run all jobs of a trace, and disconnect the trace's ``dark_site`` for some time. Return the errors."""
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


def quantile(values: list[float], fraction: float) -> float:
    """Return the value at this fraction of the sorted values: 0.5 is the median. Return 0 if ``values`` is empty."""
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))] if values else 0.0


@contextmanager
def run_service(database: str, listen: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the real SBF with simulated switches (``simulated_service.py``) in its own process until the block ends."""
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


def run(trace_name: str, database: str, seed: int = 1) -> dict[str, Any]:
    """Simulate a trace on a new database and return the figures. ``faults`` lists the checks that failed."""
    size, listen, load = TRACES[trace_name], f"127.0.0.1:{free_port()}", os.getloadavg()[0]

    with TemporaryDirectory() as name, open_database(database) as (address, _):
        folder = Path(name)
        with run_service(address, listen, folder) as process:
            installation = SimulatedInstallation(listen, process, folder)
            found = asyncio.run(simulate(installation, size, make_trace(size, seed)))
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
    parser.add_argument("--plot", type=Path, help="an SVG or PNG file; needs matplotlib")
    options = parser.parse_args()
    found = run(options.trace, options.database, options.seed)
    faults = found["faults"]
    for name, value in (found | {"faults": f"{len(faults)}, such as {faults[:3]}" if faults else "none"}).items():
        if name in {"samples", "jobs"}:
            continue
        print(f"{name:45} {value:.3f}" if isinstance(value, float) else f"{name:45} {value}")  # noqa: T201
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), "utf-8")
    if options.plot:
        from benchmarks.scale.plots import plot_trace  # noqa: PLC0415 - needs matplotlib, which may be absent

        plot_trace(found, options.plot)
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
