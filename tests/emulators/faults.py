"""What goes wrong on an emulated switch on purpose: faults of single commands, commands that an account may not use."""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["cut", "refuse", "ignore", "say", "hang", "log", "drip", "rename"]
ALWAYS = 1_000_000_000


@dataclass
class Fault:
    """A fault of ``times`` commands that match the regular expression ``pattern``, after ``skip`` that do and go well.

    ``cut`` drops every session, before the command is performed or after (``done``); ``refuse`` answers ``text`` or the
    platform's words for an invalid line; ``ignore`` answers as usual and changes nothing; ``say`` answers ``text``;
    ``hang`` never answers; ``drip`` answers one dot every ``seconds``, for ever; ``log`` prints the log line ``text``
    before the answer; ``rename`` performs the command and changes the host name, and so the prompt, to ``text``.
    """

    kind: Kind
    pattern: str
    text: str = ""
    times: int = 1
    done: bool = False
    seconds: float = 0.05
    skip: int = 0


class Faults:
    """The faults of one switch, in the order in which they were planned."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.forbidden: list[tuple[str, str]] = []

    def fail(self, kind: Kind, pattern: str, **more: object) -> None:
        """Plan a fault of the next command that matches ``pattern``."""
        self.faults.append(Fault(kind, pattern, **more))  # type: ignore[arg-type]

    def lie(self, pattern: str) -> None:
        """Accept every line that matches ``pattern`` from now on, and change nothing."""
        self.fail("ignore", pattern, times=ALWAYS)

    def forbid(self, pattern: str, text: str = "") -> None:
        """Refuse every line that matches ``pattern``, in the platform's words for a missing right or in ``text``."""
        self.forbidden.append((pattern, text))

    def fault_for(self, command: str) -> Fault | None:
        """Return the fault of a command, and count it."""
        for fault in self.faults:
            if not fault.times or not re.search(fault.pattern, command):
                continue
            if not fault.skip:
                fault.times -= 1
                return fault
            fault.skip -= 1
        return None

    def forbidden_words(self, command: str, usual: str) -> str | None:
        """Return the answer to a command that the account may not use, or None."""
        found = [text or usual for pattern, text in self.forbidden if re.search(pattern, command)]
        return found[0] if found else None
