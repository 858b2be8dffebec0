"""The startup configuration of an emulated switch: saves that succeed, fail, hang and are cut.

Every save command of a platform calls :meth:`Saving.store`. A test plans what the next save does:

    switch.fail_save("busy")           # one of the platform's own failures, ``switch.save_failures``
    switch.fail_save("cut written")    # the session is dropped, the startup configuration is the new one
    switch.fail_save("lie", times=9)   # success is printed, the startup configuration stays old
"""

import threading
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from emulators.terminal import Hangup

if TYPE_CHECKING:
    from emulators.switch import Session, State

USUAL = ("hang", "hang written", "cut", "cut written", "lie", "slow")
"""What a save does on any platform: hangs or drops every session, before or after the startup configuration was
written; prints success and writes nothing; takes ``seconds`` and succeeds."""
QUESTION = ("]", "]:", "]: ", "? ", "]? ")


@dataclass
class SaveFault:
    """What the next ``times`` saves do."""

    how: str
    times: int = 1
    seconds: float = 0


class Saving:
    """The startup configuration beside the running one."""

    saving: ClassVar[str] = ""
    """What is printed when a save begins."""
    saved: str = "[OK]"
    """What is printed when it succeeded."""
    saved_variants: ClassVar[tuple[str, ...]] = ()
    """Whole outputs of saves that succeeded, of other models and releases: a test assigns one to ``variant``."""
    save_failures: ClassVar[dict[str, str]] = {}
    """Whole outputs of saves that failed, by cause; one that ends with a question waits for the answer."""
    save_questions: ClassVar[dict[str, str]] = {}
    """Questions before a save that an unusual state makes the platform ask, by cause."""

    running: "State"

    def __init__(self) -> None:
        self.saves = 0
        self.older: list[State] = []
        """Former startup configurations, the newest last."""
        self.save_faults: list[SaveFault] = []
        self.variant = ""
        self._storing = threading.Lock()

    def fail_save(self, how: str, times: int = 1, seconds: float = 0) -> None:
        """Plan what the next ``times`` saves do: a key of ``save_failures`` or ``save_questions``, or one of USUAL."""
        if how not in (*USUAL, *self.save_failures, *self.save_questions):
            raise ValueError(f"save fault {how!r}: expected one of {[*USUAL, *self.save_failures]}")
        self.save_faults.append(SaveFault(how, times, seconds))

    def save(self) -> None:
        """Make the running configuration the one that a reboot brings back."""
        self.older.append(self.startup)
        self.startup = deepcopy(self.running)
        self.saves += 1

    @property
    def unsaved(self) -> bool:
        """Return whether a reboot would change the configuration."""
        return self.startup != self.running

    def store(self, session: "Session") -> None:
        """Perform a save command, after the command's lock is released."""
        session.later(lambda: self._store(session))

    def _store(self, session: "Session") -> None:
        fault = next((one for one in self.save_faults if one.times), SaveFault(""))
        if not self._storing.acquire(blocking=False):
            session.write(self.save_failures.get("busy", session.switch.invalid(session, "")))
            return
        try:
            fault.times -= 1
            self._go_wrong(session, fault) if fault.how else self._succeed(session)
        finally:
            self._storing.release()

    def _succeed(self, session: "Session", *, writes: bool = True) -> None:
        if writes:
            with session.switch.lock:
                self.save()
        session.write(self.variant or f"{self.saving}{self.saved}")

    def _go_wrong(self, session: "Session", fault: SaveFault) -> None:
        if fault.how in self.save_failures:
            self._refuse(session, self.save_failures[fault.how])
        elif fault.how in self.save_questions:
            if session.ask(self.save_questions[fault.how]).strip().lower() in ("", "y", "yes"):
                self._succeed(session)
        elif fault.how in ("lie", "slow"):
            session.switch.closing.wait(fault.seconds)
            self._succeed(session, writes=fault.how == "slow")
        else:
            self._break_off(session, fault.how)

    def _refuse(self, session: "Session", words: str) -> None:
        if words.endswith(QUESTION):
            session.ask(words)
        else:
            session.write(words)

    def _break_off(self, session: "Session", how: str) -> None:
        """Write what is printed at the beginning; then hang until the session ends, or end it."""
        session.terminal.write(self.saving)
        if how.endswith("written"):
            with session.switch.lock:
                self.save()
        if how.startswith("cut"):
            session.switch.hang_up()
        while session.terminal.alive and not session.switch.closing.wait(0.02):
            pass
        raise Hangup
