"""The core of every emulated switch: its state, its sessions, its faults."""

import re
import threading
from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from emulators.grammar import Grammar, grammar_of, match
from emulators.lldp import SHOWN, Peer
from emulators.terminal import END_OF_MODE, Channel, Hangup, Terminal, paged

PASSWORD = "login-of-an-emulator"  # noqa: S105 - opens nothing else
ENABLE_SECRET = "enable-of-an-emulator"  # noqa: S105


@dataclass
class Port:
    """A port; ``allowed`` None is the default of many: all VLANs. ``lines`` is whatever else is configured."""

    mode: str = "access"
    allowed: set[int] | None = None
    native: int = 1
    down: bool = False
    lines: list[str] = field(default_factory=list)


@dataclass
class State:
    """What a configuration says: VLANs with their names, ports."""

    vlans: dict[int, str]
    ports: dict[str, Port]


@dataclass
class Fault:
    """What shall go wrong with the next ``times`` commands that fit ``pattern``."""

    kind: Literal["cut", "refuse", "ignore", "say", "hang"]
    pattern: str
    text: str = ""
    times: int = 1
    done: bool = False


class Rejected(Exception):
    """The device says no, in these words."""


class Switch:
    """A switch with a command line. Subclasses say their platform's words with :func:`emulators.grammar.says`."""

    platform: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    new_port: ClassVar[Callable[[], Port]] = Port
    default_name: ClassVar[str] = "default"
    more: ClassVar[str] = " --More-- "
    page: ClassVar[int] = 24
    first_mode: ClassVar[str] = "exec"
    falls_through: ClassVar[dict[str, str]] = {"vlan": "config", "interface": "config"}
    subsystem: ClassVar[str | None] = None
    """What an SSH client asks for instead of a shell."""
    grammar: ClassVar[Grammar]

    def __init_subclass__(cls) -> None:
        cls.grammar = grammar_of(cls)

    def __init__(self, hostname: str = "sw1", slowness: float = 0, sessions: int = 5, linger: float = 0) -> None:
        """Make a switch; ``slowness`` is seconds for each command, ``linger`` those that a lost session is kept."""
        self.hostname, self.slowness, self.sessions, self.linger = hostname, slowness, sessions, linger
        self.username, self.password, self.secret = "admin", PASSWORD, ENABLE_SECRET
        self.running = State({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})
        self.startup = deepcopy(self.running)
        self.lost: list[float] = []
        self.faults: list[Fault] = []
        self.commands: list[str] = []
        self.timeline: list[tuple[str, dict[str, set[int]]]] = []
        self.untagged_timeline: list[dict[str, int]] = []
        self.peers: dict[str, Peer] = {}
        self.saves = self.logins = 0
        self.address = ""
        self.host_key = ""
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self.hang_up: Callable[[], None] = lambda: None
        self.in_use: Callable[[], int] = lambda: 0

    # what tests ask and do

    def carrying(self) -> dict[str, set[int]]:
        """Say which VLANs are carried tagged on each port, now."""
        there = set(self.running.vlans)
        return {
            name: there if port.allowed is None else there & port.allowed
            for name, port in self.running.ports.items()
            if port.mode == "trunk" and not port.down
        }

    def untagged(self) -> dict[str, int]:
        """Say which VLAN each port is in that takes untagged frames only, now."""
        return {
            name: port.native
            for name, port in self.running.ports.items()
            if self.is_access(port) and not port.down and port.native in self.running.vlans
        }

    def is_access(self, port: Port) -> bool:
        """Say whether a port takes untagged frames only."""
        return port.mode == "access"

    def configure(self, *lines: str) -> None:
        """Set something up beforehand, with the device's own words."""
        silent = Session(self, Terminal(_Nowhere()))
        silent.mode = "config"
        for line in (*lines, "end"):
            silent.perform(line)

    def fail(self, kind: Literal["cut", "refuse", "ignore", "say", "hang"], pattern: str, **more: object) -> None:
        """Let the next command that fits ``pattern`` go wrong."""
        self.faults.append(Fault(kind, pattern, **more))  # type: ignore[arg-type]

    def fault_for(self, command: str) -> Fault | None:
        """Find what shall go wrong with a command, and count it."""
        for fault in self.faults:
            if fault.times and re.search(fault.pattern, command):
                fault.times -= 1
                return fault
        return None

    def save(self) -> None:
        """Make the running configuration the one that a reboot brings back."""
        self.startup = deepcopy(self.running)
        self.saves += 1

    def reboot(self) -> None:
        """Lose every session, and everything that was not saved."""
        with self.lock:
            self.running = deepcopy(self.startup)
        self.hang_up()

    # what platforms say

    def serve(self, channel: Channel) -> None:
        """Talk with one client until it is over; raises Hangup."""
        Session(self, Terminal(channel)).run()

    def prompt(self, session: "Session") -> str:
        raise NotImplementedError

    def greeting(self, session: "Session") -> None:
        """Say what comes before the first prompt."""

    def invalid(self, session: "Session", line: str) -> str:
        """Give the words for a line that is not understood."""
        raise NotImplementedError

    def running_config(self) -> str:
        """Give the whole running configuration as the device shows it."""
        raise NotImplementedError

    def neighbours(self, ports: Collection[str] | None = None) -> str:
        """Say who is heard, on some ports or on all."""
        heard = {port: peer for port, peer in self.peers.items() if ports is None or port in ports}
        return SHOWN[self.platform](heard, self.port_names)

    def leave_mode(self, session: "Session") -> None:
        """Do what is done when a mode is left."""

    def port(self, typed: str) -> str:
        """Find a port by any form of its name; raises Rejected."""
        letters, numbers = _split(typed)
        for name in self.running.ports:
            own_letters, own_numbers = _split(name)
            if own_numbers == numbers and own_letters.startswith(letters):
                return name
        raise Rejected("")


