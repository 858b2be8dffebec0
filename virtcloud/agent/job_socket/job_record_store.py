"""The storage of job records: in memory, and in files for a restarted agent."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.files import refuse_os_errors, remove_durably, write_durably
from virtcloud.agent.job_socket.job_records import JobRecord, RecordPhase
from virtcloud.agent.network.names import file_name
from virtcloud.model.errors import Refused
from virtcloud.model.values import ClusterKey

RecordT = TypeVar("RecordT", bound=JobRecord | None)
RETENTION_S = 7 * 86400.0
"""Seconds for which a run's record is stored after the cluster has been removed from this host.

After this time, hooks send no requests about the run.
"""


class JobRecordStore:
    """All job records, in memory and in files ``<state>/jobs/<key>.json``. Thread-safe.

    A thread holds the lock while it writes a file, and never while it calls SBF.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Read the records. ``clock`` returns seconds since the epoch. Raise Refused if the folder cannot be used."""
        self._folder = folder
        self._clock = clock
        self._changed = threading.Condition()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._jobs = {job.cluster: job for path in folder.glob("*.json") if (job := _read_record(path))}
            self._remove_old_records()
        except OSError as error:
            raise Refused(
                f"cannot store job records in {folder}: {error.strerror}; set 'state' in the agent's settings"
            ) from error

    def get(self, cluster: str) -> JobRecord | None:
        """Return the record of the cluster with the key ``cluster``, or None."""
        with self._changed:
            return self._jobs.get(ClusterKey(cluster))

    def all(self) -> list[JobRecord]:
        """Return all records, ordered by key."""
        with self._changed:
            return [job for _, job in sorted(self._jobs.items())]

    def change(self, cluster: ClusterKey, transition: Callable[[JobRecord | None], RecordT]) -> RecordT:
        """Replace a record by ``transition(record)``, first on disk and then in memory. Return the new record.

        None represents a missing record. If the new record equals the former record, replace only the object in memory.
        Raise Refused if the record cannot be written. Also raise the errors of ``transition``.
        """
        with self._changed:
            before = self._jobs.get(cluster)
            after = transition(before)
            if after == before:
                if after is not None:
                    self._jobs[cluster] = after
                return after
            self._write(cluster, after)
            if after is None:
                del self._jobs[cluster]
            else:
                self._jobs[cluster] = after
            if after is not None and after.phase is RecordPhase.GONE:
                self._remove_old_records()
            self._changed.notify_all()
            return after

    def wait(self, condition: Callable[[JobRecord | None], bool], cluster: str, seconds: float) -> bool:
        """Wait at most ``seconds`` until ``condition(record)`` is true. Return the last result of ``condition``."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._jobs.get(ClusterKey(cluster))), seconds)

    def pause(self, seconds: float | None, *, unless: Callable[[], bool]) -> None:
        """Wait until any record changes, at most ``seconds`` (None: no limit). Do not wait if ``unless()`` is true."""
        with self._changed:
            if not unless():
                self._changed.wait(seconds)

    def wake(self) -> None:
        """Wake all threads that wait in `wait` or `pause`."""
        with self._changed:
            self._changed.notify_all()

    def _remove_old_records(self) -> None:
        oldest = self._clock() - RETENTION_S
        for job in [record for record in self._jobs.values() if record.phase is RecordPhase.GONE]:
            path = self._path(job.cluster)
            try:
                if not path.exists() or path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
                    del self._jobs[job.cluster]
            except OSError as error:
                log.warning("old_job_record_not_removed", file=path, error=error)

    def _path(self, cluster: str) -> Path:
        return self._folder / f"{file_name(cluster)}.json"

    def _write(self, cluster: ClusterKey, job: JobRecord | None) -> None:
        with refuse_os_errors(f"store the record of cluster {cluster} in {self._folder}"):
            if job is None:
                remove_durably(self._path(cluster))
            else:
                write_durably(self._path(cluster), job.model_dump_json(exclude_defaults=True).encode())


def _read_record(path: Path) -> JobRecord | None:
    """Return the record in a file. If the file is invalid, log the error, leave the file unchanged, and return None."""
    try:
        # A later version of the agent may have written fields that are unknown here.
        return JobRecord.model_validate_json(path.read_bytes(), extra="ignore")
    except ValidationError as error:
        log.warning("job_record_unreadable", file=path, error=error.errors()[0]["msg"])
        return None
