"""The measured installation: the real service, a database, and sites with one switch and two hosts each."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from support.emulators.switch_device import ENABLE_SECRET, PASSWORD

from benchmarks.switches import PLATFORM
from virtcloud.client.connection import USER_AGENT

Database = Callable[[], AbstractContextManager[str | None]]


def databases() -> Iterator[tuple[str, Database]]:
    """Yield each available kind of database, with a context that yields a new database's address (None for SQLite)."""
    yield "SQLite", lambda: nullcontext(None)
    try:
        from support.programs.postgres import NoPostgresError, programs  # noqa: PLC0415 - the module needs a driver that may be absent
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
    from support.programs.postgres import running  # noqa: PLC0415 - see above

    with running(fsync="on", full_page_writes="on") as server:
        yield server.url(server.new_database())


HOST_PORTS = ("GigabitEthernet1/0/1", "GigabitEthernet1/0/2")
UPLINK = "GigabitEthernet1/0/7"
POLL_S = 0.1
TIMEOUT_S = 180
WORKERS = 64
SBF_SERVE = ("-m", "sbf_service", "serve", "--config")


def site(number: int, address: str, hosts: int = 2) -> dict[str, Any]:
    """Return a site: a switch with a port for each host and a port to the core."""
    name = f"s{number}"
    ports = list(HOST_PORTS[:hosts])
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
        "hosts": [{"name": f"{name}-h{n}", "ports": ["eth0"]} for n in range(1, hosts + 1)],
    }


def topology(addresses: list[str]) -> dict[str, Any]:
    """Return a topology with one core, and a site for each switch address."""
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
    """A running service. The benchmark confirms revisions for the hosts, which have no agents."""

    client: httpx.Client
    process: subprocess.Popen[bytes]
    listen: str
    token: str

    def install(self, addresses: list[str], vlans: str = "100-999") -> None:
        """Set the topology and the pools, and wait until every element has confirmed its wanted revision."""
        self.call("PUT", "/v1/topology", topology(addresses))
        for number in range(1, len(addresses) + 1):
            self.call("PUT", f"/v1/sites/s{number}/pool", {"vlans": vlans})
        self.wait_confirmed()

    def set_up(self, key: str, *hosts: str) -> float:
        """Request a cluster and return the seconds until it is active."""
        started = time.monotonic()
        self.call("PUT", f"/v1/clusters/{key}", request(*hosts))
        self.confirm_hosts()
        self.wait(key, "active")
        return time.monotonic() - started

    def end(self, key: str) -> None:
        """Delete a cluster and wait until the cluster is released."""
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

    def wait_confirmed(self) -> None:
        """Wait until every element has confirmed its wanted revision."""
        self._until(lambda: not self.confirm_hosts(), "all elements confirmed")

    def confirm_hosts(self) -> list[str]:
        """Confirm the wanted revision of every host.

        Return the names of the elements that had not confirmed their wanted revisions before the call, including
        switches.
        """
        behind = [
            element
            for element in self.call("GET", "/v1/elements")
            if element["confirmed_revision"] < element["wanted_revision"]
        ]
        for element in behind:
            if element["kind"] != "switch":
                confirmation = {"revision": element["wanted_revision"]}
                self.call("POST", f"/v1/elements/{element['name']}/confirmed", confirmation)
        return [element["name"] for element in behind]

    def call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
        """Send a call and return the parsed answer. Raise AssertionError if the service refuses the call."""
        answer = self.client.request(method, path, json=body)
        if answer.is_error:
            raise AssertionError(f"{method} {path}: {answer.text}")
        return answer.json() if answer.content else None

    def memory_mb(self) -> float:
        """Return the resident memory of the service's process, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kilobytes) / 1024

    def processor_s(self) -> float:
        """Return the processor time of the service, in seconds."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _until(self, condition: Callable[[], bool], expected: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"expected within {TIMEOUT_S} s: {expected}")
            time.sleep(POLL_S)


@contextmanager
def serving(
    folder: Path,
    database: str | None = None,
    drift_interval: int = 86400,
    listen: str | None = None,
    program: Sequence[str] = SBF_SERVE,
    **more: object,
) -> Iterator[MeasuredSbf]:
    """Run ``sbf serve`` in a separate process, at a free port or at the address ``listen``.

    If ``database`` is None, the service uses an SQLite file in ``folder``. ``drift_interval`` is in seconds. ``more``
    are further settings, which replace the settings of the benchmarks. ``program`` lists the Python interpreter's
    arguments that start the service. The path of the settings file is appended to these arguments. The service finds
    the same modules as this process.
    """
    listen = listen or f"127.0.0.1:{free_port()}"
    config = folder / "sbf.toml"
    config.write_text(_settings(folder, database or sqlite(folder), listen, drift_interval, more), encoding="utf-8")
    token = _token(config)
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(  # noqa: S603 - the command is our own
            [sys.executable, *program, str(config)],
            stderr=log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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
    """Return the address of an SQLite database in a folder."""
    return f"sqlite:///{folder / 'sbf.db'}"


def bearer(token: str) -> dict[str, str]:
    """Return the HTTP header that carries a token."""
    return {"authorization": f"Bearer {token}"}


def _token(config: Path) -> str:
    command = [sys.executable, "-m", "sbf_service", "token", "create", "bench", "--role", "operator"]
    result = subprocess.run(  # noqa: S603 - the command is our own
        [*command, "--config", str(config)], check=True, capture_output=True, text=True
    )
    return result.stdout.strip()


def _settings(folder: Path, database: str, listen: str, drift_interval: int, more: Mapping[str, object]) -> str:
    for name, secret in (("password", PASSWORD), ("enable", ENABLE_SECRET)):
        (folder / name).write_text(secret, encoding="utf-8")
    top = {"database": database, "listen": listen, "replica": "bench", "workers": WORKERS}
    lab = {
        "username": "admin",
        "password.file": str(folder / "password"),
        "enable.file": str(folder / "enable"),
    }
    timing = {"drift_interval": drift_interval, "agent_silence": 86400}
    chosen: dict[str, object] = {**top, "credentials.lab": lab, "timing": timing, **more}
    tables = {name: value for name, value in chosen.items() if isinstance(value, dict)}
    values = {name: value for name, value in chosen.items() if name not in tables}
    return _toml(values) + "".join(f"[{name}]\n{_toml(table)}" for name, table in tables.items())


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


def free_port() -> int:
    """Return a TCP port of the loopback that no process uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
