"""The pause after a refusal because of a quota.

The pause lasts ten seconds, or until a cluster ends. During the pause, the hook sends SBF no request with the user,
hosts and walltime of the refused request.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.batch_fakes.scripted_sbf import ScriptedSbf, problem

from pbs_hooks.kit.hook_settings import validate_settings
from pbs_hooks.openpbs.hooks import runjob
from pbs_hooks.openpbs.hooks.openpbs_settings import SERVER_SETTINGS, ServerSettings
from pbs_hooks.openpbs.hooks.runjob import jobobit
from pbs_hooks.openpbs.hooks.server_event import ServerHookEvent

FULL = problem(409, "quota-exceeded", "alice already has 2 clusters (limit 2)")
MADE = (201, {"state": "configuring"})


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    runjob.forget_refusals()
    yield
    runjob.forget_refusals()


def event(
    sbf: ScriptedSbf, number: int, walltime: str = "1:00:00", run_version: int | None = None
) -> tuple[ServerHookEvent, Any]:
    """Return an event and the list of its rejections. Unlike in the fake PBS, all events share one interpreter."""
    shape = {"select": "1:ncpus=1", "place": "scatter:excl", "walltime": walltime}
    resources: dict[str, str | None] = defaultdict(lambda: None, vcluster="image=a", **shape)
    job = SimpleNamespace(
        id=f"{number}.srv",
        euser="alice",
        exec_vnode="(n1:ncpus=1)",
        run_version=run_version,
        Variable_List={},
        Resource_List=resources,
    )
    refused: list[str] = []
    pbs = SimpleNamespace(event=lambda: SimpleNamespace(job=job, reject=refused.append), LOG_ERROR=3, LOG_DEBUG=7)
    pbs.logmsg = lambda *_: None
    settings = ServerSettings(**validate_settings({"sbf": sbf.url, "token_file": None}, SERVER_SETTINGS))
    return ServerHookEvent(pbs, settings, time.monotonic()), refused


def start(sbf: ScriptedSbf, number: int, walltime: str = "1:00:00") -> Any:
    found, refused = event(sbf, number, walltime)
    runjob.runjob(found)
    return refused


def test_one_request_to_sbf_refuses_all_jobs(sbf: ScriptedSbf) -> None:
    for number in range(5):
        sbf.say(f"PUT /v1/clusters/{number}.srv", FULL)
        assert start(sbf, number) == ["vcluster: alice already has 2 clusters (limit 2)"]
    assert [call for call, _ in sbf.asked] == ["PUT /v1/clusters/0.srv"]


def test_a_too_long_job_does_not_block_a_shorter_job(sbf: ScriptedSbf) -> None:
    sbf.say("PUT /v1/clusters/1.srv", FULL)
    sbf.say("PUT /v1/clusters/2.srv", MADE)
    assert start(sbf, 1, "99:00:00") != []
    assert start(sbf, 2) == []


def test_the_end_of_a_cluster_clears_the_pause(sbf: ScriptedSbf) -> None:
    sbf.say("PUT /v1/clusters/1.srv", FULL, MADE)
    assert start(sbf, 1) != []
    jobobit(event(sbf, 9, run_version=1)[0])
    assert start(sbf, 1) == []
