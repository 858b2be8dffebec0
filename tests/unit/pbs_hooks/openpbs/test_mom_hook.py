"""Tests of the MoM hook at each event, in a fake PBS interpreter, with a fake agent on a real socket.

A sister is a host of a job other than the job's first host.
"""

import getpass
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.programs.fake_agent import (
    BUSY,
    FACTS,
    FakeAgent,
    FakeAnswer,
    agent_socket,
    answer_first_request,
    fake_agent,
)

from pbs_hooks.bundle import bundle_hook
from virtcloud.testing.fakepbs import HookEvent, HookJob, HookOutcome, run_hook

MOM = bundle_hook("mom")
AGAIN = "; the job will be tried again"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    with fake_agent(tmp_path / "agent.sock") as running:
        yield running


def job(folder: Path, *, head: bool = True, substate: int = 41, request: str | None = "image=a") -> HookJob:
    return HookJob(
        "12.PBSsrv",
        attributes={
            "run_version": 3,
            "euser": getpass.getuser(),
            "substate": substate,
            "exec_vnode": "(n1[0]:ncpus=1+n1[1]:ncpus=1)+(n2:ncpus=1)",
        },
        resources={"vcluster": request} if request else {},
        variables={"VCLUSTER_LAST": "2 vcluster: of before"},
        first_host=head,
        stderr_file=str(folder / "12.ER"),
    )


def hook(kind: str, folder: Path, settings: dict[str, object] | None = None, **more: object) -> HookOutcome:
    """Run the hook at an event. By default, the event belongs to run 3 of job 12.PBSsrv, on the job's first host."""
    fields = {"job": None if kind.startswith("exechost") else job(folder)} | more
    config = json.dumps({"socket": str(folder / "agent.sock"), "patience": 5} if settings is None else settings)
    outcome = run_hook(MOM, HookEvent(kind, config=config, **fields))  # type: ignore[arg-type]
    assert outcome.failure is None, (outcome.traceback, outcome.printed)
    return outcome


def reason(outcome: HookOutcome) -> str | None:
    """Return the job variable in which the hook passes the reason of a failed run to the server hook."""
    return outcome.changed.get("Variable_List.VCLUSTER_LAST")


def job_log(outcome: HookOutcome) -> list[str]:
    return [text for _, text in outcome.job_log]


KEY = {"cluster": "12.pbssrv", "attempt": 3, "user": getpass.getuser()}


def test_a_job_without_a_request_is_accepted_without_settings(tmp_path: Path, agent: FakeAgent) -> None:
    assert hook("execjob_begin", tmp_path, job=job(tmp_path, request=None), settings={"nonsense": 1}).accepted
    assert agent.asked() == []


@pytest.mark.parametrize("head", [True, False])
def test_begin_announces_the_attempt_without_waiting(tmp_path: Path, agent: FakeAgent, head: bool) -> None:
    agent.say("waiting", "host n2 at brno has not confirmed")
    assert hook("execjob_begin", tmp_path, job=job(tmp_path, head=head)).accepted
    assert agent.asked() == [{"do": "up", **KEY, "head": head}]


def test_begin_rejects_without_an_agent(tmp_path: Path) -> None:
    outcome = hook("execjob_begin", tmp_path)
    assert not outcome.accepted
    text = "vcluster: host n1: this host's agent does not answer at "
    text += f"{tmp_path}/agent.sock: No such file or directory; "
    assert outcome.message == text + "check it: systemctl status virtcloud-agent" + AGAIN
    assert reason(outcome) == "3 " + outcome.message.replace("[", "%5B").replace("]", "%5D").replace("'", "%27")
    assert (outcome.delete, outcome.rerun, "Hold_Types" in outcome.changed) == (False, False, False)


def test_begin_withdraws_a_refused_request(tmp_path: Path, agent: FakeAgent) -> None:
    """After a rejection in begin, PBS runs the hook at neither abort nor end. So begin itself withdraws the request."""
    agent.refuses["up"] = "gone"
    outcome = hook("execjob_begin", tmp_path)
    assert outcome.message == "vcluster: host n1: cluster 12.pbssrv: gone" + AGAIN
    assert agent.asked("remove") == [{"do": "remove", **KEY, "wait": 0}]


def test_begin_repeats_a_request_to_a_busy_agent(tmp_path: Path, agent: FakeAgent) -> None:
    answer_first_request(agent, BUSY)
    assert hook("execjob_begin", tmp_path).accepted
    assert [request["do"] for request in agent.asked()] == ["up", "up"]


