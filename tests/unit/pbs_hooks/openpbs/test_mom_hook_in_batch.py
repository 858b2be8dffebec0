"""Tests of the MoM hook in a complete fake batch system with two hosts, each with an agent."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.programs.fake_agent import FakeAgent, fake_agent

from pbs_hooks.bundle import bundle_hook
from virtcloud.testing.fakepbs import (
    BatchJobState,
    BatchSubmission,
    FakeBatch,
    FakeHost,
    HookDefinition,
    HookEvent,
    HookOutcome,
    JobStatus,
    run_hook,
)

MOM = bundle_hook("mom")
WANTED = BatchSubmission("env; echo ran", select="2:ncpus=1", resources={"vcluster": "image=a"}, user="root")


class HostWithAgent(FakeHost):
    """A host whose hook uses the socket of the host's own agent."""

    def hook(self, hook: HookDefinition, event: HookEvent) -> HookOutcome:
        assert event.config is not None
        return run_hook(hook.text, replace(event, config=event.config.replace("HOST", self.name)))


@dataclass
class Site:
    """Two hosts with their agents, and the batch system."""

    batch: FakeBatch
    agents: dict[str, FakeAgent]
    folder: Path

    def until(self, job: str, reached: Callable[[JobStatus], bool]) -> JobStatus:
        for _ in range(1200):
            status = self.batch.status(job)
            if reached(status):
                return status
            time.sleep(0.05)
        raise AssertionError(self.batch.status(job))

    def events(self) -> list[tuple[str, str]]:
        return [(one.host, one.event) for one in self.batch.seen]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        agents = {name: stack.enter_context(fake_agent(tmp_path / f"{name}.sock")) for name in ("n1", "n2")}
        hook = HookDefinition(MOM, config=json.dumps({"socket": f"{tmp_path}/HOST.sock", "patience": 20}))
        batch = stack.enter_context(FakeBatch([HostWithAgent("n1"), HostWithAgent("n2")], tmp_path, mom_hook=hook))
        yield Site(batch, agents, tmp_path)


def finished(status: JobStatus) -> bool:
    return status.state is BatchJobState.FINISHED


def test_a_job_gets_its_environment_and_leaves_nothing(site: Site) -> None:
    job = site.batch.submit(WANTED)
    assert site.until(job, finished).exit_status == 0
    assert "VCLUSTER_GUESTS=g1 g2" in site.batch.output(job).stdout
    for name, agent in site.agents.items():
        asked = [one["do"] for one in agent.asked()]
        assert (asked[0], asked[-1]) == ("up", "remove"), name
    assert [agent.asked("up")[0]["head"] for agent in site.agents.values()] == [True, False]


def test_a_waiting_job_that_is_deleted_ends_immediately(site: Site) -> None:
    site.agents["n1"].say("waiting", "host n2 at brno has not confirmed")
    job = site.batch.submit(WANTED)
    site.until(job, lambda _: bool(site.agents["n1"].asked("state")))
    site.batch.delete(job)
    status = site.until(job, finished)
    assert (status.run_version, status.exit_status) == (1, -17)
    assert site.batch.output(job).stderr == "vcluster: the job was deleted\n"
    assert "ran" not in site.batch.output(job).stdout
    assert all(agent.asked("remove") for agent in site.agents.values())


def test_a_job_whose_network_fails_runs_again_with_another_attempt(site: Site) -> None:
    site.agents["n1"].in_turn = [("failed", [])]
    site.agents["n1"].reason = "switch sw3 refused"
    job = site.batch.submit(WANTED)
    site.until(job, lambda status: status.run_version == 2)
    site.agents["n1"].say("up")
    site.until(job, finished)
    for name, agent in site.agents.items():
        assert [one["attempt"] for one in agent.asked("up")][:2] == [1, 2], name
        assert agent.asked("remove")[0]["attempt"] == 1, name


def test_a_host_without_an_agent_requeues_the_job(site: Site) -> None:
    site.agents["n2"].refuses["up"] = "forbidden"
    job = site.batch.submit(WANTED)
    site.until(job, lambda one: one.run_version == 2)
    aborted = next(one for one in site.batch.seen if (one.host, one.event) == ("n1", "execjob_abort"))
    left = aborted.outcome.changed["Variable_List.VCLUSTER_LAST"]
    assert left.startswith("1 vcluster: one of the hosts n1%2C n2 could not start the job")
    assert ("n1", "execjob_prologue") not in site.events()


def test_a_forced_deletion_during_the_prologue_starts_no_script(site: Site) -> None:
    site.agents["n1"].say("waiting", "host n2 at brno has not confirmed")
    job = site.batch.submit(WANTED)
    site.until(job, lambda _: bool(site.agents["n1"].asked("state")))
    site.batch.delete(job, force=True)
    for _ in range(1200):
        if ("n1", "execjob_prologue") in site.events():
            break
        time.sleep(0.05)
    prologue = next(one for one in site.batch.seen if (one.host, one.event) == ("n1", "execjob_prologue"))
    assert not prologue.outcome.accepted
    assert "ran" not in site.batch.output(job).stdout
