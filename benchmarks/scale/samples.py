"""Samples of a running simulation: SBF's processor time, and how late the simulator's own event loop is."""

import asyncio
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

INTERVAL_S = 0.05
PROCESSOR_INTERVAL_S = 1.0


@dataclass
class Samples:
    """Samples of the delays of the simulator's event loop, and of the processor time of SBF's process ``pid``.

    Each duration that the simulator measures includes the delay of the simulator's event loop.
    """

    pid: int
    delays_s: list[float] = field(default_factory=list)
    processor: list[tuple[float, float]] = field(default_factory=list)
    """Each sample: the seconds since the start, and the processor time per second since the previous sample."""

    async def take(self) -> None:
        """Take samples until the task is cancelled."""
        began = last = time.monotonic()
        used_s = read_processor_s(self.pid)
        while True:
            asked = time.monotonic()
            await asyncio.sleep(INTERVAL_S)
            now = time.monotonic()
            self.delays_s.append(now - asked - INTERVAL_S)
            if now - last >= PROCESSOR_INTERVAL_S:
                before_s, used_s = used_s, read_processor_s(self.pid)
                self.processor.append((now - began, (used_s - before_s) / (now - last)))
                last = now

    def to_document(self) -> dict[str, list[float]]:
        """Return the times of the samples (``at_s``), and the used ``processors`` since the previous sample."""
        return {"at_s": [at for at, _ in self.processor], "processors": [used for _, used in self.processor]}


def read_processor_s(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    words = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
