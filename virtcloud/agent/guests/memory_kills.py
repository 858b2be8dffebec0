"""Guests whose processes the kernel ended because memory was exhausted, from the kernel's log.

The kernel logs a line ``oom-kill:…`` for each such process, with the control group of the process. This line exists for
containers and virtual machines, with both versions of control groups, and with systemd or without. The control group of
a guest that has ended no longer exists.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from virtcloud.agent.guest_ends import EndCause

KERNEL_LOG: Final = Path("/dev/kmsg")
_RECORD_SIZE: Final = 8192  # more than the longest record (CONSOLE_EXT_LOG_MAX in linux/console.h)
_KILL: Final = re.compile(r"oom-kill:constraint=(\w+).*,task_memcg=([^,]+)")
_LIMIT: Final = "CONSTRAINT_MEMCG"
_ESCAPES: Final = (("\\x5c", "\\"), ("\\x2d", "-"))  # of the kernel's log, and of systemd's names of units


def parse_kill(record: str) -> tuple[str, EndCause] | None:
    """Return the control group of a killed process, and the cause. Return None for any other record. Pure."""
    found = _KILL.search(record)
    if found is None:
        return None
    group = found[2]
    for escaped, character in _ESCAPES:
        group = group.replace(escaped, character)
    return group, EndCause.MEMORY_LIMIT if found[1] == _LIMIT else EndCause.HOST_MEMORY


class MemoryKills:
    """The records since the creation of this object. Without the right to read the log, there are no records."""

    def __init__(self, log: Path = KERNEL_LOG) -> None:
        """Begin at the end of the log."""
        self._kills: dict[str, EndCause] = {}
        self._log: int | None = None
        with suppress(OSError):
            self._log = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._log, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def find_cause(self, domain: str) -> EndCause:
        """Return why a guest's domain has ended. The kills of this guest are then forgotten."""
        self._read()
        is_own = re.compile(rf"(?:^|[/-]){re.escape(domain)}\.").search
        groups = [group for group in self._kills if is_own(group)]
        return [self._kills.pop(group) for group in groups][-1] if groups else EndCause.UNKNOWN

    def _read(self) -> None:
        while self._log is not None:
            try:
                record = os.read(self._log, _RECORD_SIZE)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:
                return
            if not record:
                return
            if (kill := parse_kill(record.decode(errors="replace"))) is not None:
                self._kills[kill[0]] = kill[1]
