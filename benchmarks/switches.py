"""Emulated switches in a separate process, so that benchmarks do not measure the switches' processor time."""

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from support.emulators import emulate

PLATFORM = "cisco_ios"
SLOWNESS_S = 0.3
"""The duration of one command in seconds. Many real switches take this time."""


@dataclass(frozen=True)
class Switches:
    """A client of the process that runs the emulated switches."""

    _connection: Connection

    def read(self, attribute: str) -> list[object]:
        """Return the value of an attribute of every switch, in the order of the switches."""
        self._connection.send(attribute)
        values: list[object] = self._connection.recv()
        return values

    @property
    def addresses(self) -> list[str]:
        """Return the ``host:port`` of each switch."""
        return [str(address) for address in self.read("address")]

    def saves(self) -> int:
        """Return the number of saves of the first switch's configuration."""
        return int(str(self.read("saves")[0]))

    def commands(self) -> int:
        """Return the number of commands that the first switch received."""
        commands = self.read("commands")[0]
        return len(commands) if isinstance(commands, list) else 0


@contextmanager
def switches(count: int, slowness: float = SLOWNESS_S) -> Iterator[Switches]:
    """Run ``count`` switches while the context is open. ``slowness`` is the duration of a command in seconds."""
    client_end, process_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(process_end, count, slowness), daemon=True
    )
    process.start()
    process_end.close()
    try:
        yield Switches(client_end)
    finally:
        client_end.close()
        process.join(5)
        process.terminate()


def _run(connection: Connection, count: int, slowness: float) -> None:
    with ExitStack() as stack:
        running = [
            stack.enter_context(emulate(PLATFORM, hostname=f"sw{n}", slowness=slowness)) for n in range(1, count + 1)
        ]
        while True:
            try:
                attribute = connection.recv()
            except EOFError:
                return
            connection.send([getattr(switch, attribute) for switch in running])
