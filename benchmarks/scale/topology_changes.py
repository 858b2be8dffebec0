"""Measures how long changes of a large topology over HTTP take, and how long other calls take during the changes.

Usage: ``PYTHONPATH=tests python -m benchmarks.scale.topology_changes [--database sqlite|postgresql] SITES HOSTS LIVE``.
HOSTS is the number of hosts at each site, and LIVE is the number of live clusters at the start. SBF runs in a separate
process, with switches in memory. Two callers repeatedly read a cluster, create and delete another cluster, and pause
for ``--pause`` seconds.
"""

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx

from benchmarks.scale.__main__ import open_database
from benchmarks.scale.filling import fill
from benchmarks.scale.operations import MeasuredService
from benchmarks.scale.sizes import InstallationSize, name_host, name_site
from benchmarks.scale.switches_in_memory import serve
from sbf_service.settings import ServiceSettings
from sbf_service.store.users.tokens import create_token
from virtcloud.model.access import Role, TokenRequest
from virtcloud.model.values import UserName

LISTEN = "127.0.0.1:18480"
IDLE_S = 20.0
TIMEOUT_S = 900.0
CALLERS = 2
SPARE_PORT = "spare"
ALL_CALLS = {"rates": {"clusters": "900000/minute"}, "limits": {"body": 2**30}}
TIMING = {"agent_silence": 86400, "drift_interval": 86400}


def make_settings(database: str) -> ServiceSettings:
    """Return the settings of the measured service."""
    settings = {"database": database, "listen": LISTEN, "replica": "changes", "timing": TIMING}
    return ServiceSettings.model_validate(settings | ALL_CALLS)


def fill_database(database: str, size: InstallationSize) -> str:
    """Fill a database. Return an operator's token."""
    measured = MeasuredService(database, size)
    measured.service.prepare()
    fill(measured.store, size)
    request = TokenRequest(name=UserName("operator"), role=Role.OPERATOR)
    with measured.store.change(who="bench") as unit:
        token = create_token(unit, request, secrets.token_bytes).token
    measured.finish()
    return str(token)


