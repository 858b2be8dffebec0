"""Tests that ``/readyz`` is cheap for frequent callers and fails when the database cannot be written."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from threading import Event

import httpx
import pytest
from support.sbf_fakes.http_calls import client
from support.sbf_fakes.world import World

from sbf_service.http import app
from sbf_service.http.routes import monitoring
from sbf_service.http.routes.monitoring import DATABASE_READ_ONLY, DATABASE_TIMEOUT, PROBE_TIMEOUT_S, ReadinessProbe

START_S = 120.0
"""Seconds in which a service must start, even on a busy machine. The wait also stops if the service ends."""
ON_A_SMALL_DISK = (
    "mount -t tmpfs -o size=4m none $0 && cp sbf.toml $0 && echo $$ && cd $0 && exec {} -m sbf_service serve"
)


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def test_a_hundred_concurrent_probes_query_the_database_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    probes: list[int] = []
    monkeypatch.setattr(app, "probe_database", lambda _service: [str(probes.append(1))])

    async def run() -> None:
        async with client(world.service, token="") as http:
            await asyncio.gather(*(http.get("/readyz") for _ in range(100)))

    asyncio.run(run())
    assert probes == [1]


def test_a_probe_is_reused_for_two_seconds() -> None:
    now, calls = [100.0], iter("abc")
    readiness = ReadinessProbe(lambda: [next(calls)], lambda: now[0])

    async def run() -> list[str]:
        results = []
        for seconds in (0, 1.9, 0.1):
            now[0] += seconds
            results += await readiness.find_faults()
        return results

    assert asyncio.run(run()) == ["a", "a", "b"]


def test_a_hanging_database_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "PROBE_TIMEOUT_S", 0.05)
    release = Event()
    readiness = ReadinessProbe(lambda: [str(release.wait(10))])

    async def run() -> list[str]:
        faults = list(await readiness.find_faults())
        release.set()
        return faults

    assert asyncio.run(run()) == [DATABASE_TIMEOUT]
    assert PROBE_TIMEOUT_S == 5


def test_a_service_on_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    disk, socket = tmp_path / "disk", tmp_path / "s"
    disk.mkdir()
    text = f'database = "sqlite:///{disk}/sbf.db"\nlisten = "127.0.0.1:0"\nsocket = "{socket}"\n'
    (tmp_path / "sbf.toml").write_text(text)
    command = f"{ON_A_SMALL_DISK.format(sys.executable)} --config sbf.toml"
    argv = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command, str(disk)]
    with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own command
        try:
            assert process.stdout is not None
            filler = Path(f"/proc/{int(process.stdout.readline())}/root{disk}/filler")
            until(lambda: socket.is_socket() or process.poll() is not None, START_S)
            transport = httpx.HTTPTransport(uds=str(socket), retries=5)
            with httpx.Client(transport=transport, base_url="http://sbf", timeout=60) as http:
                until(lambda: http.get("/readyz").status_code == 200)
                fill(filler)
                until(lambda: http.get("/readyz").status_code == 503)
                assert http.get("/readyz").json()["detail"] == DATABASE_READ_ONLY
                filler.unlink()
                until(lambda: http.get("/readyz").status_code == 200)
        finally:
            process.kill()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        file.writelines(repeat(bytes(4096)))


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)
