"""Tests of the scripts that Torque runs after a job, and at each SIGTERM to a job, for example after ``qdel``."""

import getpass

import pytest
from support.batch_fakes.torque_host import (
    UNKNOWN,
    SbfCall,
    ScriptResult,
    TorqueHost,
    listed,
    problem,
    script_job_states,
)
from support.programs.fake_agent import BUSY, FakeAnswer

from pbs_hooks.torque.scripts import prologue_epilogue

ENDING = ("epilogue", "epilogue.parallel", "epilogue.precancel")
USER = getpass.getuser()
MISSING_SOCKET = "/nonexistent/agent.sock"


@pytest.fixture
def _no_absence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue_epilogue, "AGENT_ABSENCE_S", 0.0)


@pytest.mark.parametrize("script", ENDING)
def test_a_job_without_a_request_causes_no_calls(bench: TorqueHost, script: str) -> None:
    assert bench.run(script, "nodes=2,walltime=01:00:00") == ScriptResult(0, "")
    assert (bench.agent_requests, bench.sbf_calls) == ([], [])


@pytest.mark.parametrize("script", ["epilogue", "epilogue.parallel"])
def test_the_epilogue_waits_for_the_removal(bench: TorqueHost, script: str) -> None:
    gone = [False, True]
    bench.answer_as_agent = lambda _: {"ok": True, "gone": gone.pop(0), "missing": []}
    assert bench.run(script) == ScriptResult(0, "")
    assert (
        bench.agent_requests == [{"do": "remove", "cluster": "7.torque", "attempt": 0, "user": USER, "wait": 30.0}] * 2
    )


def test_the_epilogue_has_a_time_limit(bench: TorqueHost) -> None:
    bench.settings(patience=1)
    bench.answer_as_agent = lambda _: {"ok": True, "gone": False, "missing": ["guest g1 is still there"]}
    assert bench.run("epilogue") == ScriptResult(0, "")