@dataclass
class Callers:
    """Callers of SBF in threads. Records the start and the duration of each call."""

    size: InstallationSize
    token: str
    pause_s: float
    times: list[tuple[float, float]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    stopping: bool = False

    def run(self) -> None:
        """Call SBF until the benchmark stops."""
        with open_client(self.token) as client:
            while not self.stopping:
                number = next(self.numbers)
                sites = self.size.regions.pair_sites(number)
                hosts = [name_host(site, number % self.size.hosts) for site in sites]
                spec = {"owner": "eva", "hosts": hosts, "deadline_s": 3600, "lease_s": 86400}
                self._time(lambda: client.get("/v1/clusters/c000001"))
                self._time(lambda: client.put(f"/v1/clusters/new{number}", json={"spec": spec}))  # noqa: B023 - called at once
                self._time(lambda: client.delete(f"/v1/clusters/new{number}"))  # noqa: B023
                time.sleep(self.pause_s)

    def _time(self, call: Callable[[], httpx.Response]) -> None:
        started = time.monotonic()
        call().raise_for_status()
        self.times.append((started, time.monotonic() - started))

    def describe(self, since: float) -> str:
        """Return a text with the number of calls that ended after ``since``, and with their durations."""
        times = [duration for started, duration in list(self.times) if started + duration >= since]
        if len(times) < 2:  # noqa: PLR2004 - quantiles need two values
            return f"{len(times)} other calls"
        cuts = quantiles(times, n=100, method="inclusive")
        return f"{len(times)} other calls: median {cuts[49]:.3f} s, p99 {cuts[98]:.3f} s, longest {max(times):.3f} s"


@contextmanager
def open_client(token: str) -> Iterator[httpx.Client]:
    """Yield a client with its own connection."""
    headers = {"authorization": f"Bearer {token}", "user-agent": "bench"}
    with httpx.Client(base_url=f"http://{LISTEN}", headers=headers, timeout=TIMEOUT_S) as client:
        yield client


@contextmanager
def running(database: str) -> Iterator[int]:
    """Run SBF in a process. Yield the process ID when SBF is ready."""
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.scale.topology_changes", "--serve", database]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        while not _is_ready():
            time.sleep(0.05)
        seconds, processor_s = time.monotonic() - started, read_processor_s(process.pid)
        print(f"ready after {seconds:.1f} s, {processor_s:.1f} s of processor time")  # noqa: T201
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def _is_ready() -> bool:
    try:
        return httpx.get(f"http://{LISTEN}/readyz").is_success
    except httpx.HTTPError:
        return False


def read_processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def read_memory_mb(pid: int) -> int:
    """Return the highest resident memory of a process so far, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def change_one_site(client: httpx.Client) -> httpx.Response:
    """Replace one site's part of the topology."""
    path = f"/v1/sites/{name_site(2)}/topology"
    answer = client.get(path).raise_for_status()
    part = answer.json()
    open_filters(part["site"])
    return client.put(path, json=part, headers={"if-match": answer.headers["etag"]})


def change_whole_at_one_site(client: httpx.Client) -> httpx.Response:
    """Replace the whole topology by a topology in which one site differs."""
    return change_whole(client, slice(1, 2), open_filters)


def change_every_host(client: httpx.Client) -> httpx.Response:
    """Replace the whole topology by a topology in which every host differs, but the wiring is equal."""
    return change_whole(client, slice(None), open_filters)


def change_every_port(client: httpx.Client) -> httpx.Response:
    """Replace the whole topology by a topology in which every host has one port more or less."""
    return change_whole(client, slice(None), change_ports)


def change_whole(client: httpx.Client, sites: slice, change: Callable[[dict[str, Any]], None]) -> httpx.Response:
    """Replace the whole topology. ``change`` changes the sites at the indices ``sites``."""
    answer = client.get("/v1/topology").raise_for_status()
    document = answer.json()
    for site in document["sites"][sites]:
        change(site)
    body = json.dumps(document).encode()
    headers = {"content-type": "application/json", "if-match": answer.headers["etag"]}
    return client.put("/v1/topology", content=body, headers=headers)


def open_filters(site: dict[str, Any]) -> None:
    """Change every host of a site: invert the key ``open_filters``."""
    for host in site["hosts"]:
        host["open_filters"] = not host["open_filters"]


def change_ports(site: dict[str, Any]) -> None:
    """Add the port ``SPARE_PORT`` to every host of a site, or remove the port from every host."""
    for host in site["hosts"]:
        host["ports"] = sorted({SPARE_PORT} ^ set(host["ports"]))


CHANGES: dict[str, Callable[[httpx.Client], httpx.Response]] = {
    "one site": change_one_site,
    "one site again": change_one_site,
    "whole, one site differs": change_whole_at_one_site,
    "whole, every host differs": change_every_host,
    "whole, ports of every host differ": change_every_port,
}


def change_topology(token: str, name: str) -> float:
    """Change the topology. Return the duration of the change's request in seconds.

    Call this function in a separate process: parsing a large topology would hold Python's global interpreter lock and
    delay the callers' threads.
    """
    with open_client(token) as client:
        return CHANGES[name](client).raise_for_status().elapsed.total_seconds()


def stop(callers: Callers, threads: Iterable[threading.Thread]) -> None:
    """Stop the callers, and wait for their last calls."""
    callers.stopping = True
    for thread in threads:
        thread.join()


def measure(callers: Callers, token: str, pid: int) -> None:
    """Measure each change, and print how long the change and the callers' calls take.

    Also print SBF's processor time and memory, and the durations of calls without a change.
    """
    threads = [threading.Thread(target=callers.run, daemon=True) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    time.sleep(IDLE_S)  # the first calls parse the topology
    since = time.monotonic()
    time.sleep(IDLE_S)
    print(f"no change: {callers.describe(since)}")  # noqa: T201
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(change_topology, token, "one site").result()  # the first change waits for the process's imports
        for name in CHANGES:
            since, before = time.monotonic(), read_processor_s(pid)
            duration_s = process.submit(change_topology, token, name).result()
            processor_s = read_processor_s(pid) - before
            print(  # noqa: T201
                f"{name}: {duration_s:.2f} s, {processor_s:.2f} s of processor time including the other calls, "
                f"memory at most {read_memory_mb(pid)} MB; {callers.describe(since)}",
                flush=True,
            )
    stop(callers, threads)


def main() -> None:
    """Fill a database, start SBF and measure."""
    parser = argparse.ArgumentParser(prog="benchmarks.scale.topology_changes")
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("--serve", metavar="DATABASE")
    parser.add_argument("--pause", type=float, default=0.5)
    parser.add_argument("size", nargs="*", type=int, default=[1000, 100, 1000])
    options = parser.parse_args()
    if options.serve:
        serve(make_settings(options.serve))
        return
    size = InstallationSize(*options.size)
    with open_database(options.database) as (database, _):
        token = fill_database(database, size)
        with running(database) as pid:
            measure(Callers(size, token, options.pause), token, pid)


if __name__ == "__main__":
    main()
