"""The base class of all emulated switches: configuration, sessions and injected faults."""

import re
import threading
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import ClassVar

from support.emulators.fault_injection import Faults, Power, Saving
from support.emulators.foreign_use import All, ConfigurationRecorder, occupy
from support.emulators.lldp_output import LLDP_OUTPUT, LldpPeer
from support.emulators.session import CommandRejected, EmulatedSession, Grammar, grammar_of
from support.emulators.terminal import Channel, Terminal

PASSWORD = "login-of-an-emulator"  # noqa: S105 - valid only on emulated switches
ENABLE_SECRET = "enable-of-an-emulator"  # noqa: S105


@dataclass
class EmulatedPort:
    """The configuration of a port.

    ``allowed`` is the list of allowed VLANs; None means all VLANs, the default of many platforms. ``native`` is the
    VLAN of untagged frames. ``trunk_native`` is the native VLAN of a trunk, on platforms that store a trunk's native
    VLAN separately. ``lines`` contains all other configuration.
    """

    mode: str = "access"
    allowed: set[int] | None = None
    native: int = 1
    trunk_native: int = 1
    down: bool = False
    lines: list[str] = field(default_factory=list)


@dataclass
class SwitchState:
    """A configuration: VLANs with their names, and ports."""

    vlans: dict[int, str]
    ports: dict[str, EmulatedPort]


