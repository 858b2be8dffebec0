"""The events of a lab's start. The fabric writes one JSON object per line, and the launcher reads these lines."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LabEvent:
    """An event of the lab's start. ``step`` is the name of a step, such as ``"brno-h1 agent"``.

    ``state`` is ``begin``, ``done`` or ``failed``, or ``note`` for a message about the step. ``text`` is this message,
    or the error of a failed step.
    """

    step: str
    state: str
    text: str = ""


Watcher = Callable[[LabEvent], None]


class EventLog:
    """Writes events to a file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Create a log that appends events to the file ``path``."""
        self._path = path
        self._lock = threading.Lock()

    def write(self, step: str, state: str, text: str = "") -> None:
        """Write an event of ``step``. :class:`LabEvent` describes the values of ``state``."""
        line = json.dumps({"time": time.time(), "step": step, "state": state, "text": text})
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Write ``begin`` before the block and ``done`` after the block.

        If the block raises an error, write ``failed`` instead of ``done``, and raise the error again.
        """
        self.write(name, "begin")
        try:
            yield
        except BaseException as error:
            self.write(name, "failed", str(error))
            raise
        self.write(name, "done")


def follow_events(path: Path) -> Iterator[list[LabEvent]]:
    """Yield, without end, lists of the events that were added to the file since the previous list.

    The iterator does not wait: without new events, the iterator yields an empty list.
    """
    with path.open() as file:
        part = ""
        while True:
            part += file.read()
            complete, _, part = part.rpartition("\n")
            lines = [json.loads(line) for line in complete.splitlines()]
            yield [LabEvent(line["step"], line["state"], line["text"]) for line in lines]
