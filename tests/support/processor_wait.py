"""Durations of processes, without the time for which the processes waited for a processor."""

import os
import time
from pathlib import Path
from typing import Protocol


def waited_for_processor(pid: int) -> float:
    """Return the seconds for which the threads of a process were ready to run but had no processor (Linux)."""
    seconds = 0.0
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            seconds += int((thread / "schedstat").read_text().split()[1]) / 1e9
        except OSError:  # the thread has ended
            continue
    return seconds


class Stopwatch:
    """Measures seconds, without the time for which this process or the processes ``pids`` waited for a processor."""

    def __init__(self, *pids: int) -> None:
        self._waited_before = {pid: waited_for_processor(pid) for pid in (os.getpid(), *pids)}
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        waited = (waited_for_processor(pid) - before for pid, before in self._waited_before.items())
        return time.monotonic() - self._start - sum(max(seconds, 0) for seconds in waited)


class Process(Protocol):
    """A :class:`subprocess.Popen`, or another object with a ``pid`` and a ``poll`` like those of a ``Popen``."""

    pid: int

    def poll(self) -> int | None: ...


def seconds_to_end(process: Process, limit_s: float = 60) -> float:
    """Wait until a process ends. Return the duration in seconds.

    The time for which ``process`` or the calling process waited for a processor is subtracted.
    """
    start, waited_before, own_waited_before = (
        time.monotonic(),
        waited_for_processor(process.pid),
        waited_for_processor(os.getpid()),
    )
    waited = 0.0
    while process.poll() is None:
        waited = max(waited, waited_for_processor(process.pid) - waited_before)
        assert time.monotonic() - start < limit_s, "the process does not end"
        time.sleep(0.01)
    return time.monotonic() - start - waited - (waited_for_processor(os.getpid()) - own_waited_before)
