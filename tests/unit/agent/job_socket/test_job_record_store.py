import os
import threading
from pathlib import Path

import pytest

from virtcloud.agent.job_socket.job_records import RETENTION_S, JobRecord, JobRecordStore, RecordPhase
from virtcloud.model.errors import Refused
from virtcloud.model.values import ClusterKey

A = JobRecord(cluster=ClusterKey("12.pbs"), attempt=1, head=True, user="alice")
GONE = JobRecord(cluster=ClusterKey("11.pbs"), attempt=1, phase=RecordPhase.GONE)


def put(ledger: JobRecordStore, job: JobRecord) -> None:
    ledger.change(job.cluster, lambda _: job)


def test_what_was_put_is_there_for_the_next_agent(tmp_path: Path) -> None:
    put(JobRecordStore(tmp_path), A)
    assert JobRecordStore(tmp_path).all() == [A]


def test_a_job_with_a_long_key_is_stored(tmp_path: Path) -> None:
    job = A.model_copy(update={"cluster": ClusterKey(f"1234567.{'x' * 255}")})
    put(JobRecordStore(tmp_path), job)
    assert JobRecordStore(tmp_path).all() == [job]


def test_what_cannot_be_written_is_not_believed_either(tmp_path: Path) -> None:
    """Otherwise the agent could send an answer whose effect is lost when the agent is killed."""
    ledger = JobRecordStore(tmp_path / "jobs")
    (tmp_path / "jobs").rmdir()
    with pytest.raises(Refused, match=r"cannot store the record of cluster 12\.pbs: No such file or directory"):
        put(ledger, A)
    assert ledger.all() == []


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = JobRecordStore(tmp_path)
    put(ledger, A)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="No space left on device"):
        put(ledger, A.model_copy(update={"phase": RecordPhase.LEAVING}))
    assert JobRecordStore(tmp_path).all() == ledger.all() == [A]


def test_a_job_that_is_forgotten_leaves_no_file(tmp_path: Path) -> None:
    ledger = JobRecordStore(tmp_path)
    put(ledger, A)
    ledger.change(A.cluster, lambda _: None)
    assert (ledger.all(), list(tmp_path.iterdir())) == ([], [])


def test_that_a_run_is_gone_is_known_for_a_week(tmp_path: Path) -> None:
    put(JobRecordStore(tmp_path), GONE)
    written = (tmp_path / "11.pbs.json").stat().st_mtime
    assert JobRecordStore(tmp_path, lambda: written + RETENTION_S).all() == [GONE]
    assert JobRecordStore(tmp_path, lambda: written + RETENTION_S + 1).all() == []
    assert list(tmp_path.iterdir()) == []


def test_records_of_old_runs_are_removed(tmp_path: Path) -> None:
    """Each removal also removes records that are a week old."""
    ledger = JobRecordStore(tmp_path)
    put(ledger, GONE)
    os.utime(tmp_path / "11.pbs.json", (0, 0))
    last = GONE.model_copy(update={"cluster": ClusterKey("12.pbs")})
    put(ledger, last)
    assert (ledger.all(), [one.name for one in tmp_path.iterdir()]) == ([last], ["12.pbs.json"])


def test_a_job_that_has_not_ended_is_known_for_ever(tmp_path: Path) -> None:
    put(JobRecordStore(tmp_path), A)
    assert JobRecordStore(tmp_path, lambda: 1e12).all() == [A]


def test_an_unreadable_record_is_logged_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(JobRecordStore(tmp_path), A)
    (tmp_path / "13.pbs.json").write_text("{")
    assert JobRecordStore(tmp_path).all() == [A]
    assert "job_record_unreadable" in caplog.text
    assert (tmp_path / "13.pbs.json").exists()


def test_who_waits_for_a_job_is_woken_by_its_change(tmp_path: Path) -> None:
    ledger = JobRecordStore(tmp_path)
    threading.Timer(0.05, lambda: put(ledger, A)).start()
    assert ledger.wait(lambda job: job == A, "12.pbs", 30)


def test_threads_that_change_one_job_do_not_undo_each_other(tmp_path: Path) -> None:
    ledger = JobRecordStore(tmp_path)
    put(ledger, A.model_copy(update={"attempt": 0}))

    def count() -> None:
        for _ in range(20):
            ledger.change(A.cluster, lambda job: (job or A).model_copy(update={"attempt": (job or A).attempt + 1}))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [job.attempt for job in JobRecordStore(tmp_path).all()] == [80]