class Session:
    """One session: its mode, what it is about, and the commands that it gives."""

    def __init__(self, switch: Switch, terminal: Terminal) -> None:
        self.switch, self.terminal = switch, terminal
        self.mode = switch.first_mode
        self.about: tuple[str, ...] = ()
        self.pending: set[int] = set()
        self.page = switch.page

    def run(self) -> None:
        """Greet, then answer line by line until it ends; raises Hangup."""
        self.switch.greeting(self)
        while True:
            line = self.terminal.line(self.switch.prompt(self))
            if line.strip():
                self.answer("end" if line == END_OF_MODE else line.strip())

    def answer(self, line: str) -> None:
        """Obey one line, or go wrong with it as was asked for."""
        switch = self.switch
        if switch.slowness:
            switch.closing.wait(switch.slowness)
        switch.commands.append(line)
        fault = switch.fault_for(line)
        if fault is None:
            self.perform(line)
        elif fault.kind == "ignore":
            with switch.lock:
                before = deepcopy(switch.running)
                self.perform(line)
                switch.running = before
        elif fault.kind == "cut":
            if fault.done:
                self.perform(line)
            switch.hang_up()
            raise Hangup
        elif fault.kind == "hang":
            switch.closing.wait()
            raise Hangup
        else:
            self.say(fault.text or switch.invalid(self, line))

    def perform(self, line: str) -> None:
        """Do what a line says and keep what the switch carries after it."""
        switch = self.switch
        with switch.lock:
            try:
                self._obey(line)
            except Rejected as no:
                self.say(str(no) or switch.invalid(self, line))
            now = switch.carrying()
            if not switch.timeline or switch.timeline[-1][1] != now:
                switch.timeline.append((line, now))
            switch.untagged_timeline.append(switch.untagged())

    def _obey(self, line: str) -> None:
        mode: str | None = self.mode
        while mode is not None:
            for pattern, name in self.switch.grammar.get(mode, ()):
                values = match(pattern, line)
                if values is not None:
                    self._do(mode, name, values)
                    return
            mode = self.switch.falls_through.get(mode)
        raise Rejected("")

    def _do(self, mode: str, name: str, values: tuple[str, ...]) -> None:
        """Run a command of ``mode``, which may be an outer one; whoever is refused stays where they were."""
        before = self.mode, self.about
        if mode != self.mode:
            self.enter(mode)
        try:
            getattr(self.switch, name)(self, *values)
        except Rejected:
            self.mode, self.about = before
            raise

    def say(self, text: str) -> None:
        """Write an answer, page by page."""
        paged(self.terminal, text, self.page, self.switch.more, self.terminal.key)

    def ask(self, question: str, echo: bool = True) -> str:
        """Ask something and wait for the line that answers it."""
        return self.terminal.line(question, echo)

    def enter(self, mode: str, *about: str) -> None:
        """Go into a mode."""
        self.switch.leave_mode(self)
        self.mode, self.about = mode, about

    @property
    def ports(self) -> list[Port]:
        """Give the ports that this session is about."""
        return [self.switch.running.ports[name] for name in self.about]


class _Nowhere:
    def recv(self, size: int) -> bytes:
        return b"\n"

    def sendall(self, data: bytes) -> None:
        """Let it fall."""


def _split(name: str) -> tuple[str, str]:
    letters, numbers = re.fullmatch(r"([A-Za-z-]*)\s*(.*)", name).groups()  # type: ignore[union-attr]
    return letters.lower(), numbers