def test_begin_rejects_while_the_agent_stays_busy(
    tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "MOM", MOM.replace("BUSY_TIMEOUT_S = 8.0", "BUSY_TIMEOUT_S = 0.2"))
    agent.refuses["up"] = "too-many-requests"
    outcome = hook("execjob_begin", tmp_path)
    assert outcome.message == "vcluster: host n1: cluster 12.pbssrv: too-many-requests" + AGAIN
    assert agent.asked("remove") == [{"do": "remove", **KEY, "wait": 0}]


def test_the_first_host_reports_a_rejecting_sister(tmp_path: Path) -> None:
    """PBS may lose variables that a sister host sets. So the first host reports the failed start at its abort event."""
    outcome = hook("execjob_begin", tmp_path, job=job(tmp_path, head=False))
    assert (outcome.accepted, outcome.changed) == (False, {})
    text = "vcluster: one of the hosts n1%2C n2 could not start the job; the log of the failed host has the reason"
    assert reason(hook("execjob_abort", tmp_path)) == f"3 {text}{AGAIN}"


def test_an_abort_keeps_the_reason_of_the_first_host(tmp_path: Path) -> None:
    refused = replace(job(tmp_path), variables={"VCLUSTER_LAST": "3 vcluster: mine"})
    assert hook("execjob_abort", tmp_path, job=refused).changed == {}
    assert hook("execjob_abort", tmp_path, job=job(tmp_path, head=False)).changed == {}


def test_a_job_of_an_array_is_deleted(tmp_path: Path, agent: FakeAgent) -> None:
    """An array with a request is rejected at submission. This array got its request later, from its queue."""
    outcome = hook("execjob_begin", tmp_path, job=replace(job(tmp_path), id="12[1].PBSsrv"))
    assert (outcome.message, outcome.delete) == ("vcluster: job arrays are not supported", True)
    assert agent.asked() == []


def test_the_script_may_start_when_the_network_is_up(tmp_path: Path, agent: FakeAgent) -> None:
    outcome = hook("execjob_prologue", tmp_path)
    assert outcome.accepted
    assert job_log(outcome)[-1].startswith("vcluster: the network is up after ")


def test_only_the_first_host_waits_in_the_prologue(tmp_path: Path, agent: FakeAgent) -> None:
    agent.say("waiting", "guest g1 does not answer at 10.0.0.2")
    assert hook("execjob_prologue", tmp_path, job=job(tmp_path, head=False)).accepted
    assert agent.asked() == []


def later(seconds: float, *, do: object) -> threading.Timer:
    assert callable(do)
    timer = threading.Timer(seconds, do)
    timer.start()
    return timer


def test_the_prologue_logs_each_change_of_the_missing_parts(tmp_path: Path, agent: FakeAgent) -> None:
    agent.in_turn = [
        ("waiting", ["host n2 at brno has not confirmed", "guest g2 does not answer at 10.0.0.3"]),
        ("waiting", ["guest g2 does not answer at 10.0.0.3"]),
        ("waiting", ["guest g2 does not answer at 10.0.0.3"]),
        ("up", []),
    ]
    outcome = hook("execjob_prologue", tmp_path)
    assert outcome.accepted
    assert job_log(outcome)[:-1] == [
        "vcluster: waiting for the network: host n2 at brno has not confirmed; guest g2 does not answer at 10.0.0.3",
        "vcluster: waiting for the network: guest g2 does not answer at 10.0.0.3",
    ]


def test_a_timeout_reports_the_missing_parts(tmp_path: Path, agent: FakeAgent) -> None:
    agent.say("waiting", "guest g2 does not answer at 10.0.0.3")
    outcome = hook("execjob_prologue", tmp_path, {"socket": str(tmp_path / "agent.sock"), "patience": 1})
    text = "vcluster: the network is not up after 1 s: guest g2 does not answer at 10.0.0.3" + AGAIN
    assert (outcome.accepted, outcome.message, reason(outcome)) == (False, text, "3 " + text)
    assert (tmp_path / "12.ER").read_text() == text + "\n"
    assert job_log(outcome)[-1] == text
    assert agent.asked("remove") == [{"do": "remove", **KEY, "wait": 0}]


