"""Tests of several service processes on one PostgreSQL database, with emulated switches over SSH."""

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from support.emulators import emulate
from support.emulators.switch_device import EmulatedSwitch
from support.programs.postgres import PostgresServer
from support.programs.sbf_process import SbfProcess
from support.sbf_fakes.world import spec

pytestmark = pytest.mark.postgresql

SITES = ("brno", "praha")
HOSTS = ("brno-h1", "praha-h1")
TIMING = "connect_timeout = 2\nread_timeout = 0.5\nretry_first = 0.2\nretry_most = 1\nworker_lease = 6\n"


def wait_until(holds: Callable[[], Any], seconds: float = 40) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := holds()):
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)
    return value


@dataclass
class Replica:
    """A process of the service."""

    name: str
    process: SbfProcess
    http: httpx.Client

    def put(self, key: str, *hosts: str) -> httpx.Response:
        return self.http.put(f"/v1/clusters/{key}", json={"spec": spec(*hosts).model_dump(mode="json")})

    def cluster(self, key: str) -> dict[str, Any]:
        view: dict[str, Any] = self.http.get(f"/v1/clusters/{key}").raise_for_status().json()
        return view

    def element(self, name: str) -> dict[str, Any]:
        view: dict[str, Any] = self.http.get(f"/v1/elements/{name}").raise_for_status().json()
        return view

    def confirm_hosts(self) -> None:
        for host in HOSTS:
            wanted = self.http.get(f"/v1/elements/{host}/wanted").raise_for_status().json()
            answer = self.http.post(f"/v1/elements/{host}/confirmed", json={"revision": wanted["revision"]})
            answer.raise_for_status()


@dataclass
class Installation:
    """Two sites with one switch each, and the replicas that serve them."""

    folder: Path
    database: str
    switches: dict[str, EmulatedSwitch]
    stack: ExitStack
    replicas: list[Replica] = field(default_factory=list)

    def start(self, count: int) -> list[Replica]:
        names = [f"r{number}" for number in range(count)]
        processes = [self._start(name) for name in names]
        for name, process in zip(names, processes, strict=True):
            socket = self.folder / f"{name}.sock"
            wait_until(socket.exists)
            transport = httpx.HTTPTransport(uds=str(socket), retries=5)
            client = self.stack.enter_context(httpx.Client(transport=transport, base_url="http://sbf", timeout=60))
            self.replicas.append(Replica(name, process, client))
        first = self.replicas[0]
        first.http.put("/v1/topology", json=self._topology()).raise_for_status()
        for site in SITES:
            first.http.put(f"/v1/sites/{site}/pool", json={"vlans": "100-139"}).raise_for_status()
            wait_until(partial(self.is_confirmed, first, f"{site}-sw1"))
        first.confirm_hosts()
        return self.replicas

    def is_confirmed(self, replica: Replica, name: str) -> bool:
        element = replica.element(name)
        return bool(element["confirmed_revision"] == element["wanted_revision"])

    def query(self, statement: str, *values: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database) as connection:
            return connection.execute(statement.encode(), values).fetchall()

    def wait_for_change(self, name: str) -> tuple[Replica, list[Replica]]:
        before = len(self.switches[name].commands)
        wait_until(lambda: "configure terminal" in self.switches[name].commands[before:])
        holder = self.query("SELECT lease_holder FROM elements WHERE name = %s", name)[0][0].removeprefix("sbf@")
        replica = next(replica for replica in self.replicas if replica.name == holder)
        return replica, [other for other in self.replicas if other is not replica]

    def confirmations(self, name: str, revision: int) -> list[str]:
        rows = self.query(
            "SELECT who FROM audit WHERE what = 'element_confirmed' AND element = %s AND why = %s",
            name,
            f"revision {revision}",
        )
        return [who for (who,) in rows]

    def carried(self, site: str) -> set[int]:
        return {vlan for vlans in self.switches[f"{site}-sw1"].carrying().values() for vlan in vlans if vlan >= 100}

    def _start(self, name: str) -> SbfProcess:
        path, folder = self.folder / f"{name}.toml", self.folder
        path.write_text(
            f'database = "{self.database}"\nlisten = "127.0.0.1:0"\nsocket = "{folder}/{name}.sock"\n'
            f'replica = "{name}"\n[timing]\n{TIMING}[credentials.lab]\nusername = "admin"\n'
            f'password = {{file = "{folder}/password"}}\nenable = {{file = "{folder}/enable"}}\n'
        )
        with (self.folder / f"{name}.log").open("wb") as log:
            process = SbfProcess("serve", "--config", str(path), stderr=log)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def _topology(self) -> dict[str, Any]:
        def site(name: str) -> dict[str, Any]:
            switch = self.switches[f"{name}-sw1"]
            element = {"name": f"{name}-sw1", "platform": switch.platform, "address": switch.address}
            return {
                "name": name,
                "attachments": [{"transport": "core", "port": f"{name}-sw1:Ethernet2"}],
                "switches": [element | {"credential": "lab", "ports": ["Ethernet1", "Ethernet2"]}],
                "hosts": [{"name": f"{name}-h1", "ports": ["eth0"]}],
            }

        return {
            "name": "two",
            "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
            "sites": [site(name) for name in SITES],
            "links": [{"a": f"{name}-h1:eth0", "b": f"{name}-sw1:Ethernet1"} for name in SITES],
        }


