"""Emulated switches in a process of their own, so that they do not take their time from what is measured."""

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from emulators import emulate

PLATFORM = "cisco_ios"
SLOWNESS_S = 0.3
"""What a command takes on many a switch."""


@dataclass(frozen=True)
class Switches:
    """Asks the other process about its switches; answers are in the order of the switches."""

    _line: Connection

    def ask(self, what: str) -> list[object]:
        """Give an attribute of every switch."""
        self._line.send(what)
        found: list[object] = self._line.recv()
        return found

    @property
    def addresses(self) -> list[str]:
        """Give where each is reached, ``host:port``."""
        return [str(one) for one in self.ask("address")]

    def saves(self) -> int:
        """Count how often the first one has saved its configuration."""
        return int(str(self.ask("saves")[0]))

    def commands(self) -> int:
        """Count the commands that the first one was given."""
        found = self.ask("commands")[0]
        return len(found) if isinstance(found, list) else 0


@contextmanager
def switches(count: int, slowness: float = SLOWNESS_S) -> Iterator[Switches]:
    """Run so many switches for as long as the context lasts."""
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
            line.send([getattr(one, what) for one in running])
