"""Arista EOS with eAPI: requests with commands, and configuration sessions with commit timers."""

import re
import time
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

from support.emulators.arista_eos import AristaEos
from support.emulators.confirm_timer import ConfirmTimerSwitch
from support.emulators.eapi_server import CommandFault
from support.emulators.fault_injection import Boot, InjectedFault
from support.emulators.session import CommandRejected, EmulatedSession, accepts
from support.emulators.switch_device import SwitchState
from support.emulators.terminal import Terminal

TOO_MANY_SESSIONS = (
    "Maximum number of pending sessions has been reached. Please commit or abort previous sessions before creating "
    "a new session_state."
)


@dataclass
class ConfigSession:
    """A copy of the running configuration that can be changed and committed."""

    state: SwitchState
    phase: str = "pending"
    until: float = -1


class OutputCollector:
    """The client's end of a terminal. It stores the output of the commands."""

    def __init__(self) -> None:
        self.written = ""

    def recv(self, size: int) -> bytes:
        raise CommandFault("the command asked a question, but eAPI cannot answer questions")

    def sendall(self, data: bytes) -> None:
        self.written += data.decode().replace("\r", "")


class AristaEapi(ConfirmTimerSwitch, AristaEos):
    """An EOS switch with eAPI.

    From ``release`` 4.32 on, the answer to ``show configuration sessions`` has another form than before.
    """

    platform = "arista_eapi"
    pending_sessions: ClassVar[int] = 5

    def __init__(self, release: float = 4.31, **options: object) -> None:
        super().__init__(**options)
        self.release = release
        self.config_sessions: dict[str, ConfigSession] = {}
        self.certificate = ""
        self.started = time.time() - 1000

    def run_commands(self, commands: list[Any], encoding: str) -> list[dict[str, Any]]:
        collector = OutputCollector()
        session = EmulatedSession(self, Terminal(collector))
        session.page = 0
        session.pending_session = None  # type: ignore[attr-defined]
        answers = []
        for number, command in enumerate(commands, start=1):
            line = command["cmd"] if isinstance(command, dict) else command
            try:
                answers.append(self.run_one(session, collector, line, command, encoding))
            except (CommandFault, CommandRejected) as fault:
                reason = str(fault) or "invalid command"
                raise CommandFault(f"CLI command {number} of {len(commands)} '{line}' failed: {reason}") from fault
        return answers

    def run_one(
        self, session: EmulatedSession, out: OutputCollector, line: str, command: object, encoding: str
    ) -> dict[str, Any]:
        if line == "enable":
            if self.secret and (not isinstance(command, dict) or command["input"] != self.secret):
                raise CommandFault("invalid command [% Access denied]")
            session.enter("exec")
            return {}

        def refuse(fault: InjectedFault) -> str:
            raise CommandFault(f"invalid command [{fault.text or '% Invalid input'}]")

        out.written = ""
        output = self.with_faults(line, lambda: self.execute(session, out, line), refuse)
        return self.json_of(line) if encoding == "json" else {"output": output}

    def execute(self, session: EmulatedSession, out: OutputCollector, line: str) -> str:
        with self.lock:
            name = session.pending_session  # type: ignore[attr-defined]
            if name is None or line.startswith("show "):
                session._execute(line)
                return out.written
            running, self.running = self.running, self.config_sessions[name].state
            try:
                session._execute(line)
            finally:
                self.config_sessions[name].state, self.running = self.running, running
        return out.written

    def format_success(self, command: str) -> str:
        return ""

    def format_text(self, text: str) -> str:
        return text

    def json_of(self, line: str) -> dict[str, Any]:
        if line == "show version":
            return {"version": f"{self.release}.1F", "uptime": time.time() - self.started}
        if line.startswith("show configuration sessions"):
            return self.render_sessions()
        return {}

    def render_sessions(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"sessions": {}, "maxSavedSessions": 1, "maxOpenSessions": self.pending_sessions}
        others = {self.locked_by: ConfigSession(self.running, "pendingCommitTimer", time.time() + 100)}
        for name, session_state in {**self.config_sessions, **(others if self.locked_by else {})}.items():
            is_pending = session_state.phase == "pendingCommitTimer"
            shown["sessions"][name] = {
                "state": "completed" if is_pending and self.release >= 4.32 else session_state.phase
            }
            if is_pending and self.release >= 4.32:
                shown |= {"commitTimerSessionName": name, "commitTimerExpireTime": session_state.until - self.started}
            elif is_pending:
                shown["sessions"][name]["commitBy"] = session_state.until - self.started
        return shown

    @accepts("exec", "show configuration sessions", "show configuration sessions detail", "show version")
    def shown_as_json(self, session: EmulatedSession) -> None:
        """Accept these commands without output, because :meth:`json_of` creates their JSON answers."""

    @accepts("exec", "configure session <name>")
    def configure_session(self, session: EmulatedSession, name: str) -> None:
        known = self.config_sessions.get(name)
        if known is not None and known.phase != "pending":
            raise CommandFault(f"Cannot enter session {name}: it is completed")
        if known is None:
            if (
                sum(session_state.phase == "pending" for session_state in self.config_sessions.values())
                >= self.pending_sessions
            ):
                raise CommandFault(TOO_MANY_SESSIONS)
            self.config_sessions[name] = ConfigSession(deepcopy(self.running))
        session.pending_session = name  # type: ignore[attr-defined]
        session.enter("config")

    @accepts("exec", "show session-config named <name> diffs")
    def show_diffs(self, session: EmulatedSession, name: str) -> None:
        before = self.running_config().splitlines()
        running, self.running = self.running, self.config_sessions[name].state
        after = self.running_config().splitlines()
        self.running = running
        changed = [f"-{line}" for line in before if line not in after] + [f"+{x}" for x in after if x not in before]
        session.print_pages("\n".join(["--- system:/running-config", f"+++ session:/{name}-session-config", *changed]))

    @accepts("exec", "show session-config named <name>")
    def show_session(self, session: EmulatedSession, name: str) -> None:
        running, self.running = self.running, self.config_sessions[name].state
        text = self.running_config()
        self.running = running
        session.print_pages(text)

    @accepts("exec", "configure session <name> commit timer <time>")
    def commit_timer(self, session: EmulatedSession, name: str, text: str) -> None:
        self.refuse_if_commit_pending(name)
        hours, minutes, seconds = map(int, re.fullmatch(r"(\d+):(\d+):(\d+)", text).groups())
        session_state = self.config_sessions[name]
        session_state.phase, session_state.until = (
            "pendingCommitTimer",
            time.time() + 3600 * hours + 60 * minutes + seconds,
        )
        self.activate(session_state.state, hours * 60 + minutes + seconds / 60)

    @accepts("exec", "configure session <name> commit")
    def commit_session(self, session: EmulatedSession, name: str) -> None:
        self.refuse_if_commit_pending(name)
        session_state = self.config_sessions[name]
        if session_state.phase == "pendingCommitTimer":
            self.activate(self.running)
        else:
            self.activate(session_state.state)
        session_state.phase = "completed"

    @accepts("exec", "configure session <name> abort")
    def abort_session(self, session: EmulatedSession, name: str) -> None:
        session_state = self.config_sessions.pop(name, None)
        if session_state is None:
            raise CommandFault(f"Session {name} does not exist")
        if session_state.phase == "pendingCommitTimer" and self.unconfirmed is not None:
            self.activate(self.unconfirmed)

    @accepts("exec", "copy startup-config <file>")
    def copy_startup(self, session: EmulatedSession, file: str) -> None:
        """Accept the command, but copy nothing, because no test reads the copy."""

    @accepts("exec", "configure replace <file>")
    def replace_all(self, session: EmulatedSession, file: str) -> None:
        self.activate(deepcopy(self.startup))

    def refuse_if_commit_pending(self, name: str) -> None:
        others = [
            key
            for key, session_state in self.config_sessions.items()
            if session_state.phase == "pendingCommitTimer" and key != name
        ]
        if others:
            raise CommandFault(f"Cannot commit session {name}: session {others[0]} has a pending commit timer")

    def expire_timer(self) -> None:
        with self.lock:
            super().expire_timer()
            for session_state in self.config_sessions.values():
                session_state.phase = (
                    "completed" if session_state.phase == "pendingCommitTimer" else session_state.phase
                )

    def power_on(self, boot: Boot = "startup") -> None:
        self.config_sessions.clear()
        self.started = time.time()
        super().power_on(boot)
