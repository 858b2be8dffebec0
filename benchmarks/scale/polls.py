"""Measures a replica with many polling agents: memory, idle processor time, latency of changes, and a restart.

Usage: ``PYTHONPATH=tests python -m benchmarks.scale.polls [--database sqlite|postgresql] [--wait S] AGENTS...``

The service runs in its own process, with switches in memory that answer at once. A latency is the time from the request
for a cluster until the agent of one of the cluster's hosts has the new revision of its wanted document. After the
restart, every agent requests this document again, while one user makes calls with pauses of 0.2 s.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.installation import PLATFORM, MeasuredSbf, request, serving, sqlite
from benchmarks.scale.__main__ import open_database
from sbf_service.bootstrap import build_service
from sbf_service.server import raise_open_files
from sbf_service.settings import ServiceSettings
from sbf_service.store.elements.confirmations import confirm_revision
from sbf_service.store.topology.topology import put_topology
from sbf_service.store.users.tokens import create_token
from sbf_service.store.vlans.pools import put_pool
from virtcloud.model.access import Role, TokenRequest
from virtcloud.model.element_views import Pool
from virtcloud.model.topology import Topology

SITES = 10
CLAIMS = 100
IDLE_S = 60.0
TIMEOUT_S = 600.0
WITH_SWITCHES = ("-m", "benchmarks.scale.switches_in_memory")


def make_topology(agents: int) -> dict[str, Any]:
    """Return a topology of ten sites with one switch each."""
    hosts = agents // SITES
    return {
        "name": "polls",
        "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
        "sites": [
            {
                "name": f"s{site}",
                "attachments": [{"transport": "core", "port": f"s{site}-sw:up"}],
                "switches": [
                    {
                        "name": f"s{site}-sw",
                        "platform": PLATFORM,
                        "address": "127.0.0.1:1",
                        "credential": "lab",
                        "ports": [*(f"p{host}" for host in range(hosts)), "up"],
                    }
                ],
                "hosts": [{"name": f"s{site}-h{host}", "ports": ["eth0"]} for host in range(hosts)],
            }
            for site in range(SITES)
        ],
        "links": [
            {"a": f"s{site}-h{host}:eth0", "b": f"s{site}-sw:p{host}"} for site in range(SITES) for host in range(hosts)
        ],
    }


def fill(database: str, agents: int, tokens: Path) -> None:
    """Store the topology and the pools, and create a token for each agent. Confirm revision 1 of each host.

    Write the agents' names and tokens to the file ``tokens``.
    """
    service = build_service(ServiceSettings.model_validate({"database": database, "replica": "filling"}))
    service.prepare()
    with service.store.change() as unit:
        put_topology(unit, Topology.model_validate(make_topology(agents)))
    lines = []
    with service.store.change() as unit:
        for site in range(SITES):
            put_pool(unit, f"s{site}", Pool.model_validate({"vlans": "100-999"}), service.reserved)
            for host in range(agents // SITES):
                name = f"s{site}-h{host}"
                token = create_token(unit, TokenRequest.model_validate({"name": name, "role": Role.AGENT}), os.urandom)
                lines.append(f"{name} {token.token}")
    for site in range(SITES):
        with service.store.change() as unit:
            for host in range(agents // SITES):
                confirm_revision(unit, f"s{site}-h{host}", 1, timedelta(minutes=1))
    service.store.close()
    tokens.write_text("\n".join(lines), "utf-8")


@dataclass
class PollingAgents:
    """The process of the agents, and its events. Each event consists of a time, a kind and the name of an agent."""

    process: subprocess.Popen[str]
    events: list[tuple[float, str, str]] = field(default_factory=list)

    def follow(self) -> None:
        """Collect the events until the process ends."""
        assert self.process.stdout is not None  # noqa: S101 - a pipe
        for line in self.process.stdout:
            at, event, name = line.split()
            self.events.append((float(at), event, name))

    def wait_served(self, agents: int, since: float) -> float:
        """Wait until all agents were served after ``since``. Return the seconds from ``since`` to the last answer."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            times = [at for at, event, _ in list(self.events) if event == "served" and at >= since]
            if len(times) >= agents:
                return max(times) - since
            time.sleep(0.2)
        raise AssertionError(f"expected {agents} agents to be served within {TIMEOUT_S} s, found {len(times)}")

    def count(self, since: float) -> Counter[str]:
        """Return the number of events of each kind since a time."""
        return Counter(event for at, event, _ in list(self.events) if at >= since)