@pytest.fixture
def installation(tmp_path: Path, postgresql: str) -> Iterator[Installation]:
    with ExitStack() as stack:
        switches = {f"{site}-sw1": stack.enter_context(emulate("arista_eos")) for site in SITES}
        switch = switches["brno-sw1"]
        (tmp_path / "password").write_text(switch.password)
        (tmp_path / "enable").write_text(switch.secret)
        yield Installation(tmp_path, postgresql, switches, stack)


def test_three_replicas_never_claim_one_id_twice(installation: Installation) -> None:
    """Each of 45 requests from 15 threads needs one VLAN ID at each of the two sites.

    Each site's pool has 40 VLAN IDs.
    """
    replicas = installation.start(3)

    def create(number: int) -> httpx.Response:
        return replicas[number % 3].put(f"c{number}", *HOSTS)

    with ThreadPoolExecutor(15) as threads:
        answers = list(threads.map(create, range(45)))
    allocated = [answer.json()["vlans"] for answer in answers if answer.status_code == 201]
    assert sorted(vlans["brno"] for vlans in allocated) == list(range(100, 140))
    assert sorted(vlans["praha"] for vlans in allocated) == list(range(100, 140))
    refused = {answer.json()["type"] for answer in answers if answer.status_code != 201}
    assert refused == {"urn:virtcloud:problem:no-vlan-free"}
    wait_until(lambda: all(installation.is_confirmed(replicas[1], f"{site}-sw1") for site in SITES))
    replicas[2].confirm_hosts()
    key = next(f"c{number}" for number, answer in enumerate(answers) if answer.status_code == 201)
    wait_until(lambda: replicas[0].cluster(key)["state"] == "active")
    version = replicas[0].cluster(key)["version"]
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(replicas[0].http.get, f"/v1/clusters/{key}?after={version}&wait=30")
        time.sleep(0.3)  # wait until the request has arrived, which cannot be observed from outside
        started = time.monotonic()
        replicas[1].http.delete(f"/v1/clusters/{key}").raise_for_status()
        assert poll.result(30).json()["state"] == "draining"
        assert time.monotonic() - started < 10, (
            "expected a notice of the other replica to end the wait; without a notice, the wait lasts up to 15 s"
        )


def test_another_replica_continues_after_a_kill(installation: Installation) -> None:
    replicas = installation.start(2)
    installation.switches["brno-sw1"].slowness = 0.2
    with ThreadPoolExecutor(1) as threads:
        change = threads.submit(installation.wait_for_change, "brno-sw1")
        vlan = replicas[0].put("demo", *HOSTS).json()["vlans"]["brno"]
        killed, (other,) = change.result()
    killed.process.send_signal(signal.SIGKILL)
    installation.switches["brno-sw1"].slowness = 0
    other.confirm_hosts()
    wait_until(lambda: other.cluster("demo")["state"] == "active")
    assert installation.carried("brno") == installation.carried("praha") == {vlan}
    other.http.delete("/v1/clusters/demo").raise_for_status()
    wait_until(lambda: installation.is_confirmed(other, "brno-sw1") and installation.is_confirmed(other, "praha-sw1"))
    other.confirm_hosts()
    assert other.cluster("demo")["state"] == "released"
    assert installation.carried("brno") == set()


def test_a_replica_suspended_past_its_lease_confirms_nothing(installation: Installation) -> None:
    """If the suspended replica later changes the switch, SBF reads the switch again."""
    replicas = installation.start(3)
    switch = installation.switches["brno-sw1"]
    switch.slowness = 0.2
    with ThreadPoolExecutor(1) as threads:
        change = threads.submit(installation.wait_for_change, "brno-sw1")
        vlan = replicas[0].put("demo", "brno-h1").json()["vlans"]["brno"]
        suspended, others = change.result()
    suspended.process.send_signal(signal.SIGSTOP)
    revision = others[0].element("brno-sw1")["wanted_revision"]
    switch.slowness = 0
    wait_until(lambda: installation.is_confirmed(others[0], "brno-sw1"))
    (successor,) = installation.confirmations("brno-sw1", revision)
    assert successor != f"sbf@{suspended.name}"
    suspended.process.send_signal(signal.SIGCONT)
    wait_until(lambda: others[0].element("brno-sw1")["wanted_revision"] == revision + 1)
    assert installation.confirmations("brno-sw1", revision) == [successor]
    wait_until(lambda: installation.is_confirmed(others[0], "brno-sw1"))
    others[0].confirm_hosts()
    assert suspended.cluster("demo")["state"] == "active"
    assert installation.carried("brno") == {vlan}


def test_a_change_completes_despite_a_database_restart(
    installation: Installation, postgres_server: PostgresServer
) -> None:
    replicas = installation.start(2)
    installation.switches["brno-sw1"].slowness = 0.2
    with ThreadPoolExecutor(1) as threads:
        change = threads.submit(installation.wait_for_change, "brno-sw1")
        replicas[0].put("demo", *HOSTS).raise_for_status()
        change.result()
    postgres_server.stop(signal.SIGQUIT)
    try:
        for replica in replicas:
            answer = replica.http.get("/v1/clusters/demo")
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:virtcloud:problem:database-unavailable")
    finally:
        postgres_server.start()
    installation.switches["brno-sw1"].slowness = 0
    replicas[1].confirm_hosts()
    wait_until(lambda: replicas[0].cluster("demo")["state"] == "active")
    assert replicas[0].element("brno-sw1")["trouble"] is None
    assert [replica.process.poll() for replica in replicas] == [None, None]
