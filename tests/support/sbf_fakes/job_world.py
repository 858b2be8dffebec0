"""Functions that create a job's cluster at a real SBF, and that call a host's agent about the job."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from support.hosts.job_socket_agent import Agent
from support.sbf_fakes.http_calls import app_of
from support.sbf_fakes.world import World, spec
from virtcloud.model.cluster import ClusterState

JOB = "12.pbs"
SPEC = spec(
    "brno-h1",
    "praha-h1",
    owner="root",
    name="demo",
    guests=[
        {"name": "g1", "host": "brno-h1", "image": "x", "cpus": 2, "addresses": ["10.0.0.1/24"]},
        {"name": "g2", "host": "praha-h1", "image": "x", "addresses": ["10.0.0.2/24", "fd00::2/64"]},
    ],
)


@contextmanager
def serving(world: World) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app_of(world.service), port=0, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        world.service.change_feed.close()
        thread.join()


def state(host: Agent, wait: float = 0, attempt: int = 1) -> tuple[str, list[str]]:
    answer = host.ask("state", JOB, attempt, wait=wait)
    assert answer["ok"], answer
    return answer["state"], answer["missing"]


def until(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < ends
        time.sleep(0.01)


def active(world: World, host: Agent, attempt: int = 1, *, head: bool = True) -> None:
    world.put(JOB, SPEC, attempt=attempt)
    host.bridges.answering["br100"] = {"10.0.0.1", "10.0.0.2"}
    world.settle()
    host.up(JOB, attempt, head=head)


def end_run(world: World, host: Agent, attempt: int = 1) -> dict[str, object]:
    first = host.ask("remove", JOB, attempt)
    until(lambda: world.view(JOB).state not in {ClusterState.CONFIGURING, ClusterState.ACTIVE})
    world.settle()
    return first if first["gone"] else host.ask("remove", JOB, attempt, wait=30)
