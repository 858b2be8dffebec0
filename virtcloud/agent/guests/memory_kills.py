"""Guests whose processes the kernel killed for lack of memory, found in the kernel's log.

For such a kill, the kernel logs a line ``oom-kill:…`` with the process's control group, for containers and virtual
machines, with both versions of control groups. The counters of the control group cannot be read, because the group does
not exist after the end of the guest.

A container can survive the kill of a process. Such a kill must not explain a later end of the container. Therefore the
agent reads the log at each reading of the host, and ignores a kill that the agent read more than `_LATE_S` seconds
before the earliest possible time of the container's end. The times in the log come from a clock of the kernel that
programs cannot read.
"""

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from virtcloud.agent.guest_ends import EndCause

KERNEL_LOG: Final = Path("/dev/kmsg")
_RECORD_SIZE: Final = 8192  # more than the longest record (CONSOLE_EXT_LOG_MAX in linux/console.h)
_KILL: Final = re.compile(r"oom-kill:constraint=(\w+).*,task_memcg=([^,]+)")
_LIMIT: Final = "CONSTRAINT_MEMCG"
_LATE_S: Final = 10.0
"""Longest time in seconds for which a guest still seems to run after a kill."""
_ESCAPES: Final = (("\\x5c", "\\"), ("\\x2d", "-"))  # the kernel's log escapes backslashes, and systemd escapes hyphens


def parse_kill(record: str) -> tuple[str, EndCause] | None:
    """Parse a record of the kernel's log. Return the killed process's control group, and the cause of the kill. Pure.

    Return None if the record reports no kill.
    """
    found = _KILL.search(record)
    if found is None:
        return None
    group = found[2]
    for escaped, character in _ESCAPES:
        group = group.replace(escaped, character)
    return group, EndCause.MEMORY_LIMIT if found[1] == _LIMIT else EndCause.HOST_MEMORY


class MemoryKills:
    """The kills since the creation of this object. If the kernel's log cannot be read, no kill is recorded."""

    def __init__(self, log: Path = KERNEL_LOG, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the log at its end."""
        self._clock = clock
        self._kills: dict[str, tuple[float, EndCause]] = {}
        """The time when a kill was read, and the cause, by control group."""
        self._log: int | None = None
        with suppress(OSError):
            self._log = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def find_cause(self, domain: str, within_s: float) -> EndCause:
        """Return the cause of the last kill in a domain, or UNKNOWN. Remove the domain's recorded kills.

        The domain has ended within the last ``within_s`` seconds.
        """
        self.read()
        is_own, first = re.compile(rf"(?:^|[/-]){re.escape(domain)}\.").search, self._clock() - within_s - _LATE_S
        kills = [self._kills.pop(group) for group in list(self._kills) if is_own(group)]
        return next((cause for read_at, cause in reversed(kills) if read_at >= first), EndCause.UNKNOWN)

    def read(self) -> None:
        """Record the kills in the log since the previous call."""
        while self._log is not None:
            try:
                record = os.read(self._log, _RECORD_SIZE)
            except BrokenPipeError:  # the kernel overwrote records that were not read yet
                continue
            except OSError:
                return
            if not record:
                return
            if (kill := parse_kill(record.decode(errors="replace"))) is not None:
                self._kills[kill[0]] = self._clock(), kill[1]
