"""The jobs known here, on disk before anybody is told: an agent that is killed goes on where it was.

A file for each job, ``<state>/jobs/<key>.json``, written whole beside its place and moved there.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from virtcloud.agent import log
from virtcloud.agent.local.job import Job, Phase
from virtcloud.agent.names import file_of
from virtcloud.model.errors import Refused
from virtcloud.model.values import ClusterKey

J = TypeVar("J", bound=Job | None)
KEPT_S = 7 * 86400.0
"""So long it is remembered that a run is gone: no batch system calls for a run later than that."""


class Ledger:
    """All jobs known here. Thread-safe; its lock is held while a file is written and never while anybody is asked."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """Read what is there; ``clock`` is the time of files. Raises Refused when the folder cannot be."""
        self._folder = folder
        self._clock = clock
        self._changed = threading.Condition()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._jobs = {job.cluster: job for path in folder.glob("*.json") if (job := _read(path))}
            self._forget()
        except OSError as error:
            raise Refused(f"cannot keep jobs in {folder}: {error.strerror}; set 'state' in the settings") from error

    def get(self, cluster: str) -> Job | None:
        """Give what is known under a key."""
        with self._changed:
            return self._jobs.get(ClusterKey(cluster))

    def all(self) -> list[Job]:
        """Give all, in the order of their keys."""
        with self._changed:
            return [job for _, job in sorted(self._jobs.items())]

    def change(self, cluster: ClusterKey, how: Callable[[Job | None], J]) -> J:
        """Put what ``how`` makes of a job in its place, on disk first, and give it; raises Refused, and its errors."""
        with self._changed:
            before = self._jobs.get(cluster)
            after = how(before)
            if after == before:
                return after
            self._write(cluster, after)
            if after is None:
                del self._jobs[cluster]
            else:
                self._jobs[cluster] = after
            if after is not None and after.phase is Phase.GONE:
                self._forget()
            self._changed.notify_all()
            return after

    def wait(self, reached: Callable[[Job | None], bool], cluster: str, seconds: float) -> bool:
        """Wait until a job is so, ``seconds`` at most; say whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: reached(self._jobs.get(ClusterKey(cluster))), seconds)

    def pause(self, seconds: float | None, *, unless: Callable[[], bool]) -> None:
        """Wait for any change, ``seconds`` at most; not at all when ``unless`` holds already."""
        with self._changed:
            if not unless():
                self._changed.wait(seconds)

    def wake(self) -> None:
        """End all waits: somebody has something new to look at."""
        with self._changed:
            self._changed.notify_all()

    def _forget(self) -> None:
        """Forget what has been gone for long."""
        oldest = self._clock() - KEPT_S
        for job in [one for one in self._jobs.values() if one.phase is Phase.GONE]:
            place = self._place(job.cluster)
            if not place.exists() or place.stat().st_mtime < oldest:
                place.unlink(missing_ok=True)
                del self._jobs[job.cluster]

    def _place(self, cluster: str) -> Path:
        return self._folder / f"{file_of(cluster)}.json"

    def _write(self, cluster: ClusterKey, job: Job | None) -> None:
        place, new = self._place(cluster), self._folder / f".{file_of(cluster)}.new"
        try:
            if job is None:
                place.unlink(missing_ok=True)
            else:
                _write(new, job.model_dump_json(exclude_defaults=True).encode())
                new.rename(place)
            _write_through(self._folder)
        except OSError as error:
            raise Refused(f"cannot keep cluster {cluster} in {self._folder}: {error.strerror}") from error


def _read(path: Path) -> Job | None:
    """Read a job; one that cannot be read is told and left."""
    try:
        return Job.model_validate_json(path.read_bytes(), extra="ignore")  # a later agent may have written it
    except ValidationError as error:
        log.warning("job_unreadable", file=path, error=error.errors()[0]["msg"])
        return None


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def _write_through(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
