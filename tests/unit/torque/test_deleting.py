"""What becomes of a job that is deleted while its first host's prologue waits: it never runs again."""

from torque_bench import UNKNOWN, Bench, Ran, refusal, waits_with

DELETED = Ran(1, "vcluster: the job was deleted while its cluster was being set up\n")
CANCELLED = {"ok": True, "state": "cancelled", "missing": [], "reason": "qdel"}


def test_a_job_that_is_deleted_while_sbf_is_away_is_not_put_back_into_its_queue(bench: Bench) -> None:
    """Seen on a real Torque: a job whose prologue asked for another try after a qdel was run again."""
    bench.settings(sbf="http://127.0.0.1:1")
    waits_with(bench, CANCELLED)
    assert bench.run("prologue") == DELETED


def test_a_job_that_is_deleted_in_the_moment_of_a_refusal_is_not_either(bench: Bench) -> None:
    refused = refusal(409, "no-vlan-free", "no VLAN is free at brno")
    bench.sbf_says = lambda heard: UNKNOWN if heard.method == "GET" else refused
    waits_with(bench, CANCELLED)
    assert bench.run("prologue") == DELETED


def test_an_agent_in_trouble_says_of_no_job_that_it_was_deleted(bench: Bench) -> None:
    refused = refusal(409, "no-vlan-free", "no VLAN is free at brno")
    bench.sbf_says = lambda heard: UNKNOWN if heard.method == "GET" else refused
    waits_with(bench, {"ok": False, "error": "fault", "detail": "the agent stops"})
    assert bench.run("prologue").code == 2


def test_an_epilogue_that_came_first_ends_the_wait(bench: Bench) -> None:
    waits_with(bench, {"ok": False, "error": "not-found", "detail": "was never announced"})
    assert bench.run("prologue") == Ran(1, "vcluster: the job was deleted while its cluster was being set up\n")