@contextmanager
def polling(tokens: Path, listen: str, wait: int, *options: str) -> Iterator[PollingAgents]:
    """Run the agents in a process."""
    host, _, port = listen.rpartition(":")
    command = [sys.executable, "-m", "benchmarks.scale.poll_clients", str(tokens), host, port, str(wait), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        agents = PollingAgents(process)
        threading.Thread(target=agents.follow, daemon=True).start()
        try:
            yield agents
        finally:
            process.kill()


def measure_latencies(sbf: MeasuredSbf, agents: PollingAgents, count: int, hosts: int) -> list[float]:
    """Request clusters. For each agent of their hosts, return the seconds until the agent has the new revision.

    If an agent has not received the revision after 20 s, its value is 20.
    """
    latencies = []
    for number in range(count):
        names = (f"s{number % SITES}-h{number % hosts}", f"s{(number + 1) % SITES}-h{(number * 7) % hosts}")
        started = time.monotonic()
        sbf.call("PUT", f"/v1/clusters/c{number}", request(*names))
        deadline = started + 20
        found: dict[str, float] = {}
        while len(found) < len(names) and time.monotonic() < deadline:
            recent = list(agents.events)[-200:]
            found = {name: at for at, event, name in recent if event == "changed" and name in names and at >= started}
            time.sleep(0.02)
        latencies += [found.get(name, deadline) - started for name in names]
    return latencies


@dataclass
class UserCalls:
    """A user who makes calls with pauses of 0.2 s. ``seconds`` are the durations of the answered calls."""

    sbf: MeasuredSbf
    seconds: list[float] = field(default_factory=list)
    failures: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Make calls until :meth:`stop`."""
        while not self._stop.wait(0.2):
            started = time.monotonic()
            try:
                self.sbf.call("GET", "/v1/clusters?limit=10&ended=true")
            except Exception:  # noqa: BLE001 - the service is starting
                self.failures += 1
            else:
                self.seconds.append(time.monotonic() - started)

    def stop(self) -> None:
        """End the calls."""
        self._stop.set()


def measure(database: str, agents: int, wait: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each measured value with its name."""
    tokens = folder / "tokens"
    fill(database, agents, tokens)
    with serving(folder, database, program=WITH_SWITCHES) as sbf:
        sbf.ready_within()
        yield "memory before the agents", f"{sbf.memory_mb():.0f} MB"
        yield "idle before the agents", measure_idle(sbf)
        with polling(tokens, sbf.listen, wait) as polled:
            began, used = time.monotonic(), sbf.processor_s()
            yield "all served for the first time", f"{polled.wait_served(agents, began):.1f} s"
            yield "processor time until then", f"{sbf.processor_s() - used:.1f} s"
            time.sleep(2)
            yield f"idle, polls of {wait} s", measure_idle(sbf)
            yield "memory with all agents waiting", f"{sbf.memory_mb():.0f} MB"
            latencies = measure_latencies(sbf, polled, CLAIMS, agents // SITES)
            yield "from claim to agent, median", f"{median(latencies):.3f} s"
            yield "from claim to agent, p99", f"{quantiles(latencies, n=100)[98]:.3f} s"
            yield from _measure_restart(folder, database, agents, polled, sbf)


def measure_idle(sbf: MeasuredSbf) -> str:
    """Return the processor time of the idle service, as a share of a core."""
    used, since = sbf.processor_s(), time.monotonic()
    time.sleep(IDLE_S)
    share = 100 * (sbf.processor_s() - used) / (time.monotonic() - since)
    return f"{share:.1f} % of a core"


def _measure_restart(
    folder: Path, database: str, agents: int, polled: PollingAgents, sbf: MeasuredSbf
) -> Iterator[tuple[str, str]]:
    stopped = time.monotonic()
    sbf.process.terminate()
    code = sbf.process.wait(120)
    yield "SIGTERM until the end of the process", f"{time.monotonic() - stopped:.1f} s, exit code {code}"
    log = (folder / "log").read_text("utf-8")
    yield "tracebacks in the log", str(log.count("Traceback"))
    with serving(folder, database, listen=sbf.listen, program=WITH_SWITCHES) as again:
        start_s = time.monotonic() - stopped  # some agents are served before the benchmark notices the start
        calls = UserCalls(again)
        again.ready_within()
        threading.Thread(target=calls.run, daemon=True).start()
        yield "all served after the restart", f"{polled.wait_served(agents, stopped) - start_s:.1f} s"
        calls.stop()
        yield "a user's calls meanwhile, median", f"{median(calls.seconds):.3f} s"
        yield "a user's calls meanwhile, longest", f"{max(calls.seconds):.3f} s"
        yield "memory after the restart", f"{again.memory_mb():.0f} MB"
        yield "answers to agents since SIGTERM", str(dict(polled.count(stopped)))


def main() -> int:
    """Measure and print a table for each number of agents."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.polls")
    parser.add_argument("agents", nargs="+", type=int)
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("--wait", type=int, default=60)
    options = parser.parse_args()
    raise_open_files()
    for agents in options.agents:
        with open_database(options.database) as (address, _), TemporaryDirectory() as name:
            database = address if options.database == "postgresql" else sqlite(Path(name))
            print(f"\n{agents} agents, {options.database}", flush=True)  # noqa: T201
            for label, value in measure(database, agents, options.wait, Path(name)):
                print(f"  {label:40} {value}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
