"""The fake batch system runs the events on every host in the order that was recorded on OpenPBS."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from virtcloud.testing.fakepbs import BatchJobState, BatchSubmission, FakeBatch, FakeHost, HookDefinition, JobStatus

RECORDINGS = Path(__file__).parents[2] / "pbs_recordings"
HOOK = """
import json, pbs
e = pbs.event()
what = json.load(open(pbs.hook_config_filename))
at, _, event = what.get("at", "/QUEUEJOB").partition("/")
if e.type == getattr(pbs, event) and pbs.get_local_nodename() == at and e.job.run_version <= what["runs"]:
    if what.get("rerun"):
        e.job.rerun()
    e.reject("not here")
"""


MEET = """
import os, time, pbs
e = pbs.event()
if e.type == pbs.EXECJOB_END:
    marks = os.path.join(os.path.dirname(e.job.stderr_file()), "ended-")
    open(marks + pbs.get_local_nodename(), "w").close()
    ends = time.monotonic() + 20
    while not all(os.path.exists(marks + one) for one in ("n1", "n2", "n3")):
        if time.monotonic() > ends:
            e.reject("the others did not come")
        time.sleep(0.02)
"""


@contextmanager
def batch(folder: Path, **what: object) -> Iterator[FakeBatch]:
    """Run a batch system of three hosts. The hook rejects the event ``at`` (HOST/EVENT) in the first ``runs`` runs."""
    hook = HookDefinition(HOOK, config=json.dumps(what))
    with FakeBatch([FakeHost(name) for name in ("n1", "n2", "n3")], folder, server_hook=hook, mom_hook=hook) as made:
        yield made


def until(made: FakeBatch, job: str, is_so: Callable[[JobStatus], bool]) -> JobStatus:
    for _ in range(1200):
        status = made.status(job)
        if is_so(status):
            return status
        time.sleep(0.05)
    raise AssertionError(f"still {made.status(job)}")


def finished(status: JobStatus) -> bool:
    return status.state is BatchJobState.FINISHED


def started(status: JobStatus) -> bool:
    return status.state is BatchJobState.RUNNING


def wrote(made: FakeBatch, job: str) -> None:
    """Wait for the first output of the job's script."""
    for _ in range(1200):
        if made.output(job).stdout:
            return
        time.sleep(0.05)
    raise AssertionError("the script wrote nothing")


def recorded(scene: str) -> dict[str, list[str]]:
    """Return the recorded events of a scene by host, in order."""
    found: dict[str, list[str]] = {}
    for file in sorted((RECORDINGS / scene).glob("*.in")):
        _, host, event = file.stem.split("-", 2)
        found.setdefault(host, []).append(event)
    return {host.replace("server", "pbssrv"): events for host, events in found.items()}


def seen(made: FakeBatch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in made.seen:
        found.setdefault(one.host, []).append(one.event)
    return found


@pytest.mark.parametrize(
    ("scene", "chunks", "what"),
    [
        ("one-host", 1, {}),
        ("three-hosts-vcluster", 3, {}),
        ("reject-begin", 2, {"at": "n2/EXECJOB_BEGIN", "runs": 2}),
        ("reject-prologue", 2, {"at": "n1/EXECJOB_PROLOGUE", "runs": 2}),
        ("reject-launch", 2, {"at": "n1/EXECJOB_LAUNCH", "runs": 1, "rerun": True}),
    ],
)
def test_from_start_to_end(scene: str, chunks: int, what: dict[str, object], tmp_path: Path) -> None:
    with batch(tmp_path, **what) as made:
        job = made.submit(BatchSubmission(select=f"{chunks}:ncpus=1", resources={"vcluster": "image=a"}))
        until(made, job, finished)
    assert seen(made) == recorded(scene)


def test_deleted_while_it_runs(tmp_path: Path) -> None:
    """The events are those of the recording ``qdel``."""
    with batch(tmp_path) as made:
        job = made.submit(BatchSubmission("echo up; sleep 30", select="2:ncpus=1"))
        wrote(made, job)
        made.delete(job)
        assert until(made, job, finished).exit_status == 271
    assert seen(made) == recorded("qdel")


def test_deleted_by_force_while_it_runs(tmp_path: Path) -> None:
    """The events are those of the recording ``qdel-force``: the hosts run only the end event."""
    with batch(tmp_path) as made:
        job = made.submit(BatchSubmission("echo up; sleep 30", select="2:ncpus=1"))
        wrote(made, job)
        made.delete(job, force=True)
        assert finished(made.status(job))
        until(made, job, lambda _: [one.event for one in made.seen].count("execjob_end") == 2)
    assert seen(made) == recorded("qdel-force")


def test_run_again_while_it_runs(tmp_path: Path) -> None:
    """The events are those of the recording ``qrerun``: only the sisters run preterm."""
    script = f"echo up; test -e {tmp_path}/again || sleep 30"
    with batch(tmp_path) as made:
        job = made.submit(BatchSubmission(script, select="2:ncpus=1"))
        wrote(made, job)
        (tmp_path / "again").touch()
        made.rerun(job)
        assert until(made, job, finished).run_version == 2
    assert seen(made) == recorded("qrerun")


def test_every_host_ends_a_job_at_the_same_time(tmp_path: Path) -> None:
    with FakeBatch([FakeHost(name) for name in ("n1", "n2", "n3")], tmp_path, mom_hook=HookDefinition(MEET)) as made:
        until(made, made.submit(BatchSubmission(select="3:ncpus=1")), finished)
        outcomes = {one.host: one.outcome.message for one in made.seen if one.event == "execjob_end"}
    assert outcomes == {"n1": None, "n2": None, "n3": None}
