"""What happens while a lab comes up, for whoever watches."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """A step of the start has come to a state: ``begin``, ``done``, ``failed``, or ``note``."""

    step: str
    state: str
    text: str = ""


Watcher = Callable[[Event], None]
