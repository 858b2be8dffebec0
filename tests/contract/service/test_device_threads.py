"""Tests that on-demand reads of devices use their own threads, so that hanging reads delay no other call."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import httpx
import pytest
from support.sbf_fakes.http_calls import body, client, problem
from support.sbf_fakes.world import World, make_world, site

from sbf_service.overload import BoundedThreads
from virtcloud.model.errors import ServiceBusy
from virtcloud.model.topology import Topology

SWITCHES = 40
"""The number of switches, equal to anyio's default number of threads. Calls that read no device use these threads."""
SIXTEEN = "too many readings of devices: 16 are running; try again in 5 s"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Forty sites. A read of any switch hangs until the end of the test."""
    names = [f"s{number}" for number in range(SWITCHES)]
    installation, release = make_world(tmp_path), Event()
    installation.furnish(
        topology=Topology.model_validate(
            {
                "name": "forty",
                "sites": [site(name, 1) | {"attachments": []} for name in names],
                "links": [{"a": f"{name}-h1:eth0", "b": f"{name}-sw1:p1"} for name in names],
            }
        )
    )
    for name in names:
        installation.switches[f"{name}-sw1"].hangs = release
    yield installation
    release.set()
    installation.close()


async def start_hanging_reads(
    http: httpx.AsyncClient, world: World, call: str = "difference?read=true"
) -> list[asyncio.Task[httpx.Response]]:
    """Request a read of each of the forty switches. Wait until the permitted number of reads is in progress."""
    paths = [f"/v1/elements/s{number}-sw1/{call}" for number in range(SWITCHES)]
    readings = [asyncio.create_task(http.get(path)) for path in paths]
    while sum(bool(world.switches[f"s{number}-sw1"].calls) for number in range(SWITCHES)) < 16:  # noqa: ASYNC110 - the state changes in other threads
        await asyncio.sleep(0.01)
    return readings


@pytest.mark.parametrize("call", ["difference?read=true", "ports"])
def test_polls_and_confirmations_continue_while_forty_readings_hang(world: World, call: str) -> None:
    async def run() -> list[int]:
        async with client(world.service) as http:
            readings = await start_hanging_reads(http, world, call)
            calls = [
                http.put("/v1/clusters/demo", json=body("s0-h1")),
                http.get("/v1/elements/s1-h1/wanted?after=1&wait=0.1"),
                http.post("/v1/elements/s1-h1/confirmed", json={"revision": 1}),
                http.get("/v1/elements/s0-sw1/difference"),
            ]
            answers = await asyncio.wait_for(asyncio.gather(*calls), 30)
            for reading in readings:
                reading.cancel()
            return [answer.status_code for answer in answers]

    assert asyncio.run(run()) == [201, 200, 204, 200]


def test_a_reading_without_a_free_thread_is_answered_503(world: World) -> None:
    async def run() -> list[httpx.Response]:
        async with client(world.service) as http:
            readings = await start_hanging_reads(http, world)
            ends = asyncio.as_completed(readings, timeout=30)
            refusals = [await next(ends) for _ in range(SWITCHES - 16)]
            refusals += [await http.post(f"/v1/{path}") for path in ("elements/s39-sw1/reconcile", "sites/s39/verify")]
            refusals.append(await http.get("/v1/elements/s39-sw1/ports"))
            for reading in readings:
                reading.cancel()
            return refusals

    answers = asyncio.run(run())
    assert {(problem(answer), answer.headers["retry-after"]) for answer in answers} == {
        ((503, "service-busy", SIXTEEN), "5")
    }
    assert len(answers) == SWITCHES - 16 + 3


def test_a_cancelled_call_occupies_its_thread_until_the_call_ends() -> None:
    threads, release = BoundedThreads(1, "calls"), Event()

    async def run() -> str:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.run(release.wait), 0.05)
        with pytest.raises(ServiceBusy):
            await threads.run(str)
        release.set()
        return await threads.run(lambda: "done", max_wait_s=5)

    assert asyncio.run(run()) == "done"


def test_exceptions_in_a_thread_are_raised_in_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(BoundedThreads(1, "calls").run(lambda: 1 // 0))


def test_a_failed_start_of_a_thread_is_reported_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = BoundedThreads(1, "calls")

    def fail(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr("sbf_service.overload.Thread.start", fail)
        with pytest.raises(ServiceBusy, match="no thread can be started"):
            asyncio.run(threads.run(str))
    assert asyncio.run(threads.run(lambda: "done")) == "done"