@pytest.mark.parametrize("state", ["failed", "ended"])
def test_a_failed_network_requeues_the_job(tmp_path: Path, agent: FakeAgent, state: str) -> None:
    agent.say(state, reason="switch sw3 refused twice")
    outcome = hook("execjob_prologue", tmp_path)
    assert outcome.message == "vcluster: the network could not be set up: switch sw3 refused twice" + AGAIN
    assert reason(outcome) == "3 " + outcome.message.replace(",", "%2C")
    assert not outcome.delete


def test_the_prologue_deletes_a_deleted_job(tmp_path: Path, agent: FakeAgent) -> None:
    """PBS ignores a deletion that arrives during the prologue. So the hook requests the deletion again."""
    agent.say("waiting", "guest g2 does not answer at 10.0.0.3")
    deletion = later(0.5, do=lambda: hook("execjob_preterm", tmp_path))
    outcome = hook("execjob_prologue", tmp_path, {"socket": str(tmp_path / "agent.sock"), "patience": 60})
    deletion.join()
    assert (outcome.accepted, outcome.delete, outcome.message) == (False, True, "vcluster: the job was deleted")
    assert reason(outcome) is None


def test_the_agent_may_restart_during_the_prologue(tmp_path: Path, agent: FakeAgent) -> None:
    answer_first_request(agent, [])
    outcome = hook("execjob_prologue", tmp_path)
    assert outcome.accepted
    assert "host n1: this host's agent does not answer" in job_log(outcome)[0]


def test_a_run_unknown_to_the_agent_is_requeued(tmp_path: Path, agent: FakeAgent) -> None:
    agent.refuses["state"] = "gone"
    outcome = hook("execjob_prologue", tmp_path)
    assert (outcome.accepted, outcome.message) == (False, "vcluster: host n1: cluster 12.pbssrv: gone" + AGAIN)


def test_the_alarm_reports_the_missing_parts(tmp_path: Path, agent: FakeAgent) -> None:
    agent.say("waiting", "guest g2 does not answer at 10.0.0.3")
    outcome = hook("execjob_prologue", tmp_path, alarm=2.0)
    text = "vcluster: the hook's alarm expired while the network was set up: guest g2 does not answer at 10.0.0.3"
    assert (outcome.accepted, outcome.message) == (False, text + AGAIN)
    assert len(agent.asked("remove")) == 1


def test_launch_sets_the_scripts_environment(tmp_path: Path, agent: FakeAgent) -> None:
    env = {"PATH": "/bin", "VCLUSTER_LAST": "2 vcluster: of before", "VCLUSTER_TOLD": "2"}
    outcome = hook("execjob_launch", tmp_path, env=env)
    assert outcome.accepted
    assert outcome.env == {"PATH": "/bin", **FACTS}


def test_launch_removes_variables_of_another_jobs_cluster(tmp_path: Path, agent: FakeAgent) -> None:
    """The job was submitted with ``qsub -V`` in the script of a job with a cluster."""
    env = {"VCLUSTER_ID": "11.pbssrv", "VCLUSTER_NAME": "former", "VCLUSTER_KNOWN_HOSTS": "/gone", "VCLUSTER_MINE": "1"}
    assert hook("execjob_launch", tmp_path, env=env).env == {"VCLUSTER_MINE": "1", **FACTS}


def test_launch_waits_for_a_restarting_sbf(tmp_path: Path, agent: FakeAgent) -> None:
    agent.in_turn = [("waiting", ["SBF does not answer"]), ("up", [])]
    assert hook("execjob_launch", tmp_path).accepted


