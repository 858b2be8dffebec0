"""A command line straight to an emulated device, without SSH: for claims that need hundreds of sessions."""

import re

from emulators.switch import Session, Switch
from emulators.terminal import Hangup, Terminal
from virtcloud.model.errors import Unreachable


class _Heard:
    """A channel that keeps what is written to it."""

    def __init__(self) -> None:
        self.text = ""

    def recv(self, size: int) -> bytes:
        raise AssertionError("nobody is there to press a key")

    def sendall(self, data: bytes) -> None:
        self.text += data.decode().replace("\r\n", "\n")


class DirectLine:
    """Speaks as the session of somebody who is logged in and privileged; a cut one is opened again."""

    def __init__(self, device: Switch, mode: str = "exec") -> None:
        self._device, self._mode = device, mode
        self._session: Session | None = None

    @property
    def prompt(self) -> str:
        return rf"^\S*{re.escape(self._device.hostname)}[^\n>#]*[>#] ?"

    def ask(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        heard = _Heard()
        if self._session is None:
            self._session = Session(self._device, Terminal(heard))
            self._session.mode, self._session.page = self._mode, 0
        session = self._session
        session.terminal = Terminal(heard)
        for number, line in enumerate(command.split("\n")):
            heard.text += (line if number else "") + "\n"
            try:
                session.answer(line)
            except Hangup as cut:
                self.close()
                raise Unreachable(f"edge {self._device.hostname} does not answer: cut; it is tried again") from cut
            heard.text += self._device.prompt(session)
        assert len(re.findall(until, heard.text, re.MULTILINE)) >= times
        return heard.text

    def close(self) -> None:
        self._session = None
