"""What happens while a lab comes up, for whoever watches.

What happens while the lab comes up, one JSON object per line, for whoever watches.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LabEvent:
    """A step of the start has come to a state: ``begin``, ``done``, ``failed``, or ``note``."""

    step: str
    state: str
    text: str = ""


Watcher = Callable[[LabEvent], None]


class EventLog:
    """Writes events to a file of its own; may be used by several threads."""

    def __init__(self, path: Path) -> None:
        """Append to ``path``."""
        self._path = path
        self._lock = threading.Lock()

    def write(self, step: str, state: str, text: str = "") -> None:
        """Note that ``step`` has come to ``state``: ``begin``, ``done`` or ``failed``."""
        line = json.dumps({"time": time.time(), "step": step, "state": state, "text": text})
        with self._lock, self._path.open("a") as file:
            file.write(line + "\n")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Frame one step; an error is noted and goes on."""
        self.write(name, "begin")
        try:
            yield
        except BaseException as error:
            self.write(name, "failed", str(error))
            raise
        self.write(name, "done")
