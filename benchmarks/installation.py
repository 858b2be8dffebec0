"""The installation that is measured: the real service, sites with one switch and two hosts each, and a database."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from emulators.switch_device import ENABLE_SECRET, PASSWORD

from benchmarks.switches import PLATFORM
from virtcloud.client.connection import USER_AGENT

Database = Callable[[], AbstractContextManager[str | None]]


def databases() -> Iterator[tuple[str, Database]]:
    """Yield each available kind of database: its name, and a context that yields its address (None: a file)."""
    yield "SQLite", lambda: nullcontext(None)
    try:
        from postgres import NoPostgresError, programs  # noqa: PLC0415 - it needs a driver that may be absent
    except ImportError as error:
        print(f"SKIPPED: PostgreSQL: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return
    try:
        programs()
    except NoPostgresError as error:
        print(f"SKIPPED: PostgreSQL: {error}", file=sys.stderr)  # noqa: T201 - a command's output
        return
    yield "PostgreSQL", _postgresql


@contextmanager
def _postgresql() -> Iterator[str]:
    from postgres import running  # noqa: PLC0415 - see above

    with running(fsync="on", full_page_writes="on") as server:
        yield server.url(server.new_database())


HOST_PORTS = ("GigabitEthernet1/0/1", "GigabitEthernet1/0/2")
UPLINK = "GigabitEthernet1/0/7"
LOOK_AGAIN_S = 0.1
PATIENCE_S = 180
WORKERS = 64


def site(number: int, address: str, pool_of_hosts: int = 2) -> dict[str, Any]:
    """Return a site: a switch with a port for each host and one to the core."""
    name = f"s{number}"
    ports = list(HOST_PORTS[:pool_of_hosts])
    return {
        "name": name,
        "attachments": [{"transport": "core", "port": f"{name}-sw:{UPLINK}"}],
        "switches": [
            {
                "name": f"{name}-sw",
                "platform": PLATFORM,
                "address": address,
                "credential": "lab",
                "ports": [*ports, UPLINK],
            }
        ],
        "hosts": [{"name": f"{name}-h{n}", "ports": ["eth0"]} for n in range(1, pool_of_hosts + 1)],
    }


def topology(addresses: list[str]) -> dict[str, Any]:
    """Return a topology with one site for each switch's address, all connected by one core."""
    sites = [site(number, address) for number, address in enumerate(addresses, start=1)]
    links = [
        {"a": f"{site['name']}-h{n}:eth0", "b": f"{site['name']}-sw:{port}"}
        for site in sites
        for n, port in enumerate(HOST_PORTS, start=1)
    ]
    core = [{"name": "core", "kind": "qinq", "s_tag": 2000}]
    return {"name": "bench", "transports": core, "sites": sites, "links": links}


def request(*hosts: str) -> dict[str, Any]:
    """Return a request for a cluster on these hosts."""
    return {"spec": {"owner": "bench", "hosts": list(hosts), "deadline_s": 3600, "lease_s": 86400}}


