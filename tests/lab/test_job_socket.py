import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.lab.clusters import ended, until
from support.lab.jobs import ask

from virtcloud.client.sbf import SbfClient
from virtcloud.lab import Lab
from virtcloud.lab.demo.context import ENTER_CONTAINER
from virtcloud.lab.snapshot import read_guests, run_checked, take_snapshot
from virtcloud.model.cluster import ClusterRequest, ClusterSpec

pytestmark = pytest.mark.lab

HEAD, OTHER = "brno-h1", "praha-h1"
USER = "nobody"
LIMIT_S = 60.0
SPEC = ClusterSpec.model_validate(
    {
        "owner": USER,
        "deadline_s": 60,
        "guests": [
            {"name": "g1", "host": HEAD, "image": "busybox", "memory_mb": 32, "addresses": ["10.0.0.1/24"]},
            {"name": "g2", "host": OTHER, "image": "busybox", "memory_mb": 32, "addresses": ["10.0.0.2/24"]},
            {"name": "g3", "host": OTHER, "image": "busybox", "memory_mb": 32, "addresses": ["fd00::3/64"]},
        ],
    }
)


@dataclass(frozen=True, slots=True)
class Hook:
    """The requests that a hook on the head host (the job's first host) makes for one job."""

    lab: Lab
    key: str

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        return ask(self.lab, HEAD, {"do": do, "cluster": self.key, "attempt": 1, **more})[0]

    def up(self) -> None:
        assert self.ask("up", head=True, user=USER) == {"ok": True}

    def wait(self, reached: Callable[[dict[str, Any]], bool], do: str = "state", wait: int = 10) -> dict[str, Any]:
        """Repeat a request, as a prologue does, until an answer fulfils the condition. Return that answer."""
        deadline = time.monotonic() + LIMIT_S
        while not reached(answer := self.ask(do, wait=wait)):
            assert time.monotonic() < deadline, answer
        return answer


@pytest.fixture(scope="module", autouse=True)
def _nothing_remains_at_the_end(lab: Lab, client: SbfClient) -> Iterator[None]:
    """After all tests, check that the elements are as before the tests. Check only once, because the check is slow."""
    assert not [view.key for view in client.clusters()]
    before = take_snapshot(lab, client.topology())
    yield
    assert take_snapshot(lab, client.topology()).describe_changes(before) == ""


@pytest.fixture
def hook(lab: Lab, request: pytest.FixtureRequest) -> Hook:
    return Hook(lab, f"{sum(map(ord, request.node.name))}.pbs")


def put(client: SbfClient, hook: Hook) -> None:
    client.put_cluster(hook.key, ClusterRequest(spec=SPEC, attempt=1))


def is_up(answer: dict[str, Any]) -> bool:
    return bool(answer["state"] == "up")


def is_missing(*words: str) -> Callable[[dict[str, Any]], bool]:
    return lambda answer: answer["missing"] == list(words)


def kill_agent(lab: Lab) -> None:
    agent = lab.service(HEAD, "agent")
    agent.kill()
    agent.start()


def in_guest(lab: Lab, name: str, *argv: str) -> None:
    (domain,) = (one for one in read_guests(lab, OTHER) if one.endswith(name))
    run_checked(lab, OTHER, "sh", "-c", ENTER_CONTAINER, domain, *argv)


def test_the_barrier_names_unreachable_hosts_and_guests(lab: Lab, client: SbfClient, hook: Hook) -> None:
    other_agent = lab.service(OTHER, "agent")
    other_agent.stop()
    hook.up()
    put(client, hook)
    hook.wait(is_missing(f"host {OTHER} at praha has not confirmed"))
    other_agent.start()
    facts = hook.wait(is_up)["facts"]
    assert facts["VCLUSTER_GUESTS"] == "g1 g2 g3"
    assert run_checked(lab, HEAD, "cat", facts["VCLUSTER_HOSTS"]) == "10.0.0.1 g1\n10.0.0.2 g2\nfd00::3 g3\n"
    assert run_checked(lab, HEAD, "stat", "-c", "%U %a", facts["VCLUSTER_HOSTS"]) == f"{USER} 600\n"
    for name, address in (("g2", "10.0.0.2"), ("g3", "fd00::3")):
        in_guest(lab, name, "/bin/ip", "link", "set", "eth0", "down")
        hook.wait(is_missing(f"guest {name} does not answer at {address}"))
        in_guest(lab, name, "/bin/ip", "link", "set", "eth0", "up")
        if name == "g3":  # the kernel removed the IPv6 address when the link went down
            in_guest(lab, name, "/bin/ip", "addr", "add", "fd00::3/64", "dev", "eth0")
        hook.wait(is_up)
    assert hook.ask("remove", wait=50) == {"ok": True, "gone": True, "missing": []}
    until(client, hook.key, ended)
    assert hook.key not in run_checked(lab, HEAD, "ls", "-A", "/run/virtcloud/jobs")


def test_an_agent_killed_in_any_phase_continues(lab: Lab, client: SbfClient, hook: Hook) -> None:
    hook.up()
    kill_agent(lab)
    assert hook.ask("state")["missing"] == [f"SBF has no cluster {hook.key} on host {HEAD}"]
    put(client, hook)
    facts = hook.wait(is_up)["facts"]
    kill_agent(lab)
    assert hook.ask("state", wait=10)["facts"] == facts
    hook.ask("cancel", reason="qdel")
    kill_agent(lab)
    assert (hook.ask("state")["state"], hook.ask("state")["reason"]) == ("cancelled", "qdel")
    hook.ask("remove")
    kill_agent(lab)
    assert hook.ask("remove", wait=50)["gone"]
    assert until(client, hook.key, ended).reason == f"ended by agent@{HEAD}"
    assert hook.ask("up", head=True, user=USER)["error"] == "gone"


def test_a_removal_continues_after_failures_of_sbf_and_the_agent(lab: Lab, client: SbfClient, hook: Hook) -> None:
    hook.up()
    put(client, hook)
    hook.wait(is_up)
    sbf = lab.service("station", "sbf")
    sbf.kill()
    hook.wait(lambda answer: not answer["gone"] and "SBF does not answer" in answer["missing"][0], "remove", 2)
    kill_agent(lab)
    sbf.start()
    assert hook.ask("remove", wait=50)["gone"]
    until(client, hook.key, ended)
