"""Unexpected behaviour of OpenPBS that the fake batch system reproduces."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from virtcloud.testing.fakepbs import (
    BatchJobState,
    BatchRefused,
    BatchSubmission,
    FakeBatch,
    FakeHost,
    HookDefinition,
    HookEvent,
    HookOutcome,
    JobStatus,
    NoSuchJob,
    Pace,
    ServerStopped,
)

WAITS = """
import os, time, pbs
e = pbs.event()
job = e.job
marks = os.path.dirname(job.stderr_file())
if e.type == pbs.EXECJOB_PRETERM:
    open(os.path.join(marks, "preterm"), "w").close()
if e.type == pbs.EXECJOB_PROLOGUE and job.in_ms_mom() and job.run_version == 1:
    open(os.path.join(marks, "waits"), "w").close()
    while not os.path.exists(os.path.join(marks, "go")):
        time.sleep(0.02)
    %s
"""


def until(so: Callable[[], bool]) -> None:
    for _ in range(1200):
        if so():
            return
        time.sleep(0.05)
    raise AssertionError("the condition was not reached")


def one_host(folder: Path, mom: str | None = None, server: str | None = None, pace: Pace | None = None) -> FakeBatch:
    return FakeBatch(
        [FakeHost("n1")],
        folder,
        mom_hook=HookDefinition(mom) if mom else None,
        server_hook=HookDefinition(server) if server else None,
        pace=pace,
    )


def in_state(made: FakeBatch, job: str, *states: BatchJobState) -> Callable[[], bool]:
    return lambda: made.status(job).state in states


def deleted_while_it_waits(made: FakeBatch, folder: Path, script: str = "echo ran") -> JobStatus:
    """Delete a job while its prologue waits. Return the status of the job afterwards."""
    job = made.submit(BatchSubmission(script))
    until((folder / "waits").exists)
    made.delete(job)
    until((folder / "preterm").exists)
    (folder / "go").touch()
    until(lambda: made.status(job).run_version == 2 or finished(made, job) or bool(made.output(job).stdout))
    return made.status(job)


def finished(made: FakeBatch, job: str) -> bool:
    return made.status(job).state is BatchJobState.FINISHED


def test_a_script_within_the_kill_delay_is_killed(tmp_path: Path) -> None:
    with one_host(tmp_path, WAITS % "e.accept()", pace=Pace(kill_delay=3)) as made:
        job = deleted_while_it_waits(made, tmp_path, "echo ran; exec sleep 600").id
        until(lambda: finished(made, job))
        assert (made.status(job).exit_status, made.output(job).stdout) == (265, "ran\n")
        assert [one.event for one in made.seen][-3:] == ["execjob_launch", "execjob_epilogue", "execjob_end"]


def test_a_script_after_the_kill_delay_runs_on(tmp_path: Path) -> None:
    with one_host(tmp_path, WAITS % "e.accept()", pace=Pace(kill_delay=0.1)) as made:
        job = made.submit(BatchSubmission("echo ran; exit 3"))
        until((tmp_path / "waits").exists)
        made.delete(job)
        until(
            lambda: sum(thread.is_alive() for thread in made._threads) == 2
        )  # the threads of the scheduler and of the run
        until(lambda: not any(isinstance(one, threading.Timer) for one in threading.enumerate()))
        (tmp_path / "go").touch()
        until(lambda: finished(made, job))
        assert (made.status(job).exit_status, made.status(job).run_version) == (3, 1)


def test_a_deleted_job_whose_prologue_rejects_runs_again(tmp_path: Path) -> None:
    with one_host(tmp_path, WAITS % "e.reject('no')") as made:
        status = deleted_while_it_waits(made, tmp_path)
        assert status.run_version == 2


def test_a_deleted_job_whose_prologue_asks_for_deletion_ends(tmp_path: Path) -> None:
    with one_host(tmp_path, WAITS % "job.delete(); e.reject('no')") as made:
        status = deleted_while_it_waits(made, tmp_path)
        assert (status.state, status.run_version, status.exit_status) == (BatchJobState.FINISHED, 1, -17)


def test_a_forced_deletion_leaves_the_prologue_waiting(tmp_path: Path) -> None:
    with one_host(tmp_path, WAITS % "e.accept()") as made:
        job = made.submit(BatchSubmission("echo ran"))
        until((tmp_path / "waits").exists)
        made.delete(job, force=True)
        until(lambda: "execjob_end" in [one.event for one in made.seen])
        (tmp_path / "go").touch()
        until(lambda: "execjob_launch" in [one.event for one in made.seen])
        assert finished(made, job)
    assert made._records[job].stdout.read_text() == ""


def test_only_some_attributes_reach_the_server(tmp_path: Path) -> None:
    hook = (
        "import pbs, time\ne = pbs.event()\n"
        "if e.type == pbs.EXECJOB_BEGIN:\n"
        "    e.job.comment = 'mine'\n    e.job.Variable_List['LAST'] = 'why'\n"
        "    e.job.Hold_Types = pbs.hold_types('s')\n"
        "    e.reject('no')\n"
    )
    with one_host(tmp_path, hook) as made:
        job = made.submit(BatchSubmission())
        until(in_state(made, job, BatchJobState.HELD))
        status = made.status(job)
        assert (status.hold, status.comment) == ("s", "Not Running: PBS Error: Execution server rejected request")
        assert made._records[job].variables["LAST"] == "why"
        assert [one.event for one in made.seen] == ["execjob_begin"]


class DiesInBegin(FakeHost):
    """A host that dies while its hook handles the begin event."""

    def hook(self, hook: HookDefinition, event: HookEvent) -> HookOutcome:
        outcome = super().hook(hook, event)
        if event.kind == "execjob_begin":
            self.die()
        return outcome


PASSES = HookDefinition("import pbs\npbs.event().accept()\n")


def begun_again(first: FakeHost, second: FakeHost, folder: Path) -> list[tuple[str, str, int]]:
    """Run a job on two hosts until one of them dies, then on other hosts. Return the hook calls of both runs."""
    hosts = [first, second, FakeHost("n3"), FakeHost("n4")]
    with FakeBatch(hosts, folder, mom_hook=PASSES, server_hook=PASSES) as made:
        job = made.submit(BatchSubmission("echo ran", select="2:ncpus=1"))
        until(lambda: finished(made, job))
        assert (made.status(job).run_version, made.output(job).stdout) == (2, "ran\n")
        return [(one.host, one.event, one.run_version) for one in made.seen]


def test_a_first_host_dying_in_begin_requeues_the_job(tmp_path: Path) -> None:
    """The server was still sending the job: it queues the job again without delay and calls no hook."""
    seen = begun_again(DiesInBegin("n1"), FakeHost("n2"), tmp_path)
    assert seen[1:4] == [("pbssrv", "runjob", 0), ("pbssrv", "runjob", 1), ("n2", "execjob_begin", 2)]


def test_a_sister_dying_in_begin_counts_as_rejecting(tmp_path: Path) -> None:
    seen = begun_again(FakeHost("n1"), DiesInBegin("n2"), tmp_path)
    assert [(host, event) for host, event, run in seen if run == 1 and event != "runjob"] == [
        ("n1", "execjob_begin"),
        ("n1", "execjob_abort"),
        ("n1", "execjob_epilogue"),
        ("n1", "execjob_end"),
        ("pbssrv", "jobobit"),
    ]


def test_variables_of_another_host_than_the_first_are_lost(tmp_path: Path) -> None:
    sets = HookDefinition(
        "import pbs\ne = pbs.event()\n"
        "if e.type == pbs.EXECJOB_BEGIN:\n    e.job.Variable_List[pbs.get_local_nodename()] = 'was here'\n"
    )
    with FakeBatch([FakeHost("n1"), FakeHost("n2")], tmp_path, mom_hook=sets) as made:
        job = made.submit(BatchSubmission("echo ran", select="2:ncpus=1"))
        until(lambda: finished(made, job))
        assert {"n1", "n2"} & set(made._records[job].variables) == {"n1"}


def test_a_job_waits_for_its_time(tmp_path: Path) -> None:
    hook = (
        "import pbs, time\ne = pbs.event()\n"
        "if e.type == pbs.RUNJOB and 'ASKED' not in e.job.Variable_List:\n"
        "    e.job.Variable_List['ASKED'] = '1'\n    e.job.Execution_Time = time.time() + 300\n    e.reject('later')\n"
    )
    with one_host(tmp_path, server=hook) as made:
        job = made.submit(BatchSubmission())
        until(in_state(made, job, BatchJobState.WAITING))
        assert (made.status(job).run_version, made.status(job).comment) == (0, "Not Running: PBS Error: later")
        made.skip(301)
        until(lambda: finished(made, job))
        assert made.status(job).run_version == 1


def test_too_many_failed_starts_hold_a_job(tmp_path: Path) -> None:
    hook = "import pbs\nif pbs.event().type == pbs.EXECJOB_BEGIN:\n    pbs.event().reject('no')\n"
    with one_host(tmp_path, hook, pace=Pace(failed_starts=2)) as made:
        job = made.submit(BatchSubmission())
        until(in_state(made, job, BatchJobState.HELD))
        status = made.status(job)
        assert (status.run_version, status.comment) == (3, "job held, too many failed attempts to run")


def test_the_first_host_dies_and_the_job_runs_again(tmp_path: Path) -> None:
    hosts = [FakeHost("n1"), FakeHost("n2")]
    hook = HookDefinition("import pbs")
    with FakeBatch(hosts, tmp_path, mom_hook=hook, server_hook=hook, pace=Pace(node_fail_requeue=0.1)) as made:
        job = made.submit(BatchSubmission(f"echo up; test -e {tmp_path}/again || sleep 30"))
        until(lambda: bool(made.output(job).stdout))
        (tmp_path / "again").touch()
        made.kill_host("n1")
        until(lambda: finished(made, job))
        assert (made.status(job).hosts, made.status(job).run_version) == (("n2",), 2)
    events = [(one.host, one.event) for one in made.seen]
    assert ("n1", "execjob_end") not in events
    assert events.count(("pbssrv", "jobobit")) == 2


def test_a_restarted_host_runs_its_startup_hook(tmp_path: Path) -> None:
    with one_host(tmp_path, "import pbs; assert True") as made:
        made.kill_host("n1")
        made.start_host("n1")
        assert [(one.host, one.event) for one in made.seen] == [("n1", "exechost_startup")]


def test_hosts_continue_without_the_server(tmp_path: Path) -> None:
    with one_host(tmp_path) as made:
        job = made.submit(BatchSubmission(f"echo up; sleep 0.3; echo done > {tmp_path}/done"))
        until(lambda: bool(made.output(job).stdout))
        made.stop_server()
        with pytest.raises(ServerStopped, match="cannot connect to server pbssrv"):
            made.status(job)
        until((tmp_path / "done").exists)
        made.start_server()
        until(lambda: finished(made, job))


def test_periodic_hooks_see_the_jobs_of_their_host(tmp_path: Path) -> None:
    hook = "import pbs\ne = pbs.event()\nif e.type == pbs.EXECHOST_PERIODIC:\n    pbs.logmsg(5, ' '.join(e.job_list))\n"
    with FakeBatch([FakeHost("n1"), FakeHost("n2")], tmp_path, mom_hook=HookDefinition(hook)) as made:
        job = made.submit(BatchSubmission("echo up; sleep 30"))
        until(lambda: bool(made.output(job).stdout))
        made.periodic()
        said = {one.host: one.outcome.log[0][1] for one in made.seen if one.event == "exechost_periodic"}
    assert said == {"n1": "0.pbssrv", "n2": ""}


def test_a_rejected_submission_names_the_reason(tmp_path: Path) -> None:
    refuses = "import pbs; pbs.event().reject('vcluster: no')"
    with one_host(tmp_path, server=refuses) as made, pytest.raises(BatchRefused, match=r"^vcluster: no$"):
        made.submit(BatchSubmission())
    words = r"^request rejected as filter hook 'hook' encountered an exception\. Please inform Admin$"
    with one_host(tmp_path, server="1/0") as made, pytest.raises(BatchRefused, match=words):
        made.submit(BatchSubmission())


def test_an_alteration_shows_the_hook_only_what_changes(tmp_path: Path) -> None:
    hook = (
        "import pbs\ne = pbs.event()\n"
        "if e.type == pbs.MODIFYJOB:\n"
        "    change = e.job.Resource_List\n"
        "    pbs.logmsg(5, '%s|%s|%s' % (change, change['vcluster'], e.job_o.Resource_List['vcluster']))\n"
    )
    with one_host(tmp_path, server=hook) as made:
        job = made.submit(BatchSubmission(held=True, resources={"vcluster": "image=a"}))
        made.alter(job, {"vcluster": ""})
        assert made.seen[-1].outcome.log == ((5, "vcluster=||image=a"),)
        assert "vcluster" not in made.status(job).resources


def test_an_unknown_job_is_named(tmp_path: Path) -> None:
    with one_host(tmp_path) as made, pytest.raises(NoSuchJob, match=r"^Unknown Job Id 9\.pbssrv$"):
        made.delete("9.pbssrv")
