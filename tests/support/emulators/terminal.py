"""The device's end of a terminal: line editing, echo, questions, paging."""

import threading
from collections.abc import Callable
from itertools import takewhile
from typing import Protocol

INTERRUPT, END_OF_MODE = "\x03", "\x1a"
ERASE = ("\x08", "\x7f")


class Hangup(Exception):
    """The client or the device ended the session."""


class Channel(Protocol):
    """The methods of an SSH channel that a terminal calls."""

    def recv(self, size: int) -> bytes: ...
    def sendall(self, data: bytes) -> None: ...


class Terminal:
    """Reads lines with echo, and writes text with carriage returns."""

    def __init__(
        self, channel: Channel, drip: tuple[int, float] = (0, 0), closing: threading.Event | None = None
    ) -> None:
        """Create a terminal.

        ``drip`` splits all output into pieces. The values of ``drip`` are the number of characters in a piece, and the
        time in seconds between two pieces.
        """
        self._channel = channel
        self._drip, self._closing = drip, closing or threading.Event()
        self._unread = ""
        self._after_return = False

    def write(self, text: str) -> None:
        size, seconds = self._drip
        text = text.replace("\n", "\r\n")
        for start in range(0, len(text), size or len(text) or 1):
            self._send(text[start : start + (size or len(text))])
            if size and self._closing.wait(seconds):
                raise Hangup

    def _send(self, text: str) -> None:
        try:
            self._channel.sendall(text.encode())
        except (OSError, EOFError) as error:
            raise Hangup from error

    @property
    def alive(self) -> bool:
        """Return whether the client is still connected, as far as the channel can detect a lost connection."""
        return not getattr(self._channel, "closed", False)

    def line(self, prompt: str = "", echo: bool = True) -> str:
        """Read a typed line. If input was sent before the prompt, its echo follows the prompt, as on devices."""
        self.write(prompt)
        typed = ""
        while True:
            printable = "".join(takewhile(str.isprintable, self._wait_for_input()))
            if printable:
                self._unread = self._unread[len(printable) :]
                typed += printable
                self.write(printable if echo else "")
                self._after_return = False
            elif (key := self.key()) == "\r" or (key == "\n" and not self._after_return):
                self._after_return = key == "\r"
                self.write("\n")
                return typed
            elif key in (INTERRUPT, END_OF_MODE):
                self.write("^C\n" if key == INTERRUPT else "^Z\n")
                return "" if key == INTERRUPT else key
            elif key in ERASE and typed:
                typed = typed[:-1]
                self.write("\b \b" if echo else "")

    def key(self) -> str:
        self._wait_for_input()
        key, self._unread = self._unread[0], self._unread[1:]
        return key

    def _wait_for_input(self) -> str:
        while not self._unread:
            data = self._channel.recv(4096)
            if not data:
                raise Hangup
            self._unread = data.decode(errors="replace").replace("\x00", "")
        return self._unread


def paged(terminal: Terminal, text: str, length: int, more: str, wait: Callable[[], str]) -> None:
    """Write ``text``, and wait for a key after each ``length`` lines, or never if ``length`` is 0.

    The keys q and Ctrl-C end the output, Enter prints one more line, and any other key prints ``length`` more lines.
    """
    lines = text.splitlines()
    shown, room = 0, length
    while shown < len(lines):
        if length and room == 0:
            terminal.write(more)
            key = wait()
            terminal.write("\b" * len(more) + " " * len(more) + "\b" * len(more))
            if key.lower() in ("q", INTERRUPT):
                terminal.write("\n")
                return
            room = 1 if key in "\r\n" else length
        count = room if length else len(lines)
        terminal.write("".join(f"{line}\n" for line in lines[shown : shown + count]))
        shown, room = shown + count, 0
