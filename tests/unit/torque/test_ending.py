"""What the scripts do after a job, and when it is deleted."""

import getpass

import pytest
from torque_bench import UNKNOWN, Bench, Heard, Ran, refusal

from virtcloud.torque.scripts import ending

ENDING = ("epilogue", "epilogue.parallel", "epilogue.precancel")
USER = getpass.getuser()
NOT_THERE = "/nonexistent/agent.sock"


@pytest.mark.parametrize("script", ENDING)
def test_a_job_without_a_request_asks_nobody(bench: Bench, script: str) -> None:
    assert bench.run(script, "nodes=2,walltime=01:00:00") == Ran(0, "")
    assert (bench.asked, bench.heard) == ([], [])


@pytest.mark.parametrize("script", ["epilogue", "epilogue.parallel"])
def test_the_agent_lets_the_cluster_go_and_is_waited_for(bench: Bench, script: str) -> None:
    gone = [False, True]
    bench.agent_says = lambda _: {"ok": True, "gone": gone.pop(0), "missing": []}
    assert bench.run(script) == Ran(0, "")
    assert bench.asked == [{"do": "remove", "cluster": "7.torque", "attempt": 0, "user": USER, "wait": 30.0}] * 2


def test_the_epilogue_does_not_wait_for_ever(bench: Bench) -> None:
    bench.settings(patience=1)
    bench.agent_says = lambda _: {"ok": True, "gone": False, "missing": ["guest g1 is still there"]}
    assert bench.run("epilogue") == Ran(0, "")


def test_a_sister_does_not_hold_up_its_mom_for_long(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MoM that is not the first runs its scripts in its only process."""
    monkeypatch.setattr(ending, "SISTERS_S", 1.0)
    bench.settings(patience=260)
    bench.agent_says = lambda _: {"ok": True, "gone": False, "missing": ["guest g1 is still there"]}
    assert bench.run("epilogue.parallel") == Ran(0, "")
    assert bench.asked[0]["wait"] <= 1


def test_the_file_of_facts_goes(bench: Bench) -> None:
    bench.run("prologue")
    bench.run("epilogue")
    assert list((bench.folder / "environments").iterdir()) == []


def test_where_the_agent_is_away_sbf_is_told_itself(bench: Bench) -> None:
    bench.settings(socket=NOT_THERE)
    assert bench.run("epilogue") == Ran(0, "")
    assert bench.heard == [Heard("DELETE", f"/v1/clusters/7.torque?owner={USER}", None)]


def test_where_nobody_can_be_told_it_is_said_that_the_lease_ends_it(bench: Bench) -> None:
    bench.settings(socket=NOT_THERE, sbf="http://127.0.0.1:1")
    ran = bench.run("epilogue")
    assert ran.code == 2
    assert ran.stderr.endswith("its cluster ends with its lease\n")


def test_a_sister_whose_agent_is_away_says_so(bench: Bench) -> None:
    bench.settings(socket=NOT_THERE)
    ran = bench.run("epilogue.parallel")
    assert (ran.code, bench.heard) == (2, [])
    assert "this host's agent does not answer" in ran.stderr


def test_qdel_tells_the_barrier(bench: Bench) -> None:
    assert bench.run("epilogue.precancel") == Ran(0, "")
    assert bench.asked == [{"do": "cancel", "cluster": "7.torque", "attempt": 0, "user": USER, "reason": "qdel"}]


def test_qdel_is_not_held_up_by_an_agent_that_refuses_its_user(bench: Bench) -> None:
    """Torque runs this script as the job's user, whom an agent need not hear."""
    bench.agent_says = lambda _: {"ok": False, "error": "forbidden", "detail": "uid 1000 may not ask"}
    assert bench.run("epilogue.precancel") == Ran(0, "")


def test_every_script_may_be_repeated(bench: Bench) -> None:
    for script in ("prologue.parallel", "prologue", "epilogue.precancel", "epilogue.parallel", "epilogue"):
        assert bench.run(script) == bench.run(script) == Ran(0, "")


def test_where_sbf_refuses_to_end_it_that_is_said(bench: Bench) -> None:
    bench.settings(socket=NOT_THERE)
    bench.sbf_says = lambda _: refusal(403, "forbidden", "job-starter@n9 has no part in cluster 7.torque")
    ran = bench.run("epilogue")
    assert ran.code == 2
    assert "job-starter@n9 has no part in cluster 7.torque; its cluster ends with its lease\n" in ran.stderr


def test_where_sbf_never_heard_of_it_all_is_well(bench: Bench) -> None:
    bench.settings(socket=NOT_THERE)
    bench.sbf_says = lambda _: UNKNOWN
    assert bench.run("epilogue") == Ran(0, "")


def test_a_file_of_facts_that_cannot_be_removed_keeps_no_cluster(bench: Bench) -> None:
    (bench.folder / "environments/7.Torque").mkdir(parents=True)
    ran = bench.run("epilogue")
    assert (ran.code, [one["do"] for one in bench.asked]) == (2, ["remove"])
