"""Injected faults of emulated switches: failing commands, missing rights, reboots, and failing saves.

A reboot drops the sessions, refuses connections for a while, and may restore another configuration. Every save command
calls :meth:`Saving.store`. A test plans a fault of the next save:

    switch.fail_save("busy")  # a failure of the platform, from ``switch.save_failures``
    switch.fail_save("disconnect written")  # writes the startup configuration, then drops every session
    switch.fail_save("ignore", times=9)  # prints success without writing the startup configuration
"""

import re
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from support.emulators.terminal import Hangup

Kind = Literal["disconnect", "refuse", "ignore", "print", "hang", "log", "drip", "rename"]
ALWAYS = 1_000_000_000


@dataclass
class InjectedFault:
    """A fault of commands that match ``pattern``.

    The first ``skip`` of these commands have no fault; the next ``times`` commands have the fault.

    - ``disconnect`` drops every session before the command or, if ``done`` is true, after the command.
    - ``refuse`` prints ``text`` or, if ``text`` is empty, the platform's message for an invalid line.
    - ``ignore`` prints the usual answer, without effect.
    - ``print`` prints ``text``.
    - ``hang`` never answers.
    - ``drip`` prints a dot every ``seconds``, without end.
    - ``log`` prints the log line ``text`` before the answer.
    - ``rename`` executes the command and changes the host name, and so the prompt, to ``text``.
    """

    kind: Kind
    pattern: str
    text: str = ""
    times: int = 1
    done: bool = False
    seconds: float = 0.05
    skip: int = 0


class Faults:
    """The planned faults of a switch, in the order in which they were planned."""

    def __init__(self) -> None:
        self.faults: list[InjectedFault] = []
        self.forbidden: list[tuple[str, str]] = []

    def fail(self, kind: Kind, pattern: str, **options: object) -> None:
        self.faults.append(InjectedFault(kind, pattern, **options))  # type: ignore[arg-type]

    def ignore_all(self, pattern: str) -> None:
        """Plan that the switch ignores every later line that matches ``pattern``, and prints the usual answer."""
        self.fail("ignore", pattern, times=ALWAYS)

    def forbid(self, pattern: str, text: str = "") -> None:
        """Refuse every later line that matches ``pattern``.

        The default of ``text`` is the message for a missing right.
        """
        self.forbidden.append((pattern, text))

    def fault_for(self, command: str) -> InjectedFault | None:
        """Return the first fault that matches a command, is not used up, and has ``skip`` 0. Return None otherwise.

        Decrement ``times`` of this fault. Decrement ``skip`` of each matching fault before this fault.
        """
        for fault in self.faults:
            if not fault.times or not re.search(fault.pattern, command):
                continue
            if not fault.skip:
                fault.times -= 1
                return fault
            fault.skip -= 1
        return None

    def find_refusal(self, command: str, default: str) -> str | None:
        """Return the answer to a command that the account may not use; None for any other command."""
        answers = [text or default for pattern, text in self.forbidden if re.search(pattern, command)]
        return answers[0] if answers else None


if TYPE_CHECKING:
    from support.emulators.switch_device import SwitchState

Boot = Literal["startup", "older", "empty"]
"""The configuration that a switch boots: ``startup`` is the startup configuration, ``older`` the startup configuration
before the last save, and ``empty`` the factory state.
"""


class Power:
    """A switch that can be switched off and on. A switch that is off refuses connections."""

    startup: "SwitchState"
    running: "SwitchState"
    older: "list[SwitchState]"
    lock: threading.RLock
    lost: list[float]

    def __init__(self) -> None:
        self.boots = 0
        self.off = False
        self.hang_up: Callable[[], None] = lambda: None
        self.listen: Callable[[], None] = lambda: None
        self.refuse: Callable[[], None] = lambda: None
        self._boot_timer: threading.Timer | None = None

    def factory_state(self) -> "SwitchState":
        raise NotImplementedError

    def booted(self, state: "SwitchState") -> "SwitchState":
        return state

    def power_off(self) -> None:
        self.off = True
        self.refuse()
        self.hang_up()
        self.lost.clear()

    def power_on(self, boot: Boot = "startup") -> None:
        with self.lock:
            if boot == "older":
                self.startup = self.older[-1]
            elif boot == "empty":
                self.startup = self.factory_state()
            self.running = deepcopy(self.startup) if boot == "empty" else self.booted(deepcopy(self.startup))
        self.off = False
        self.listen()
        self.boots += 1

    def reboot(self, *, down: float = 0, boot: Boot = "startup") -> None:
        """Drop every session and all unsaved changes, and return at once.

        The switch accepts connections again after ``down`` seconds.
        """
        self.power_off()
        if not down:
            self.power_on(boot)
            return
        self._boot_timer = threading.Timer(down, self.power_on, (boot,))
        self._boot_timer.daemon = True
        self._boot_timer.start()


