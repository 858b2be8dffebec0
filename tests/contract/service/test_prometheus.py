"""Test of the rules and dashboards in ``monitoring/`` with a real Prometheus, while all faults are present at once.

The alerts fire without their delay (``for``). The metrics of a gateway and the metrics of node_exporter come from a
page with fixed values.
"""

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import uvicorn
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from support.sbf_fakes.world import EVPN, FakeClock, World, make_world, spec, three_edges

from sbf_service.http.app import create_app
from virtcloud.model.access import Role

ROOT = Path(__file__).parents[3]
RULES = sorted((ROOT / "monitoring/prometheus").glob("*.yml"))
DASHBOARDS = sorted((ROOT / "monitoring/grafana").glob("*.json"))
PAGE = """
virtcloud_build_info{version="0.0.1"} 1
virtcloud_outside_names_failing{gateway="brno-g1"} 1
node_timex_offset_seconds 0.9
node_timex_sync_status 0
node_filesystem_avail_bytes{mountpoint="/",fstype="ext4"} 5
node_filesystem_size_bytes{mountpoint="/",fstype="ext4"} 100
node_systemd_unit_state{name="virtcloud-agent.service",state="active"} 0
"""


class LostDatabase(FakeClock):
    """The clock of a database that no longer answers."""

    def __call__(self, session: Session) -> datetime:
        raise OperationalError("SELECT 1", {}, Exception("gone"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    installation = make_world(tmp_path)
    installation.furnish("100-101", three_edges({**EVPN, "vnis": "10100-10108"}))
    cause_faults(installation)
    settings = installation.service.settings
    settings.__dict__["tls_certificate"] = write_certificate(tmp_path / "sbf.crt", timedelta(days=3))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage())
    yield installation
    settings.__dict__["tls_certificate"] = None
    installation.close()


class Usage:
    """The usage of a file system that is almost full."""

    total, free = 100, 5


def cause_faults(world: World) -> None:
    world.put("degraded", spec("brno-h1", "praha-h1"))
    world.put("quarantined", spec("plzen-h1"))
    world.settle()
    world.switches["plzen-sw1"].cut_off = True
    world.delete("quarantined")
    world.switches["praha-sw1"].save_fails = "flash is full"
    world.put("unsaved", spec("praha-h1"))
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.dead_hosts.add("brno-h1")
    world.service.scheduler.sweep._started = -1e9  # as if the service had started long ago
    for _ in range(3):
        world.clock.advance(500)
        world.settle()


def load(world: World) -> None:
    metrics = world.service.metrics
    with world.store.change():
        time.sleep(1.1)
    metrics.record_reconciliation("fake", "failed", 0.1)
    for status in (200, 500):
        metrics.record_request("PUT", "/v1/clusters/{key}", status, 9)
    for _ in range(100):
        metrics.record_denial("unauthenticated")
    metrics.record_outside_use("brno-g1", "web", {"connections": 1, "sent_bytes": 1, "received_bytes": 1})
    metrics.record_traffic("brno", dict.fromkeys(("received_bytes", "sent_bytes", "received_frames", "sent_frames"), 1))


def write_certificate(path: Path, valid: timedelta) -> Path:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + valid)
    path.write_bytes(made.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return path


@contextmanager
def served(world: World) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(world.service), lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    listening.close()


@contextmanager
def page() -> Iterator[str]:
    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(PAGE.encode())

        def log_message(self, *_arguments: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def prometheus(folder: Path, token: str, targets: list[str], exporter: str) -> Iterator[httpx.Client]:
    """Run Prometheus with the rules of ``monitoring/``, without the delays of alerts. Yield a client of its API."""
    for path in RULES:
        (folder / path.name).write_text(re.sub(r"for: \w+", "for: 0s", path.read_text()))
    (folder / "token").write_text(token)
    jobs = [
        {
            "job_name": "virtcloud",
            "static_configs": [{"targets": targets}],
            "authorization": {"credentials_file": str(folder / "token")},
        },
        {"job_name": "virtcloud-hosts", "static_configs": [{"targets": [exporter]}]},
    ]
    interval = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": interval, "rule_files": [str(folder / "virtcloud-*.yml")], "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603 - Debian's program
            [*command, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log
        )
    try:
        port = find_port(folder / "log")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def find_port(log: Path) -> int:
    """Wait until Prometheus listens, and return the port that the kernel chose."""
    deadline = time.monotonic() + 60
    while (found := re.search(r'"Listening on" address=127\.0\.0\.1:(\d+)', log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return int(found[1])


def wait_for(reached: Callable[[], set[str]], lacking: str) -> None:
    """Wait until ``reached()`` returns an empty set. After three minutes, fail with ``lacking`` and the set."""
    deadline = time.monotonic() + 180
    while missing := reached():
        assert time.monotonic() < deadline, f"{lacking}: {sorted(missing)}"
        time.sleep(0.2)


def names_of_alerts() -> set[str]:
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


def expressions() -> set[str]:
    panels = [panel for path in DASHBOARDS for panel in json.loads(path.read_text())["panels"]]
    return {re.sub(r"\$\w+", ".*", target["expr"]) for panel in panels for target in panel["targets"]}


def test_every_alert_fires_and_every_panel_has_data(world: World, tmp_path: Path) -> None:
    (tmp_path / "lost").mkdir()
    lost = make_world(tmp_path / "lost")
    lost.service.store.__dict__["clock"] = LostDatabase()
    with served(world) as one, served(lost) as two, page() as exporter:
        targets = [one, two, "127.0.0.1:1"]
        with prometheus(tmp_path, world.token(Role.OPERATOR, "prometheus"), targets, exporter) as client:

            def query(expression: str) -> list[object]:
                try:
                    answer = client.get("/api/v1/query", params={"query": expression})
                except httpx.TransportError:
                    return []  # Prometheus has not started yet
                if answer.status_code == 503:
                    return []
                assert answer.json()["status"] == "success", f"{expression}: {answer.text}"
                found: list[object] = answer.json()["data"]["result"]
                return found

            def silent() -> set[str]:
                load(world)
                return {name for name in names_of_alerts() if not query(f'ALERTS{{alertname="{name}"}}')}

            wait_for(silent, "alerts that do not fire")
            wait_for(lambda: {each for each in expressions() if not query(each)}, "panels without data")
    lost.close()