def test_a_sister_blocks_its_mom_only_briefly(bench: TorqueHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sister host's MoM runs the scripts in its only process. Therefore the MoM is blocked until the scripts end."""
    monkeypatch.setattr(prologue_epilogue, "SISTER_WAIT_S", 1.0)
    bench.settings(patience=260)
    bench.answer_as_agent = lambda _: {"ok": True, "gone": False, "missing": ["guest g1 is still there"]}
    assert bench.run("epilogue.parallel") == ScriptResult(0, "")
    assert bench.agent_requests[0]["wait"] <= 1


def test_the_environment_file_is_deleted(bench: TorqueHost) -> None:
    bench.run("prologue")
    bench.run("epilogue")
    assert list((bench.folder / "environments").iterdir()) == []


@pytest.mark.usefixtures("_no_absence")
def test_without_an_agent_sbf_is_called(bench: TorqueHost) -> None:
    bench.settings(socket=MISSING_SOCKET)
    assert bench.run("epilogue") == ScriptResult(0, "")
    assert bench.sbf_calls == [SbfCall("DELETE", f"/v1/clusters/7.torque?owner={USER}", None)]


@pytest.mark.usefixtures("_no_absence")
def test_without_agent_and_sbf_the_lease_is_mentioned(bench: TorqueHost) -> None:
    bench.settings(socket=MISSING_SOCKET, sbf="http://127.0.0.1:1")
    ran = bench.run("epilogue")
    assert ran.code == 2
    assert ran.stderr.endswith("the job's cluster will end with its lease\n")


@pytest.mark.usefixtures("_no_absence")
def test_a_sister_reports_that_its_agent_is_absent(bench: TorqueHost) -> None:
    bench.settings(socket=MISSING_SOCKET)
    ran = bench.run("epilogue.parallel")
    assert (ran.code, bench.sbf_calls) == (2, [])
    assert "this host's agent does not answer" in ran.stderr


@pytest.mark.parametrize("first", [[], BUSY], ids=["restarting", "busy"])
@pytest.mark.parametrize("script", ["epilogue", "epilogue.parallel"])
def test_the_epilogue_waits_for_an_absent_agent(bench: TorqueHost, script: str, first: FakeAnswer) -> None:
    """Without the wait, the agent's record of the job and the job script's access to guests would remain."""
    answers, usual = [first], bench.answer_as_agent
    bench.answer_as_agent = lambda request: answers.pop() if answers else usual(request)
    assert bench.run(script) == ScriptResult(0, "")
    assert ([one["do"] for one in bench.agent_requests], bench.sbf_calls) == (["remove", "remove"], [])


@pytest.mark.usefixtures("_no_absence")
def test_the_epilogue_calls_sbf_if_the_agent_stays_busy(bench: TorqueHost) -> None:
    bench.answer_as_agent = lambda _: BUSY
    assert bench.run("epilogue") == ScriptResult(0, "")
    assert bench.sbf_calls == [SbfCall("DELETE", f"/v1/clusters/7.torque?owner={USER}", None)]


def test_qdel_cancels_the_attempt(bench: TorqueHost) -> None:
    assert bench.run("epilogue.precancel") == ScriptResult(0, "")
    assert bench.agent_requests == [
        {"do": "cancel", "cluster": "7.torque", "attempt": 0, "user": USER, "reason": "qdel"}
    ]


def test_qdel_does_not_wait_for_a_refusing_agent(bench: TorqueHost) -> None:
    bench.answer_as_agent = lambda _: {"ok": False, "error": "forbidden", "detail": "uid 1000 may not ask"}
    assert bench.run("epilogue.precancel") == ScriptResult(0, "")


def test_every_script_may_be_repeated(bench: TorqueHost) -> None:
    for script in ("prologue.parallel", "prologue", "epilogue.precancel", "epilogue.parallel", "epilogue"):
        assert bench.run(script) == bench.run(script) == ScriptResult(0, "")


@pytest.mark.usefixtures("_no_absence")
def test_a_refusal_of_sbf_is_reported(bench: TorqueHost) -> None:
    bench.settings(socket=MISSING_SOCKET)
    bench.answer_as_sbf = lambda _: problem(403, "forbidden", "job-starter@n9 has no part in cluster 7.torque")
    ran = bench.run("epilogue")
    assert ran.code == 2
    assert "job-starter@n9 has no part in cluster 7.torque; the job's cluster will end with its lease\n" in ran.stderr


@pytest.mark.usefixtures("_no_absence")
def test_a_cluster_unknown_to_sbf_is_no_error(bench: TorqueHost) -> None:
    bench.settings(socket=MISSING_SOCKET)
    bench.answer_as_sbf = lambda _: UNKNOWN
    assert bench.run("epilogue") == ScriptResult(0, "")


def test_an_undeletable_environment_file_does_not_prevent_the_removal(bench: TorqueHost) -> None:
    (bench.folder / "environments/7.Torque").mkdir(parents=True)
    ran = bench.run("epilogue")
    assert (ran.code, [one["do"] for one in bench.agent_requests]) == (2, ["remove"])


DELETED = ScriptResult(1, "vcluster: the job was deleted while its cluster was being set up\n")
OVER = [listed(("7.torque", False), state="cancelled"), listed(("7.torque", True)), listed(("6.torque", False))]


def set_list_answer(bench: TorqueHost, answer: FakeAnswer) -> None:
    usual = bench.answer_as_agent
    bench.answer_as_agent = lambda request: answer if request["do"] == "list" else usual(request)


@pytest.mark.parametrize("answer", OVER, ids=["cancelled", "leaving", "gone"])
def test_a_job_deleted_without_sbf_is_not_requeued(bench: TorqueHost, answer: FakeAnswer) -> None:
    """If the prologue requeued a job after a qdel, a real Torque would run the job again."""
    bench.settings(sbf="http://127.0.0.1:1")
    set_list_answer(bench, answer)
    assert bench.run("prologue") == DELETED


def test_a_job_deleted_during_a_refusal_is_not_requeued(bench: TorqueHost) -> None:
    refused = problem(409, "no-vlan-free", "no VLAN is free at brno")
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else refused
    set_list_answer(bench, OVER[0])
    assert bench.run("prologue") == DELETED


def test_an_error_of_the_agent_is_not_a_deletion(bench: TorqueHost) -> None:
    refused = problem(409, "no-vlan-free", "no VLAN is free at brno")
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else refused
    set_list_answer(bench, {"ok": False, "error": "fault", "detail": "the agent stops"})
    assert bench.run("prologue").code == 2


def test_the_end_of_a_former_run_deletes_no_job(bench: TorqueHost) -> None:
    answers = [problem(409, "attempt-waits", "attempt 1 is still there"), (201, {})]
    bench.answer_as_sbf = lambda call: UNKNOWN if call.method == "GET" else answers.pop(0)
    default, over = bench.answer_as_agent, {"ok": True, "state": "ended", "missing": [], "reason": None}
    bench.answer_as_agent = lambda request: over if answers and request["do"] == "state" else default(request)
    assert bench.run("prologue") == ScriptResult(0, "")


def test_the_wait_ends_if_an_epilogue_removed_the_attempt(bench: TorqueHost) -> None:
    script_job_states(bench, {"ok": False, "error": "not-found", "detail": "was never announced"})
    assert bench.run("prologue") == DELETED