if TYPE_CHECKING:
    from support.emulators.session import EmulatedSession
    from support.emulators.switch_device import SwitchState

COMMON_FAULTS = ("hang", "hang written", "disconnect", "disconnect written", "ignore", "slow")
"""The faults of a save on any platform.

- ``hang`` hangs, and ``disconnect`` drops every session, before the startup configuration is written.
- With ``written``, these faults happen after the startup configuration was written.
- ``ignore`` prints success without writing. ``slow`` succeeds after ``seconds``.
"""
QUESTION = ("]", "]:", "]: ", "? ", "]? ")


@dataclass
class SaveFault:
    """The fault of the next ``times`` saves."""

    kind: str
    times: int = 1
    seconds: float = 0


class Saving:
    """The startup configuration of a switch, and its save commands."""

    saving: ClassVar[str] = ""
    """The output when a save begins."""
    saved: str = "[OK]"
    """The output of a successful save."""
    saved_variants: ClassVar[tuple[str, ...]] = ()
    """Complete outputs of successful saves on other models and releases. A test assigns one of them to ``variant``."""
    save_failures: ClassVar[dict[str, str]] = {}
    """Complete outputs of failed saves by cause.

    After an output that ends with a question, the switch waits for the reply.
    """
    save_questions: ClassVar[dict[str, str]] = {}
    """Questions that the switch asks before a save if the switch is in an unusual state, by cause."""

    running: "SwitchState"
    startup: "SwitchState"

    def __init__(self) -> None:
        self.saves = 0
        self.older: list[SwitchState] = []
        """Former startup configurations, the newest last."""
        self.save_faults: list[SaveFault] = []
        self.variant = ""
        self._storing = threading.Lock()

    def fail_save(self, kind: str, times: int = 1, seconds: float = 0) -> None:
        """Plan a fault of the next ``times`` saves. Raise ValueError for an unknown ``kind``.

        ``kind`` is a key of ``save_failures`` or ``save_questions``, or one of ``COMMON_FAULTS``. ``seconds`` is the
        delay of ``ignore`` and ``slow``.
        """
        kinds = [*COMMON_FAULTS, *self.save_failures, *self.save_questions]
        if kind not in kinds:
            raise ValueError(f"save fault {kind!r}: expected one of {kinds}")
        self.save_faults.append(SaveFault(kind, times, seconds))

    def save(self) -> None:
        self.older.append(self.startup)
        self.startup = deepcopy(self.running)
        self.saves += 1

    @property
    def unsaved(self) -> bool:
        return self.startup != self.running

    def store(self, session: "EmulatedSession") -> None:
        """Save, or cause a planned fault, after the present command has released the lock of the switch."""
        session.later(lambda: self._store(session))

    def _store(self, session: "EmulatedSession") -> None:
        fault = next((fault for fault in self.save_faults if fault.times), SaveFault(""))
        if not self._storing.acquire(blocking=False):
            session.write(self.save_failures.get("busy", session.switch.invalid(session, "")))
            return
        try:
            fault.times -= 1
            self._apply_fault(session, fault) if fault.kind else self._succeed(session)
        finally:
            self._storing.release()

    def _succeed(self, session: "EmulatedSession", *, writes: bool = True) -> None:
        if writes:
            with session.switch.lock:
                self.save()
        session.write(self.variant or f"{self.saving}{self.saved}")

    def _apply_fault(self, session: "EmulatedSession", fault: SaveFault) -> None:
        if fault.kind in self.save_failures:
            self._refuse(session, self.save_failures[fault.kind])
        elif fault.kind in self.save_questions:
            if session.ask(self.save_questions[fault.kind]).strip().lower() in ("", "y", "yes"):
                self._succeed(session)
        elif fault.kind in ("ignore", "slow"):
            session.switch.closing.wait(fault.seconds)
            self._succeed(session, writes=fault.kind == "slow")
        else:
            self._interrupt(session, fault.kind)

    def _refuse(self, session: "EmulatedSession", text: str) -> None:
        if text.endswith(QUESTION):
            session.ask(text)
        else:
            session.write(text)

    def _interrupt(self, session: "EmulatedSession", kind: str) -> None:
        """Print the beginning of the output. Then drop every session, or hang until the session ends."""
        session.terminal.write(self.saving)
        if kind.endswith("written"):
            with session.switch.lock:
                self.save()
        if kind.startswith("disconnect"):
            session.switch.hang_up()
        while session.terminal.alive and not session.switch.closing.wait(0.02):
            pass
        raise Hangup