@dataclass(frozen=True)
class MeasuredSbf:
    """A running service with hosts whose agents confirm at once."""

    client: httpx.Client
    process: subprocess.Popen[bytes]
    listen: str
    token: str

    def install(self, addresses: list[str], vlans: str = "100-999") -> None:
        """Put topology and pools, and wait until everything is confirmed."""
        self.call("PUT", "/v1/topology", topology(addresses))
        for number in range(1, len(addresses) + 1):
            self.call("PUT", f"/v1/sites/s{number}/pool", {"vlans": vlans})
        self.settle()

    def set_up(self, key: str, *hosts: str) -> float:
        """Request a cluster and return the seconds until it is active."""
        started = time.monotonic()
        self.call("PUT", f"/v1/clusters/{key}", request(*hosts))
        self.confirm_hosts()
        self.wait(key, "active")
        return time.monotonic() - started

    def end(self, key: str) -> None:
        """Delete a cluster and wait until it is gone."""
        self.call("DELETE", f"/v1/clusters/{key}")
        self.confirm_hosts()
        self.wait(key, "released")

    def wait(self, key: str, state: str) -> None:
        """Wait until a cluster has this state."""
        self._until(lambda: self.call("GET", f"/v1/clusters/{key}")["state"] == state, f"cluster {key} {state}")

    def ready_within(self) -> float:
        """Return the seconds until the service is ready."""
        started = time.monotonic()
        self._until(lambda: self.client.get("/readyz").is_success, "the service ready")
        return time.monotonic() - started

    def settle(self) -> None:
        """Wait until every element has confirmed its wanted revision."""

        def settled() -> bool:
            return not self.confirm_hosts()

        self._until(settled, "all elements confirmed")

    def confirm_hosts(self) -> list[str]:
        """Confirm the wanted revision of every host. Return the elements that are still behind."""
        behind = [
            element
            for element in self.call("GET", "/v1/elements")
            if element["confirmed_revision"] < element["wanted_revision"]
        ]
        for element in behind:
            if element["kind"] != "switch":
                told = {"revision": element["wanted_revision"]}
                self.call("POST", f"/v1/elements/{element['name']}/confirmed", told)
        return [element["name"] for element in behind]

    def call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
        """Make one call. Raise httpx's error with the service's message."""
        answer = self.client.request(method, path, json=body)
        if answer.is_error:
            raise AssertionError(f"{method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    def memory_mb(self) -> float:
        """Return the resident memory of the service's process, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kilobytes) / 1024

    def processor_s(self) -> float:
        """Return the processor time of the service, in seconds."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _until(self, holds: Any, what: str) -> None:  # noqa: ANN401 - a question without arguments
        ends = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > ends:
                raise AssertionError(f"waited {PATIENCE_S} s for: {what}")
            time.sleep(LOOK_AGAIN_S)


@contextmanager
def serving(folder: Path, database: str | None = None, drift_interval: int = 86400) -> Iterator[MeasuredSbf]:
    """Run ``sbf serve`` with a database (by default a file in ``folder``) in a process of its own."""
    listen = f"127.0.0.1:{_free_port()}"
    config = folder / "sbf.toml"
    config.write_text(_settings(folder, database or sqlite(folder), listen, drift_interval), encoding="utf-8")
    token = _token(config)
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", "sbf_service", "serve", "--config", str(config)], stderr=log
        ) as process,
        httpx.Client(
            base_url=f"http://{listen}", timeout=60, headers=bearer(token) | {"user-agent": USER_AGENT}
        ) as client,
    ):
        try:
            _wait_for(client, process, folder / "log")
            yield MeasuredSbf(client, process, listen, token)
        finally:
            process.terminate()


def sqlite(folder: Path) -> str:
    """Return the address of a database in a folder."""
    return f"sqlite:///{folder / 'sbf.db'}"


def bearer(token: str) -> dict[str, str]:
    """Return the header with a token."""
    return {"authorization": f"Bearer {token}"}


def _token(config: Path) -> str:
    """Create an operator's token, as on the service's own machine."""
    command = [sys.executable, "-m", "sbf_service", "token", "create", "bench", "--role", "operator"]
    made = subprocess.run(  # noqa: S603 - our own
        [*command, "--config", str(config)], check=True, capture_output=True, text=True
    )
    return made.stdout.strip()


def _settings(folder: Path, database: str, listen: str, drift_interval: int) -> str:
    for name, secret in (("password", PASSWORD), ("enable", ENABLE_SECRET)):
        (folder / name).write_text(secret, encoding="utf-8")
    top = {"database": database, "listen": listen, "replica": "bench", "workers": WORKERS}
    lab = {
        "username": "admin",
        "password.file": str(folder / "password"),
        "enable.file": str(folder / "enable"),
    }
    timing = {"drift_interval": drift_interval, "agent_silence": 86400}
    tables: dict[str, dict[str, Any]] = {"credentials.lab": lab, "timing": timing}
    return _toml(top) + "".join(f"[{name}]\n{_toml(table)}" for name, table in tables.items())


def _toml(table: dict[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def _wait_for(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + 30
    while True:
        try:
            client.get("/healthz").raise_for_status()
        except httpx.HTTPError as error:
            if process.poll() is not None or time.monotonic() > ends:
                raise AssertionError(f"sbf serve does not answer: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
