"""A shell on a device: programs are run, and what they print is kept apart from what a terminal adds."""

import re
from collections.abc import Iterable, Iterator

from sbf_service.drivers.transport.device_session import CommandLine, DetectsSessionLoss, close_lost_session
from virtcloud.model.errors import Unsafe

PATH = "PATH=$PATH:/usr/sbin:/sbin"
BEGIN, END = "begin-of-answer", "end-of-answer:"
MAX_LINE_CHARACTERS = 3500
"""A terminal line holds 4096 characters (termios(3), canonical mode)."""
QUOTED_CHARACTERS = 300


class Shell:
    """The shell of one device; ``whom`` is what messages call it: its kind and its name."""

    def __init__(self, whom: str, line: CommandLine) -> None:
        """Speak to ``whom`` over ``line``."""
        self.whom = whom
        self._line = line

    def renew(self) -> None:
        """Replace a session that the device ended; for the start of a reading."""
        close_lost_session(self._line)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command, which may be of several lines; give its exit code and what it printed.

        The marks are sent in two pieces, so that the terminal's echo of the command does not look like an answer.
        Raises what the line raises, and Unsafe when there is no answer between the marks.
        """
        sent = f"{PATH}; echo '{BEGIN[0]}''{BEGIN[1:]}'; {command}; echo '{END[0]}''{END[1:]}'$?"
        said = self._line.ask(sent, until=rf"{END}\d+")
        found = re.search(rf"{BEGIN}\s*\n(.*?){END}(\d+)", said, re.DOTALL)
        if found is None:
            raise Unsafe(f"{self.whom}: expected an answer between marks, got {quote_end(said)!r}")
        return int(found[2]), found[1].strip()

    def is_lost(self) -> bool:
        """Return whether the device ended the session by itself, as far as the line notices that."""
        return isinstance(self._line, DetectsSessionLoss) and self._line.is_lost()

    def close(self) -> None:
        """End the session; may be repeated."""
        self._line.close()


def pack_words(words: Iterable[str], beside: int = 1) -> Iterator[list[str]]:
    """Split words so that each part fits on a terminal line; each has ``beside`` characters between it and the next."""
    part: list[str] = []
    for word in words:
        if part and sum(len(one) + beside for one in part) + len(word) > MAX_LINE_CHARACTERS:
            yield part
            part = []
        part.append(word)
    if part:
        yield part


def quote_end(said: str) -> str:
    """Give the end of what a device said on one line: that is where errors stand."""
    return " ".join(said.split())[-QUOTED_CHARACTERS:]
