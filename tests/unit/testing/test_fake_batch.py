"""Surprising behaviour of OpenPBS that the fake batch system reproduces."""

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

WAITING_HOOK = """
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


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("the condition was not reached")


def batch_with_one_host(
    folder: Path, mom: str | None = None, server: str | None = None, pace: Pace | None = None
) -> FakeBatch:
    return FakeBatch(
        [FakeHost("n1")],
        folder,
        mom_hook=HookDefinition(mom) if mom else None,
        server_hook=HookDefinition(server) if server else None,
        pace=pace,
    )


def has_state(fake: FakeBatch, job: str, *states: BatchJobState) -> Callable[[], bool]:
    return lambda: fake.status(job).state in states


def delete_in_prologue(fake: FakeBatch, folder: Path, script: str = "echo ran") -> JobStatus:
    job = fake.submit(BatchSubmission(script))
    wait_until((folder / "waits").exists)
    fake.delete(job)
    wait_until((folder / "preterm").exists)
    wait_for_deletion(fake)
    (folder / "go").touch()
    wait_until(lambda: fake.status(job).run_version == 2 or is_finished(fake, job) or bool(fake.output(job).stdout))
    return fake.status(job)


def wait_for_deletion(fake: FakeBatch) -> None:
    """Wait until only the threads of the scheduler and of the run are alive."""
    wait_until(lambda: sum(thread.is_alive() for thread in fake._threads) == 2)


def is_finished(fake: FakeBatch, job: str) -> bool:
    return fake.status(job).state is BatchJobState.FINISHED


def find_kill_timers(fake: FakeBatch, job: str) -> list[threading.Timer]:
    """Return the running timers that will kill the script of a job. Ignore timers that other tests left running."""
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    return [timer for timer in timers if getattr(timer.function, "__self__", None) is fake._runs[job]]


def test_a_script_started_within_the_kill_delay_is_killed(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path, WAITING_HOOK % "e.accept()", pace=Pace(kill_delay=600)) as fake:
        job = delete_in_prologue(fake, tmp_path, "echo ran; exec sleep 600").id
        wait_until(lambda: fake._runs[job].script is not None)
        (timer,) = find_kill_timers(fake, job)
        timer.cancel()
        timer.function(*timer.args)  # what the timer calls at the end of the delay
        wait_until(lambda: is_finished(fake, job))
        assert (fake.status(job).exit_status, fake.output(job).stdout) == (265, "ran\n")
        assert [call.event for call in fake.seen][-3:] == ["execjob_launch", "execjob_epilogue", "execjob_end"]


def test_a_script_started_after_the_kill_delay_continues(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path, WAITING_HOOK % "e.accept()", pace=Pace(kill_delay=0.1)) as fake:
        job = fake.submit(BatchSubmission("echo ran; exit 3"))
        wait_until((tmp_path / "waits").exists)
        fake.delete(job)
        wait_for_deletion(fake)
        wait_until(lambda: not find_kill_timers(fake, job))
        (tmp_path / "go").touch()
        wait_until(lambda: is_finished(fake, job))
        assert (fake.status(job).exit_status, fake.status(job).run_version) == (3, 1)


def test_a_deleted_job_whose_prologue_rejects_runs_again(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path, WAITING_HOOK % "e.reject('no')") as fake:
        status = delete_in_prologue(fake, tmp_path)
        assert status.run_version == 2


def test_a_deleted_job_whose_prologue_requests_deletion_ends(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path, WAITING_HOOK % "job.delete(); e.reject('no')") as fake:
        status = delete_in_prologue(fake, tmp_path)
        assert (status.state, status.run_version, status.exit_status) == (BatchJobState.FINISHED, 1, -17)


def test_a_forced_deletion_leaves_the_prologue_waiting(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path, WAITING_HOOK % "e.accept()") as fake:
        job = fake.submit(BatchSubmission("echo ran"))
        wait_until((tmp_path / "waits").exists)
        fake.delete(job, force=True)
        wait_until(lambda: "execjob_end" in [call.event for call in fake.seen])
        (tmp_path / "go").touch()
        wait_until(lambda: "execjob_launch" in [call.event for call in fake.seen])
        assert is_finished(fake, job)
    assert fake._records[job].stdout.read_text() == ""


def test_only_some_attributes_reach_the_server(tmp_path: Path) -> None:
    hook = (
        "import pbs, time\ne = pbs.event()\n"
        "if e.type == pbs.EXECJOB_BEGIN:\n"
        "    e.job.comment = 'mine'\n    e.job.Variable_List['LAST'] = 'why'\n"
        "    e.job.Hold_Types = pbs.hold_types('s')\n"
        "    e.reject('no')\n"
    )
    with batch_with_one_host(tmp_path, hook) as fake:
        job = fake.submit(BatchSubmission())
        wait_until(has_state(fake, job, BatchJobState.HELD))
        status = fake.status(job)
        assert (status.hold, status.comment) == ("s", "Not Running: PBS Error: Execution server rejected request")
        assert fake._records[job].variables["LAST"] == "why"
        assert [call.event for call in fake.seen] == ["execjob_begin"]


class DiesInBegin(FakeHost):
    """A host that dies while its hook handles the begin event."""

    def hook(self, hook: HookDefinition, event: HookEvent) -> HookOutcome:
        outcome = super().hook(hook, event)
        if event.kind == "execjob_begin":
            self.die()
        return outcome


ACCEPTING_HOOK = HookDefinition("import pbs\npbs.event().accept()\n")


def call_hooks_of_two_runs(first: FakeHost, second: FakeHost, folder: Path) -> list[tuple[str, str, int]]:
    """Run a job on ``first`` and ``second`` until one of these hosts dies, and then on two living hosts.

    Return the hook calls of both runs.
    """
    hosts = [first, second, FakeHost("n3"), FakeHost("n4")]
    with FakeBatch(hosts, folder, mom_hook=ACCEPTING_HOOK, server_hook=ACCEPTING_HOOK) as fake:
        job = fake.submit(BatchSubmission("echo ran", select="2:ncpus=1"))
        wait_until(lambda: is_finished(fake, job))
        assert (fake.status(job).run_version, fake.output(job).stdout) == (2, "ran\n")
        return [(call.host, call.event, call.run_version) for call in fake.seen]


def test_a_first_hosts_death_in_begin_requeues_the_job(tmp_path: Path) -> None:
    """The server requeues the job without delay, and does not call the hook ``jobobit`` for the first run."""
    calls = call_hooks_of_two_runs(DiesInBegin("n1"), FakeHost("n2"), tmp_path)
    assert calls[1:4] == [("pbssrv", "runjob", 0), ("pbssrv", "runjob", 1), ("n2", "execjob_begin", 2)]


def test_a_sister_that_dies_in_begin_counts_as_a_rejection(tmp_path: Path) -> None:
    calls = call_hooks_of_two_runs(FakeHost("n1"), DiesInBegin("n2"), tmp_path)
    assert [(host, event) for host, event, run in calls if run == 1 and event != "runjob"] == [
        ("n1", "execjob_begin"),
        ("n1", "execjob_abort"),
        ("n1", "execjob_epilogue"),
        ("n1", "execjob_end"),
        ("pbssrv", "jobobit"),
    ]


def test_only_variables_of_the_first_host_reach_the_server(tmp_path: Path) -> None:
    setting_hook = HookDefinition(
        "import pbs\ne = pbs.event()\n"
        "if e.type == pbs.EXECJOB_BEGIN:\n    e.job.Variable_List[pbs.get_local_nodename()] = 'was here'\n"
    )
    with FakeBatch([FakeHost("n1"), FakeHost("n2")], tmp_path, mom_hook=setting_hook) as fake:
        job = fake.submit(BatchSubmission("echo ran", select="2:ncpus=1"))
        wait_until(lambda: is_finished(fake, job))
        assert {"n1", "n2"} & set(fake._records[job].variables) == {"n1"}


def test_a_job_waits_for_its_execution_time(tmp_path: Path) -> None:
    hook = (
        "import pbs, time\ne = pbs.event()\n"
        "if e.type == pbs.RUNJOB and 'ASKED' not in e.job.Variable_List:\n"
        "    e.job.Variable_List['ASKED'] = '1'\n    e.job.Execution_Time = time.time() + 300\n    e.reject('later')\n"
    )
    with batch_with_one_host(tmp_path, server=hook) as fake:
        job = fake.submit(BatchSubmission())
        wait_until(has_state(fake, job, BatchJobState.WAITING))
        assert (fake.status(job).run_version, fake.status(job).comment) == (0, "Not Running: PBS Error: later")
        fake.skip(301)
        wait_until(lambda: is_finished(fake, job))
        assert fake.status(job).run_version == 1


def test_too_many_failed_starts_hold_a_job(tmp_path: Path) -> None:
    hook = "import pbs\nif pbs.event().type == pbs.EXECJOB_BEGIN:\n    pbs.event().reject('no')\n"
    with batch_with_one_host(tmp_path, hook, pace=Pace(failed_starts=2)) as fake:
        job = fake.submit(BatchSubmission())
        wait_until(has_state(fake, job, BatchJobState.HELD))
        status = fake.status(job)
        assert (status.run_version, status.comment) == (3, "job held, too many failed attempts to run")


def test_a_job_runs_again_after_its_first_host_dies(tmp_path: Path) -> None:
    hosts = [FakeHost("n1"), FakeHost("n2")]
    hook = HookDefinition("import pbs")
    with FakeBatch(hosts, tmp_path, mom_hook=hook, server_hook=hook, pace=Pace(node_fail_requeue=0.1)) as fake:
        job = fake.submit(BatchSubmission(f"echo up; test -e {tmp_path}/again || sleep 30"))
        wait_until(lambda: bool(fake.output(job).stdout))
        (tmp_path / "again").touch()
        fake.kill_host("n1")
        wait_until(lambda: is_finished(fake, job))
        assert (fake.status(job).hosts, fake.status(job).run_version) == (("n2",), 2)
    events = [(call.host, call.event) for call in fake.seen]
    assert ("n1", "execjob_end") not in events
    assert events.count(("pbssrv", "jobobit")) == 2


def test_a_restarted_host_runs_its_startup_hook(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path, "import pbs; assert True") as fake:
        fake.kill_host("n1")
        fake.start_host("n1")
        assert [(call.host, call.event) for call in fake.seen] == [("n1", "exechost_startup")]


def test_hosts_continue_without_the_server(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path) as fake:
        job = fake.submit(BatchSubmission(f"echo up; sleep 0.3; echo done > {tmp_path}/done"))
        wait_until(lambda: bool(fake.output(job).stdout))
        fake.stop_server()
        with pytest.raises(ServerStopped, match="cannot connect to server pbssrv"):
            fake.status(job)
        wait_until((tmp_path / "done").exists)
        fake.start_server()
        wait_until(lambda: is_finished(fake, job))


def test_a_periodic_hook_receives_the_jobs_of_its_host(tmp_path: Path) -> None:
    hook = "import pbs\ne = pbs.event()\nif e.type == pbs.EXECHOST_PERIODIC:\n    pbs.logmsg(5, ' '.join(e.job_list))\n"
    with FakeBatch([FakeHost("n1"), FakeHost("n2")], tmp_path, mom_hook=HookDefinition(hook)) as fake:
        job = fake.submit(BatchSubmission("echo up; sleep 30"))
        wait_until(lambda: bool(fake.output(job).stdout))
        fake.periodic()
        logged = {call.host: call.outcome.log[0][1] for call in fake.seen if call.event == "exechost_periodic"}
    assert logged == {"n1": "0.pbssrv", "n2": ""}


def test_a_rejected_submission_raises_the_hooks_message(tmp_path: Path) -> None:
    rejecting_hook = "import pbs; pbs.event().reject('vcluster: no')"
    with (
        batch_with_one_host(tmp_path, server=rejecting_hook) as fake,
        pytest.raises(BatchRefused, match=r"^vcluster: no$"),
    ):
        fake.submit(BatchSubmission())
    message = r"^request rejected as filter hook 'hook' encountered an exception\. Please inform Admin$"
    with batch_with_one_host(tmp_path, server="1/0") as fake, pytest.raises(BatchRefused, match=message):
        fake.submit(BatchSubmission())


def test_an_alteration_passes_only_changed_resources_to_the_hook(tmp_path: Path) -> None:
    hook = (
        "import pbs\ne = pbs.event()\n"
        "if e.type == pbs.MODIFYJOB:\n"
        "    change = e.job.Resource_List\n"
        "    pbs.logmsg(5, '%s|%s|%s' % (change, change['vcluster'], e.job_o.Resource_List['vcluster']))\n"
    )
    with batch_with_one_host(tmp_path, server=hook) as fake:
        job = fake.submit(BatchSubmission(held=True, resources={"vcluster": "image=a"}))
        fake.alter(job, {"vcluster": ""})
        assert fake.seen[-1].outcome.log == ((5, "vcluster=||image=a"),)
        assert "vcluster" not in fake.status(job).resources


def test_the_error_for_an_unknown_job_contains_its_id(tmp_path: Path) -> None:
    with batch_with_one_host(tmp_path) as fake, pytest.raises(NoSuchJob, match=r"^Unknown Job Id 9\.pbssrv$"):
        fake.delete("9.pbssrv")
