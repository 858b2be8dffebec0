import os
import threading
from pathlib import Path

import pytest

from virtcloud.agent.job_socket.job_record_store import RETENTION_S, JobRecordStore
from virtcloud.agent.job_socket.job_records import JobRecord, RecordPhase
from virtcloud.model.errors import Refused
from virtcloud.model.values import ClusterKey

JOB = JobRecord(cluster=ClusterKey("12.pbs"), attempt=1, head=True, user="alice")
GONE = JobRecord(cluster=ClusterKey("11.pbs"), attempt=1, phase=RecordPhase.GONE)


def put(store: JobRecordStore, job: JobRecord) -> None:
    store.change(job.cluster, lambda _: job)


def test_a_restarted_agent_reads_the_records(tmp_path: Path) -> None:
    put(JobRecordStore(tmp_path), JOB)
    assert JobRecordStore(tmp_path).all() == [JOB]


def test_a_job_with_a_long_key_is_stored(tmp_path: Path) -> None:
    job = JOB.model_copy(update={"cluster": ClusterKey(f"1234567.{'x' * 255}")})
    put(JobRecordStore(tmp_path), job)
    assert JobRecordStore(tmp_path).all() == [job]


def test_an_unwritable_change_does_not_change_the_memory(tmp_path: Path) -> None:
    """The agent must not accept a request if a kill of the agent would undo the request's effect."""
    store = JobRecordStore(tmp_path / "jobs")
    (tmp_path / "jobs").rmdir()
    with pytest.raises(Refused, match=r"cannot store the record of cluster 12\.pbs in .*: No such file or directory"):
        put(store, JOB)
    assert store.all() == []


def test_a_failed_write_keeps_the_former_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = JobRecordStore(tmp_path)
    put(store, JOB)

    def raise_disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    with pytest.raises(Refused) as raised:
        put(store, JOB.model_copy(update={"phase": RecordPhase.LEAVING}))
    assert str(raised.value) == f"cannot store the record of cluster 12.pbs in {tmp_path}: No space left on device"
    assert JobRecordStore(tmp_path).all() == store.all() == [JOB]


def test_a_removed_record_leaves_no_file(tmp_path: Path) -> None:
    store = JobRecordStore(tmp_path)
    put(store, JOB)
    store.change(JOB.cluster, lambda _: None)
    assert (store.all(), list(tmp_path.iterdir())) == ([], [])


def test_the_record_of_a_removed_run_remains_a_week(tmp_path: Path) -> None:
    put(JobRecordStore(tmp_path), GONE)
    written_at = (tmp_path / "11.pbs.json").stat().st_mtime
    assert JobRecordStore(tmp_path, lambda: written_at + RETENTION_S).all() == [GONE]
    assert JobRecordStore(tmp_path, lambda: written_at + RETENTION_S + 1).all() == []
    assert list(tmp_path.iterdir()) == []


def test_records_of_old_runs_are_removed(tmp_path: Path) -> None:
    store = JobRecordStore(tmp_path)
    put(store, GONE)
    os.utime(tmp_path / "11.pbs.json", (0, 0))
    removed = GONE.model_copy(update={"cluster": ClusterKey("12.pbs")})
    put(store, removed)
    assert (store.all(), [path.name for path in tmp_path.iterdir()]) == ([removed], ["12.pbs.json"])


def test_an_undeletable_old_record_prevents_no_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = JobRecordStore(tmp_path)
    put(store, GONE)
    old = tmp_path / "11.pbs.json"
    old.unlink()
    old.mkdir()
    os.utime(old, (0, 0))
    removed = GONE.model_copy(update={"cluster": ClusterKey("12.pbs")})
    put(store, removed)
    assert store.all() == [GONE, removed]
    assert "old_job_record_not_removed" in caplog.text


def test_the_record_of_a_present_run_never_expires(tmp_path: Path) -> None:
    put(JobRecordStore(tmp_path), JOB)
    assert JobRecordStore(tmp_path, lambda: 1e12).all() == [JOB]


def test_an_unreadable_record_is_logged_and_not_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(JobRecordStore(tmp_path), JOB)
    (tmp_path / "13.pbs.json").write_text("{")
    assert JobRecordStore(tmp_path).all() == [JOB]
    assert "job_record_unreadable" in caplog.text
    assert (tmp_path / "13.pbs.json").exists()


def test_a_waiting_caller_is_woken_by_a_change(tmp_path: Path) -> None:
    store = JobRecordStore(tmp_path)
    threading.Timer(0.05, lambda: put(store, JOB)).start()
    assert store.wait(lambda job: job == JOB, "12.pbs", 30)


def test_concurrent_changes_of_a_record_are_not_lost(tmp_path: Path) -> None:
    store = JobRecordStore(tmp_path)
    put(store, JOB.model_copy(update={"attempt": 0}))

    def count() -> None:
        for _ in range(20):
            store.change(JOB.cluster, lambda job: (job or JOB).model_copy(update={"attempt": (job or JOB).attempt + 1}))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [job.attempt for job in JobRecordStore(tmp_path).all()] == [80]
