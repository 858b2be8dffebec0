"""The fake batch system runs the events on every host in the order that was recorded on OpenPBS."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.testing.fakepbs import BatchJobState, BatchSubmission, FakeBatch, FakeHost, HookDefinition, JobStatus

RECORDINGS = Path(__file__).parents[2] / "recordings/pbs"
REJECTING_HOOK = """
import json, pbs
e = pbs.event()
rejection = json.load(open(pbs.hook_config_filename))
at, _, event = rejection.get("at", "/QUEUEJOB").partition("/")
if e.type == getattr(pbs, event) and pbs.get_local_nodename() == at and e.job.run_version <= rejection["runs"]:
    if rejection.get("rerun"):
        e.job.rerun()
    e.reject("not here")
"""


WAIT_FOR_ALL_HOSTS = """
import os, time, pbs
e = pbs.event()
if e.type == pbs.EXECJOB_END:
    marks = os.path.join(os.path.dirname(e.job.stderr_file()), "ended-")
    open(marks + pbs.get_local_nodename(), "w").close()
    ends = time.monotonic() + 20
    while not all(os.path.exists(marks + name) for name in ("n1", "n2", "n3")):
        if time.monotonic() > ends:
            e.reject("not all hosts have run the event")
        time.sleep(0.02)
"""


@contextmanager
def batch(folder: Path, **rejection: object) -> Iterator[FakeBatch]:
    """Run a batch system of three hosts.

    ``rejection`` has the keys ``at``, ``runs`` and ``rerun``. The hook rejects the event ``at`` (HOST/EVENT) in the
    first ``runs`` runs of a job, and requeues the job if ``rerun`` is true. Without these keys, the hook rejects no
    event.
    """
    hook = HookDefinition(REJECTING_HOOK, config=json.dumps(rejection))
    with FakeBatch(
        [FakeHost(name) for name in ("n1", "n2", "n3")], folder, server_hook=hook, mom_hook=hook
    ) as batch_system:
        yield batch_system


def wait_until(fake: FakeBatch, job: str, condition: Callable[[JobStatus], bool]) -> JobStatus:
    for _ in range(1200):
        status = fake.status(job)
        if condition(status):
            return status
        time.sleep(0.05)
    raise AssertionError(f"still {fake.status(job)}")


def is_finished(status: JobStatus) -> bool:
    return status.state is BatchJobState.FINISHED


def started(status: JobStatus) -> bool:
    return status.state is BatchJobState.RUNNING


def wait_for_output(fake: FakeBatch, job: str) -> None:
    for _ in range(1200):
        if fake.output(job).stdout:
            return
        time.sleep(0.05)
    raise AssertionError("the script has no output")


def recorded_events(scene: str) -> dict[str, list[str]]:
    events_by_host: dict[str, list[str]] = {}
    for file in sorted((RECORDINGS / scene).glob("*.in")):
        _, host, event = file.stem.split("-", 2)
        events_by_host.setdefault(host, []).append(event)
    return {host.replace("server", "pbssrv"): events for host, events in events_by_host.items()}


def called_events(fake: FakeBatch) -> dict[str, list[str]]:
    events_by_host: dict[str, list[str]] = {}
    for call in fake.seen:
        events_by_host.setdefault(call.host, []).append(call.event)
    return events_by_host


@pytest.mark.parametrize(
    ("scene", "chunks", "rejection"),
    [
        ("one-host", 1, {}),
        ("three-hosts-vcluster", 3, {}),
        ("reject-begin", 2, {"at": "n2/EXECJOB_BEGIN", "runs": 2}),
        ("reject-prologue", 2, {"at": "n1/EXECJOB_PROLOGUE", "runs": 2}),
        ("reject-launch", 2, {"at": "n1/EXECJOB_LAUNCH", "runs": 1, "rerun": True}),
    ],
)
def test_a_job_from_start_to_end_has_the_recorded_events(
    scene: str, chunks: int, rejection: dict[str, object], tmp_path: Path
) -> None:
    with batch(tmp_path, **rejection) as fake:
        job = fake.submit(BatchSubmission(select=f"{chunks}:ncpus=1", resources={"vcluster": "image=a"}))
        wait_until(fake, job, is_finished)
    assert called_events(fake) == recorded_events(scene)


def test_a_deleted_running_job_has_the_recorded_events(tmp_path: Path) -> None:

    with batch(tmp_path) as fake:
        job = fake.submit(BatchSubmission("echo up; sleep 30", select="2:ncpus=1"))
        wait_for_output(fake, job)
        fake.delete(job)
        assert wait_until(fake, job, is_finished).exit_status == 271
    assert called_events(fake) == recorded_events("qdel")


def test_a_running_job_deleted_by_force_has_the_recorded_events(tmp_path: Path) -> None:
    with batch(tmp_path) as fake:
        job = fake.submit(BatchSubmission("echo up; sleep 30", select="2:ncpus=1"))
        wait_for_output(fake, job)
        fake.delete(job, force=True)
        assert is_finished(fake.status(job))
        wait_until(fake, job, lambda _: [call.event for call in fake.seen].count("execjob_end") == 2)
    assert called_events(fake) == recorded_events("qdel-force")


def test_a_requeued_running_job_has_the_recorded_events(tmp_path: Path) -> None:
    script = f"echo up; test -e {tmp_path}/again || sleep 30"
    with batch(tmp_path) as fake:
        job = fake.submit(BatchSubmission(script, select="2:ncpus=1"))
        wait_for_output(fake, job)
        (tmp_path / "again").touch()
        fake.rerun(job)
        assert wait_until(fake, job, is_finished).run_version == 2
    assert called_events(fake) == recorded_events("qrerun")


def test_every_host_ends_a_job_at_the_same_time(tmp_path: Path) -> None:
    with FakeBatch(
        [FakeHost(name) for name in ("n1", "n2", "n3")], tmp_path, mom_hook=HookDefinition(WAIT_FOR_ALL_HOSTS)
    ) as fake:
        wait_until(fake, fake.submit(BatchSubmission(select="3:ncpus=1")), is_finished)
        outcomes = {call.host: call.outcome.message for call in fake.seen if call.event == "execjob_end"}
    assert outcomes == {"n1": None, "n2": None, "n3": None}