def test_time_with_a_busy_agent_is_not_counted_as_absence(
    tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent is busy for longer than the permitted absence, and then restarts."""
    monkeypatch.setitem(globals(), "MOM", MOM.replace("AGENT_ABSENCE_S = 60.0", "AGENT_ABSENCE_S = 2.0"))
    answers: list[FakeAnswer] = [*[BUSY] * 5, []]
    agent.socket.answer = lambda request: answers.pop(0) if answers else agent.answer(request)
    assert hook("execjob_prologue", tmp_path).accepted


def test_launch_repeats_a_request_to_a_busy_agent(tmp_path: Path, agent: FakeAgent) -> None:
    answer_first_request(agent, BUSY)
    assert hook("execjob_launch", tmp_path).accepted


def test_launch_rejects_a_lost_network(tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook rejects the event and calls ``rerun()``. Without the call, PBS would delete the job."""
    monkeypatch.setitem(globals(), "MOM", MOM.replace("LAUNCH_TIMEOUT_S = 30.0", "LAUNCH_TIMEOUT_S = 1.0"))
    agent.say("waiting", "host n2 at brno has not confirmed")
    outcome = hook("execjob_launch", tmp_path)
    text = "the network was lost before the script could start: host n2 at brno has not confirmed"
    assert (outcome.accepted, outcome.rerun, outcome.message) == (False, True, f"vcluster: {text}{AGAIN}")


def test_launch_deletes_a_deleted_job(tmp_path: Path, agent: FakeAgent) -> None:
    """The deletion arrived after the prologue. The hook does not call ``rerun()``, which would run the job again."""
    agent.say("cancelled", reason="the job was deleted")
    outcome = hook("execjob_launch", tmp_path)
    assert (outcome.accepted, outcome.rerun, outcome.delete) == (False, False, True)
    assert outcome.message == "vcluster: the job was deleted"


def test_processes_of_a_running_script_are_not_rejected(tmp_path: Path, agent: FakeAgent) -> None:
    agent.say("waiting", "host n2 at brno has not confirmed")
    assert hook("execjob_launch", tmp_path, job=job(tmp_path, substate=42)).accepted


@pytest.mark.parametrize(("substate", "accepted"), [(41, False), (42, True)])
def test_a_missing_agent_requeues_a_job_only_before_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, substate: int, accepted: bool
) -> None:
    monkeypatch.setitem(globals(), "MOM", MOM.replace("LAUNCH_TIMEOUT_S = 30.0", "LAUNCH_TIMEOUT_S = 0.0"))
    outcome = hook("execjob_launch", tmp_path, job=job(tmp_path, substate=substate))
    assert (outcome.accepted, outcome.rerun) == (accepted, not accepted)
    assert job_log(outcome)[0].startswith("vcluster: host n1: this host's agent does not answer at ")


def test_processes_of_a_running_script_start_despite_a_refusal(tmp_path: Path, agent: FakeAgent) -> None:
    agent.refuses["state"] = "gone"
    outcome = hook("execjob_launch", tmp_path, job=job(tmp_path, substate=42))
    assert (outcome.accepted, job_log(outcome)) == (True, ["vcluster: host n1: cluster 12.pbssrv: gone"])


def test_launch_on_a_sister_does_nothing(tmp_path: Path, agent: FakeAgent) -> None:
    assert hook("execjob_launch", tmp_path, job=job(tmp_path, head=False)).accepted
    assert agent.asked() == []


def test_preterm_cancels_the_attempt_only_on_the_first_host(tmp_path: Path, agent: FakeAgent) -> None:
    """On the other hosts, PBS runs preterm whenever a job ends, so the event does not mean a deletion there."""
    assert hook("execjob_preterm", tmp_path, job=job(tmp_path, head=False)).accepted
    assert agent.asked() == []
    assert hook("execjob_preterm", tmp_path).accepted
    assert agent.asked() == [{"do": "cancel", **KEY, "reason": "the job was deleted"}]


@pytest.mark.parametrize(("kind", "wait"), [("execjob_abort", 0.0), ("execjob_end", 30)])
def test_the_end_event_removes_the_attempt(tmp_path: Path, agent: FakeAgent, kind: str, wait: float) -> None:
    assert hook(kind, tmp_path).accepted
    assert agent.asked() == [{"do": "remove", **KEY, "wait": wait}]


def test_the_end_event_waits_as_long_as_configured(tmp_path: Path, agent: FakeAgent) -> None:
    assert hook("execjob_end", tmp_path, {"socket": str(tmp_path / "agent.sock"), "removal": 2}).accepted
    assert agent.asked() == [{"do": "remove", **KEY, "wait": 2}]


def test_an_incomplete_removal_is_logged(tmp_path: Path, agent: FakeAgent) -> None:
    agent.gone = False
    outcome = hook("execjob_end", tmp_path)
    assert outcome.accepted
    assert job_log(outcome) == ["vcluster: not removed completely yet: host n1 still has guest g1"]


@pytest.mark.parametrize("kind", ["execjob_abort", "execjob_end"])
def test_an_end_event_without_an_agent_is_accepted(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "MOM", MOM.replace("END_TIMEOUT_S = 8.0", "END_TIMEOUT_S = 0.0"))
    outcome = hook(kind, tmp_path)
    assert outcome.accepted
    (text,) = job_log(outcome)
    assert text.startswith("vcluster: this host's agent does not answer")
    assert text.endswith("; the server hook or reconciliation will end the cluster")


