"""Arista EOS with eAPI: its command line in requests, and configuration sessions with commit timers."""

import re
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from emulators.arista_eos import AristaEos
from emulators.confirm_timer import ConfirmTimerSwitch
from emulators.eapi_server import CommandFault
from emulators.fault_injection import Boot, InjectedFault
from emulators.session import accepts
from emulators.switch_device import CommandRejected, EmulatedSession, SwitchState
from emulators.terminal import Terminal

TOO_MANY = (
    "Maximum number of pending sessions has been reached. Please commit or abort previous sessions before creating "
    "a new one."
)


@dataclass
class ConfigSession:
    """A configuration session: a copy of the running configuration, which can be changed and committed."""

    state: SwitchState
    phase: str = "pending"
    until: float = -1


class Collecting:
    """The client's end of a terminal. It stores the output."""

    def __init__(self) -> None:
        self.written = ""

    def recv(self, size: int) -> bytes:
        raise CommandFault("a question was asked, and there is nobody to answer it")

    def sendall(self, data: bytes) -> None:
        self.written += data.decode().replace("\r", "")


class AristaEapi(ConfirmTimerSwitch, AristaEos):
    """An EOS switch with eAPI. ``release`` determines the form of the sessions' output, which changed in 4.32."""

    platform = "arista_eapi"
    pending_sessions: ClassVar[int] = 5

    def __init__(self, release: float = 4.31, **more: object) -> None:
        super().__init__(**more)
        self.release = release
        self.config_sessions: dict[str, ConfigSession] = {}
        self.certificate = ""
        self.started = time.time() - 1000

    # requests of eAPI

    def run_commands(self, commands: list[Any], encoding: str) -> list[dict[str, Any]]:
        collecting = Collecting()
        session = EmulatedSession(self, Terminal(collecting))
        session.page = 0
        session.pending_session = None  # type: ignore[attr-defined]
        answers = []
        for number, command in enumerate(commands, start=1):
            line = command["cmd"] if isinstance(command, dict) else command
            try:
                answers.append(self.run_one(session, collecting, line, command, encoding))
            except (CommandFault, CommandRejected) as fault:
                why = str(fault) or "invalid command"
                raise CommandFault(f"CLI command {number} of {len(commands)} '{line}' failed: {why}") from fault
        return answers

    def run_one(
        self, session: EmulatedSession, out: Collecting, line: str, command: object, encoding: str
    ) -> dict[str, Any]:
        if line == "enable":
            if self.secret and (not isinstance(command, dict) or command["input"] != self.secret):
                raise CommandFault("invalid command [% Access denied]")
            session.enter("exec")
            return {}

        def refuse(fault: InjectedFault) -> str:
            raise CommandFault(f"invalid command [{fault.text or '% Invalid input'}]")

        out.written = ""
        said = self.with_faults(line, lambda: self.obey(session, out, line), refuse)
        return self.json_of(line) if encoding == "json" else {"output": said}

    def obey(self, session: EmulatedSession, out: Collecting, line: str) -> str:
        """Perform one line, in the configuration session of the request if the request has one."""
        with self.lock:
            name = session.pending_session  # type: ignore[attr-defined]
            if name is None or line.startswith("show "):
                session._obey(line)
                return out.written
            real, self.running = self.running, self.config_sessions[name].state
            try:
                session._obey(line)
            finally:
                self.config_sessions[name].state, self.running = self.running, real
        return out.written

    def agree(self, command: str) -> str:
        return ""

    def saying(self, text: str) -> str:
        return text

    def json_of(self, line: str) -> dict[str, Any]:
        if line == "show version":
            return {"version": f"{self.release}.1F", "uptime": time.time() - self.started}
        if line.startswith("show configuration sessions"):
            return self.shown_sessions()
        return {}

    def shown_sessions(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"sessions": {}, "maxSavedSessions": 1, "maxOpenSessions": self.pending_sessions}
        others = {self.locked_by: ConfigSession(self.running, "pendingCommitTimer", time.time() + 100)}
        for name, one in {**self.config_sessions, **(others if self.locked_by else {})}.items():
            waits = one.phase == "pendingCommitTimer"
            shown["sessions"][name] = {"state": "completed" if waits and self.release >= 4.32 else one.phase}
            if waits and self.release >= 4.32:
                shown |= {"commitTimerSessionName": name, "commitTimerExpireTime": one.until - self.started}
            elif waits:
                shown["sessions"][name]["commitBy"] = one.until - self.started
        return shown

    # configuration sessions

    @accepts("exec", "show configuration sessions", "show configuration sessions detail", "show version")
    def shown_as_json(self, session: EmulatedSession) -> None:
        """Return the output of :meth:`json_of`."""

    @accepts("exec", "configure session <name>")
    def configure_session(self, session: EmulatedSession, name: str) -> None:
        known = self.config_sessions.get(name)
        if known is not None and known.phase != "pending":
            raise CommandFault(f"Cannot enter session {name}: it is completed")
        if known is None:
            if sum(one.phase == "pending" for one in self.config_sessions.values()) >= self.pending_sessions:
                raise CommandFault(TOO_MANY)
            self.config_sessions[name] = ConfigSession(deepcopy(self.running))
        session.pending_session = name  # type: ignore[attr-defined]
        session.enter("config")

    @accepts("exec", "show session-config named <name> diffs")
    def show_diffs(self, session: EmulatedSession, name: str) -> None:
        before = self.running_config().splitlines()
        real, self.running = self.running, self.config_sessions[name].state
        after = self.running_config().splitlines()
        self.running = real
        changed = [f"-{line}" for line in before if line not in after] + [f"+{x}" for x in after if x not in before]
        session.say("\n".join(["--- system:/running-config", f"+++ session:/{name}-session-config", *changed]))

    @accepts("exec", "show session-config named <name>")
    def show_session(self, session: EmulatedSession, name: str) -> None:
        real, self.running = self.running, self.config_sessions[name].state
        text = self.running_config()
        self.running = real
        session.say(text)

    @accepts("exec", "configure session <name> commit timer <time>")
    def commit_timer(self, session: EmulatedSession, name: str, text: str) -> None:
        self.refuse_if_one_waits(name)
        hours, minutes, seconds = map(int, re.fullmatch(r"(\d+):(\d+):(\d+)", text).groups())  # type: ignore[union-attr]
        one = self.config_sessions[name]
        one.phase, one.until = "pendingCommitTimer", time.time() + 3600 * hours + 60 * minutes + seconds
        self.activate(one.state, hours * 60 + minutes + seconds / 60)

    @accepts("exec", "configure session <name> commit")
    def commit_session(self, session: EmulatedSession, name: str) -> None:
        self.refuse_if_one_waits(name)
        one = self.config_sessions[name]
        if one.phase == "pendingCommitTimer":
            self.activate(self.running)
        else:
            self.activate(one.state)
        one.phase = "completed"

    @accepts("exec", "configure session <name> abort")
    def abort_session(self, session: EmulatedSession, name: str) -> None:
        one = self.config_sessions.pop(name, None)
        if one is None:
            raise CommandFault(f"Session {name} does not exist")
        if one.phase == "pendingCommitTimer" and self.unconfirmed is not None:
            self.activate(self.unconfirmed)

    @accepts("exec", "copy startup-config <file>")
    def keep_startup(self, session: EmulatedSession, file: str) -> None:
        """Accept the copy without effect; no test reads the copy."""

    @accepts("exec", "configure replace <file>")
    def replace_all(self, session: EmulatedSession, file: str) -> None:
        """Restore the copy of the startup configuration."""
        self.activate(deepcopy(self.startup))

    def refuse_if_one_waits(self, name: str) -> None:
        others = [key for key, one in self.config_sessions.items() if one.phase == "pendingCommitTimer" and key != name]
        if others:
            raise CommandFault(f"Cannot commit session {name}: session {others[0]} has a pending commit timer")

    def time_is_up(self) -> None:
        with self.lock:
            super().time_is_up()
            for one in self.config_sessions.values():
                one.phase = "completed" if one.phase == "pendingCommitTimer" else one.phase

    def power_on(self, boot: Boot = "startup") -> None:
        self.config_sessions.clear()
        self.started = time.time()
        super().power_on(boot)
