"""What becomes of a job that is deleted while its first host's prologue waits: it never runs again."""

import pytest
from fake_agent_socket import Answer
from torque_bench import UNKNOWN, Bench, Ran, listed, refusal, waits_with

DELETED = Ran(1, "vcluster: the job was deleted while its cluster was being set up\n")
OVER = [listed(("7.torque", False), state="cancelled"), listed(("7.torque", True)), listed(("6.torque", False))]


def knows(bench: Bench, answer: Answer) -> None:
    usual = bench.agent_says
    bench.agent_says = lambda request: answer if request["do"] == "list" else usual(request)


@pytest.mark.parametrize("answer", OVER, ids=["cancelled", "leaving", "gone"])
def test_a_job_that_is_deleted_while_sbf_is_away_is_not_put_back_into_its_queue(bench: Bench, answer: Answer) -> None:
    """Seen on a real Torque: a job whose prologue asked for another try after a qdel was run again."""
    bench.settings(sbf="http://127.0.0.1:1")
    knows(bench, answer)
    assert bench.run("prologue") == DELETED


def test_a_job_that_is_deleted_in_the_moment_of_a_refusal_is_not_either(bench: Bench) -> None:
    refused = refusal(409, "no-vlan-free", "no VLAN is free at brno")
    bench.sbf_says = lambda heard: UNKNOWN if heard.method == "GET" else refused
    knows(bench, OVER[0])
    assert bench.run("prologue") == DELETED


def test_an_agent_in_trouble_says_of_no_job_that_it_was_deleted(bench: Bench) -> None:
    refused = refusal(409, "no-vlan-free", "no VLAN is free at brno")
    bench.sbf_says = lambda heard: UNKNOWN if heard.method == "GET" else refused
    knows(bench, {"ok": False, "error": "fault", "detail": "the agent stops"})
    assert bench.run("prologue").code == 2


def test_what_is_left_of_a_former_run_makes_no_job_deleted(bench: Bench) -> None:
    """SBF says of the cluster that it has ended, which is so of the former run's."""
    answers = [refusal(409, "attempt-waits", "attempt 1 is still there"), (201, {})]
    bench.sbf_says = lambda heard: UNKNOWN if heard.method == "GET" else answers.pop(0)
    usual, over = bench.agent_says, {"ok": True, "state": "ended", "missing": [], "reason": None}
    bench.agent_says = lambda request: over if answers and request["do"] == "state" else usual(request)
    assert bench.run("prologue") == Ran(0, "")


def test_an_epilogue_that_came_first_ends_the_wait(bench: Bench) -> None:
    waits_with(bench, {"ok": False, "error": "not-found", "detail": "was never announced"})
    assert bench.run("prologue") == DELETED