@pytest.mark.parametrize("first", [[], BUSY])
def test_the_end_event_waits_for_a_restarting_or_busy_agent(
    tmp_path: Path, agent: FakeAgent, first: FakeAnswer
) -> None:
    answer_first_request(agent, first)
    outcome = hook("execjob_end", tmp_path)
    assert (outcome.accepted, job_log(outcome)) == (True, [])
    assert agent.runs == {("12.pbssrv", 3): "ended"}


def test_a_deletion_of_a_running_job_sends_only_one_request(tmp_path: Path) -> None:
    with agent_socket(tmp_path / "agent.sock", lambda _: []) as silent:
        assert hook("execjob_preterm", tmp_path, job=job(tmp_path, substate=42)).accepted
        assert len(silent.asked) == 1


@pytest.mark.parametrize("first", [[], BUSY])
def test_a_deletion_before_the_script_repeats_requests_to_the_agent(
    tmp_path: Path, agent: FakeAgent, first: FakeAnswer
) -> None:
    answer_first_request(agent, first)
    outcome = hook("execjob_preterm", tmp_path)
    assert (outcome.accepted, job_log(outcome)) == (True, [])
    assert agent.runs == {("12.pbssrv", 3): "cancelled"}


@pytest.mark.parametrize("kind", ["execjob_preterm", "execjob_abort", "execjob_end"])
def test_a_late_end_event_of_a_former_run_is_accepted(tmp_path: Path, agent: FakeAgent, kind: str) -> None:
    agent.refuses.update(cancel="gone", remove="gone")
    assert hook(kind, tmp_path).accepted


def test_the_periodic_event_reports_running_jobs(tmp_path: Path, agent: FakeAgent) -> None:
    jobs = (job(tmp_path), HookJob("13.pbssrv", {"run_version": 1}))
    assert hook("exechost_periodic", tmp_path, job_list=jobs).accepted
    assert agent.asked() == [{"do": "running", "clusters": [["12.pbssrv", 3]]}]


def test_the_periodic_report_omits_jobs_of_arrays(tmp_path: Path, agent: FakeAgent) -> None:
    """A job of an array can run if it started while the hooks were disabled.

    The ID of this job is not a valid key of a cluster. If a report contained this ID, the agent would refuse the whole
    report.
    """
    of_array = replace(job(tmp_path), id="5[1].pbssrv")
    assert hook("exechost_periodic", tmp_path, job_list=(of_array, job(tmp_path))).accepted
    assert agent.asked() == [{"do": "running", "clusters": [["12.pbssrv", 3]]}]


def test_the_server_may_run_the_mom_hook(tmp_path: Path, agent: FakeAgent) -> None:
    """If a hook has the event ``exechost_periodic``, OpenPBS 23.06 also runs the hook in the server."""
    assert hook("periodic", tmp_path).accepted
    assert agent.asked() == []


def test_the_startup_event_sends_no_report(tmp_path: Path, agent: FakeAgent) -> None:
    """An empty report would claim that the jobs that continue under ``pbs_mom -p`` are missing."""
    assert hook("exechost_startup", tmp_path).accepted
    assert agent.asked() == []


def test_an_unexpected_error_is_logged_and_holds_the_job(tmp_path: Path, agent: FakeAgent) -> None:
    agent.facts = None  # type: ignore[assignment]
    outcome = hook("execjob_launch", tmp_path)
    assert (outcome.accepted, outcome.rerun, outcome.changed["Hold_Types"]) == (False, True, "s")
    assert (
        outcome.message
        == "vcluster: an internal error of the hook on this host; the job is held for the administrators"
    )
    assert any("Traceback" in text for _, text in outcome.log)


def test_invalid_settings_prevent_a_jobs_start_and_are_named(tmp_path: Path) -> None:
    outcome = hook("execjob_begin", tmp_path, {"sokcet": "/x", "patience": 900})
    assert outcome.message == "vcluster: the hook's settings are invalid on this host" + AGAIN
    assert next(text for _, text in outcome.log).splitlines() == [
        "vcluster: the hook's settings: expected one of socket, patience, removal, hosts, got 'sokcet'",
        "the hook's setting patience: expected seconds from 1 to 570, below the hook's alarm, got 900",
    ]


def test_invalid_settings_do_not_prevent_a_jobs_end(tmp_path: Path) -> None:
    assert hook("execjob_end", tmp_path, {"sokcet": "/x"}).accepted
