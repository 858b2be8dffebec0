"""Two clients of emulated devices: a terminal over SSH, and a command line without SSH.

The command line without SSH is for tests that need hundreds of sessions.
"""

import re
import socket
import time
from types import TracebackType
from typing import Self

import paramiko

from support.emulators.session import EmulatedSession
from support.emulators.switch_device import EmulatedSwitch
from support.emulators.terminal import Hangup, Terminal
from virtcloud.model.errors import Unreachable

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PRIVILEGED = ("cisco_nxos", "dell_os10", "aruba_aoscx", "hp_comware", "sonic")
"""Platforms whose sessions need no ``enable``."""


class AdministratorClient:
    """A privileged terminal session without paging. ``patience`` is the maximum wait for an answer, in seconds."""

    def __init__(self, switch: EmulatedSwitch, patience: float = 5) -> None:
        self._switch, self._patience = switch, patience
        host, port = switch.address.split(":")
        self._transport = paramiko.Transport(socket.create_connection((host, int(port)), patience))
        self._transport.connect(username=switch.username, password=switch.password)
        self._channel = self._transport.open_session()
        self._channel.get_pty(width=200)
        self._channel.invoke_shell()
        if switch.platform == "hp_procurve":
            self.read("any key")
            self._channel.sendall(b" ")
        self.read()
        self._prepare()

    def _prepare(self) -> None:
        if self._switch.platform == "hp_procurve":
            self.send("enable", "Username: ")
            self.send(self._switch.username, "Password: ")
            self.send(self._switch.secret)
        elif self._switch.platform not in PRIVILEGED and self._switch.first_mode == "user":
            self.send("enable", "Password: ")
            self.send(self._switch.secret)
        quiet = {"hp_comware": "screen-length disable", "hp_procurve": "no page", "aruba_aoscx": "no page"}
        if self._switch.platform != "sonic":
            self.send(quiet.get(self._switch.platform, "terminal length 0"))

    @property
    def prompt(self) -> str:
        return rf"(^|\n)[^\n]*{self._switch.hostname}[^\n]*[#>$\]] ?\Z"

    def send(self, line: str, until: str = "") -> str:
        self._channel.sendall(f"{line}\r".encode())
        return self.read(until, after="" if line == self._switch.secret else line)

    def read(self, until: str = "", after: str = "") -> str:
        """Wait until the output after the text ``after`` matches the pattern ``until``, and return this output.

        The default of ``until`` is a prompt. Raise EOFError at the end of the session. Raise TimeoutError if the output
        does not match within ``patience`` seconds.
        """
        return self._read(until or self.prompt, after, self._patience)

    def read_for(self, line: str = "", seconds: float = 0.3) -> str:
        """Type ``line`` unless it is empty, and return the output of the next ``seconds``."""
        if line:
            self._channel.sendall(f"{line}\r".encode())
        try:
            return self._read("(?!)", "", seconds)
        except TimeoutError as error:
            return str(error)

    def _read(self, until: str, after: str, patience: float) -> str:
        text, deadline = "", time.monotonic() + patience
        while time.monotonic() < deadline:
            self._channel.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = self._channel.recv(65536)
            except TimeoutError:
                break
            if not data:
                raise EOFError(text)
            text = ESCAPES.sub("", text + data.decode(errors="replace").replace("\r", ""))
            start = text.find(after) + len(after)
            if after in text and re.search(until, text[start:]):
                return text[start:]
        raise TimeoutError(text)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _OutputChannel:
    def __init__(self) -> None:
        self.text = ""

    def recv(self, size: int) -> bytes:
        raise AssertionError("a key was requested, but this channel has no input")

    def sendall(self, data: bytes) -> None:
        self.text += data.decode().replace("\r\n", "\n")


class DirectLine:
    """The command line of a privileged session, without SSH. A new session replaces a lost session."""

    def __init__(self, device: EmulatedSwitch, mode: str = "exec") -> None:
        self._device, self._mode = device, mode
        self._session: EmulatedSession | None = None

    @property
    def prompt(self) -> str:
        return rf"^\S*{re.escape(self._device.hostname)}[^\n>#]*[>#] ?"

    def exchange(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        output = _OutputChannel()
        if self._session is None:
            self._session = EmulatedSession(self._device, Terminal(output))
            self._session.mode, self._session.page = self._mode, 0
        session = self._session
        session.terminal = Terminal(output)
        for number, line in enumerate(command.split("\n")):
            output.text += (line if number else "") + "\n"
            try:
                session.answer(line)
            except Hangup as hangup:
                self.close()
                name = self._device.hostname
                raise Unreachable(f"edge {name} does not answer: disconnected; SBF tries again") from hangup
            output.text += self._device.prompt(session)
        assert len(re.findall(until, output.text, re.MULTILINE)) >= times
        return output.text

    def close(self) -> None:
        self._session = None
