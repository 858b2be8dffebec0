"""A shell on a device: runs programs, and separates the output of a program from prompts and echoes."""

import re
from collections.abc import Iterable, Iterator

from sbf_service.drivers.device_errors import quote_end
from sbf_service.drivers.transport.device_session import CommandLine, close_lost_session, is_session_lost
from virtcloud.model.errors import Unsafe

PATH = "PATH=$PATH:/usr/sbin:/sbin"
BEGIN, END = "begin-of-answer", "end-of-answer:"
MAX_LINE_CHARACTERS = 3500
"""The maximum length of a group of :func:`pack_words`, in characters.

A terminal accepts at most 4096 characters in a line (termios(3), canonical mode). The line also contains the rest of
the command, and the texts of :meth:`Shell.run`.
"""


class Shell:
    """The shell of one device. ``device`` is the kind and name of the device in messages."""

    def __init__(self, device: str, line: CommandLine) -> None:
        """Store ``line``, which connects on first use."""
        self.device = device
        self._line = line

    def close_if_lost(self) -> None:
        """Close a session that the device ended. Drivers call this method before each reading."""
        close_lost_session(self._line)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command of one or several lines, and return the exit code and the output.

        The shell prints ``BEGIN`` before the output and ``END`` after the output. The command contains both texts in
        two pieces, so that its echo does not match. Raise Unsafe when a text is missing in the output. Raise the errors
        of :meth:`CommandLine.exchange`.
        """
        marked = f"{PATH}; echo '{BEGIN[0]}''{BEGIN[1:]}'; {command}; echo '{END[0]}''{END[1:]}'$?"
        output = self._line.exchange(marked, until=rf"{END}\d+")
        found = re.search(rf"{BEGIN}\s*\n(.*?){END}(\d+)", output, re.DOTALL)
        if found is None:
            raise Unsafe(f"{self.device}: expected output between '{BEGIN}' and '{END}', got {quote_end(output)!r}")
        return int(found[2]), found[1].strip()

    def is_lost(self) -> bool:
        """Return whether the device ended the session; False if the session cannot detect its end."""
        return is_session_lost(self._line)

    def close(self) -> None:
        """End the session. Idempotent."""
        self._line.close()


def pack_words(words: Iterable[str], separator: int = 1) -> Iterator[list[str]]:
    """Yield groups of words that fit on a terminal line. ``separator``: the number of characters between two words."""
    group: list[str] = []
    for word in words:
        if group and sum(len(member) + separator for member in group) + len(word) > MAX_LINE_CHARACTERS:
            yield group
            group = []
        group.append(word)
    if group:
        yield group