class EmulatedSwitch(Faults, Saving, Power):
    """A switch with a command line. Subclasses define their platform's commands with :func:`emulators.session.accepts`.

    ``new_port`` creates a port with the initial configuration of tests. ``factory_port`` creates a port with the
    documented configuration of an erased switch, or is None if ``new_port`` creates a port with this configuration.
    ``unauthorized`` is the answer to a command that the account may not use. ``drip`` splits all output into pieces.
    The values of ``drip`` are the number of characters in a piece, and the time in seconds between two pieces.
    """

    platform: ClassVar[str]
    port_names: ClassVar[tuple[str, ...]]
    new_port: ClassVar[Callable[[], EmulatedPort]] = EmulatedPort
    factory_port: ClassVar[Callable[[], EmulatedPort] | None] = None
    unauthorized: ClassVar[str] = ""
    filters: ClassVar[Mapping[str, Callable[[str, str], str]]] = {}
    default_name: ClassVar[str] = "default"
    more: ClassVar[str] = " --More-- "
    page: ClassVar[int] = 24
    first_mode: ClassVar[str] = "exec"
    falls_through: ClassVar[dict[str, str]] = {"vlan": "config", "interface": "config"}
    subsystem: ClassVar[str | None] = None
    """The subsystem that an SSH client requests instead of a shell."""
    grammar: ClassVar[Grammar]

    def __init_subclass__(cls) -> None:
        cls.grammar = grammar_of(cls)

    def __init__(  # noqa: PLR0913 - each parameter is a property of a switch
        self,
        hostname: str = "sw1",
        *,
        slowness: float = 0,
        sessions: int = 5,
        linger: float = 0,
        drip: tuple[int, float] = (0, 0),
        factory: bool = False,
    ) -> None:
        """Create a switch.

        ``slowness`` is the time in seconds that each command takes. ``linger`` is the time in seconds for which a
        dropped session still counts as open.
        """
        Faults.__init__(self)
        Saving.__init__(self)
        Power.__init__(self)
        self.hostname, self.slowness, self.sessions, self.linger = hostname, slowness, sessions, linger
        self.drip = drip
        self.username, self.password, self.secret = "admin", PASSWORD, ENABLE_SECRET
        self.running = SwitchState({1: self.default_name}, {name: type(self).new_port() for name in self.port_names})
        if factory:
            self.running = self.factory_state()
        self.startup: SwitchState = deepcopy(self.running)
        self.lost: list[float] = []
        self.recorders: list[ConfigurationRecorder] = []
        self.open_sessions: list[EmulatedSession] = []
        self.commands: list[str] = []
        self.timeline: list[tuple[str, dict[str, set[int]]]] = []
        self.untagged_timeline: list[dict[str, int]] = []
        self.peers: dict[str, LldpPeer] = {}
        self.logins = 0
        self.address = ""
        self.host_key = ""
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self.in_use: Callable[[], int] = lambda: 0

    # queries and actions for tests

    def carrying(self) -> dict[str, set[int]]:
        """Return the existing VLANs that each trunk carries now. Omit trunks that are shut down."""
        existing = set(self.running.vlans)
        return {
            name: existing if port.allowed is None else existing & port.allowed
            for name, port in self.running.ports.items()
            if port.mode == "trunk" and not port.down
        }

    def untagged(self) -> dict[str, int]:
        """Return the VLAN of each port that accepts only untagged frames.

        Omit ports that are shut down, and ports whose VLAN does not exist.
        """
        return {
            name: port.native
            for name, port in self.running.ports.items()
            if self.is_access(port) and not port.down and port.native in self.running.vlans
        }

    def is_access(self, port: EmulatedPort) -> bool:
        return port.mode == "access"

    def silent_session(self) -> EmulatedSession:
        return EmulatedSession(self, Terminal(_NullChannel()))

    def configure(self, *lines: str) -> None:
        silent = self.silent_session()
        silent.mode = "config"
        for line in (*lines, "end"):
            silent.perform(line)

    def occupy(
        self,
        *,
        vlans: Mapping[int, str] | None = None,
        access: Mapping[str, int] | None = None,
        trunks: Mapping[str, Collection[int] | All] | None = None,
        native: Mapping[str, int] | None = None,
        shut: Collection[str] = (),
    ) -> None:
        occupy(self, vlans=vlans, access=access, trunks=trunks, native=native, shut=shut)

    def record_changes(self, ports: Collection[str] = (), vlans: Collection[int] = ()) -> ConfigurationRecorder:
        """Return a recorder of all later changes, except changes of ``ports`` and ``vlans``, which SBF manages."""
        recorder = ConfigurationRecorder(self, frozenset(ports), frozenset(vlans))
        self.recorders.append(recorder)
        return recorder

    def log(self, line: str) -> None:
        """Print a log line into every open session, as with ``terminal monitor``. No prompt follows."""
        for session in list(self.open_sessions):
            session.terminal.write(f"\n{line}\n")

    def factory_state(self) -> SwitchState:
        make = type(self).factory_port or type(self).new_port
        return SwitchState({1: self.default_name}, {name: make() for name in self.port_names})

    def become_access(self, port: EmulatedPort, vlan: int) -> None:
        port.mode, port.native = "access", vlan

    def become_trunk(self, port: EmulatedPort, allowed: set[int] | None) -> None:
        """Change a port to a trunk for the VLANs in ``allowed`` (None: all VLANs). No command is executed."""
        port.mode, port.allowed = "trunk", allowed

    def become_native(self, port: EmulatedPort, vlan: int) -> None:
        port.native = vlan

    def config_of(self, state: SwitchState) -> str:
        with self.lock:
            running, self.running = self.running, state
            try:
                return self.running_config()
            finally:
                self.running = running

    # differences between platforms

    def serve(self, channel: Channel) -> None:
        """Serve one client. Raise Hangup when the session ends."""
        EmulatedSession(self, Terminal(channel, self.drip, self.closing)).run()

    def prompt(self, session: "EmulatedSession") -> str:
        raise NotImplementedError

    def greeting(self, session: "EmulatedSession") -> None:
        """Print the text before the first prompt."""

    def invalid(self, session: "EmulatedSession", line: str) -> str:
        raise NotImplementedError

    def running_config(self) -> str:
        raise NotImplementedError

    def neighbours(self, ports: Collection[str] | None = None) -> str:
        """Return the output about the neighbours on ``ports``; None: on all ports.

        Platforms that are not in ``LLDP_OUTPUT`` print the form of IOS.
        """
        shown = {port: peer for port, peer in self.peers.items() if ports is None or port in ports}
        return LLDP_OUTPUT.get(self.platform, LLDP_OUTPUT["cisco_ios"])(shown, self.port_names)

    def leave_mode(self, session: "EmulatedSession") -> None:
        """Called when the session leaves a mode."""

    def port(self, typed: str) -> str:
        """Return a port's full name for any form of the name. Raise CommandRejected for an unknown port."""
        kind, number = _split(typed)
        for name in self.running.ports:
            port_kind, port_number = _split(name)
            if port_number == number and port_kind.startswith(kind):
                return name
        raise CommandRejected("")


class _NullChannel:
    def recv(self, size: int) -> bytes:
        return b"\n"

    def sendall(self, data: bytes) -> None:
        """Discard the data."""


def _split(name: str) -> tuple[str, str]:
    letters, numbers = re.fullmatch(r"([A-Za-z-]*)\s*(.*)", name).groups()
    return letters.lower(), numbers
