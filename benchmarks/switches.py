"""Emulated switches in a process of their own, so that they take no processor time from the measured service."""

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from emulators import emulate

PLATFORM = "cisco_ios"
SLOWNESS_S = 0.3
"""The duration of a command on many real switches."""


@dataclass(frozen=True)
class Switches:
    """A client of the process with the switches; answers are in the order of the switches."""

    _line: Connection

    def ask(self, what: str) -> list[object]:
        """Return an attribute of every switch."""
        self._line.send(what)
        found: list[object] = self._line.recv()
        return found

    @property
    def addresses(self) -> list[str]:
        """Return the ``host:port`` of each switch."""
        return [str(address) for address in self.ask("address")]

    def saves(self) -> int:
        """Return how often the first switch has saved its configuration."""
        return int(str(self.ask("saves")[0]))

    def commands(self) -> int:
        """Return the number of commands that the first switch received."""
        found = self.ask("commands")[0]
        return len(found) if isinstance(found, list) else 0


@contextmanager
def switches(count: int, slowness: float = SLOWNESS_S) -> Iterator[Switches]:
    """Run ``count`` switches within the context."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(theirs, count, slowness), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Switches(ours)
    finally:
        ours.close()
        process.join(5)
        process.terminate()


def _run(line: Connection, count: int, slowness: float) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(emulate(PLATFORM, hostname=f"sw{n}", slowness=slowness)) for n in range(1, count + 1)
        ]
        while True:
            try:
                what = line.recv()
            except EOFError:
                return
            line.send([getattr(switch, what) for switch in running])
