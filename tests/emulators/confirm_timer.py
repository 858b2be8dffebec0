"""What switches with commits have in common: a candidate, a confirm timer that takes back, locks, faults."""

import threading
from collections.abc import Callable
from copy import deepcopy

from emulators.fault_injection import InjectedFault
from emulators.switch_device import EmulatedSwitch, SwitchState
from emulators.terminal import Hangup


class ConfirmTimerSwitch(EmulatedSwitch):
    """A switch whose running configuration changes by commits only."""

    def __init__(self, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.history: list[SwitchState] = []
        self.locked_by = ""
        """Who else holds the lock: tests put a name here."""
        self.unconfirmed: SwitchState | None = None
        """What comes back when nobody confirms."""
        self._timer: threading.Timer | None = None
        self.note("nothing yet")

    def note(self, why: str) -> None:
        """Keep what the switch carries now."""
        now = self.carrying()
        if not self.timeline or self.timeline[-1][1] != now:
            self.timeline.append((why, now))
        if not self.untagged_timeline or self.untagged_timeline[-1] != self.untagged():
            self.untagged_timeline.append(self.untagged())

    def activate(self, state: SwitchState, minutes: float | None = None) -> None:
        """Make a configuration the running one, for good or until nobody confirmed it in time."""
        with self.lock:
            self._stop_timer()
            if minutes is None:
                self.unconfirmed = None
            else:
                self.unconfirmed = self.unconfirmed or deepcopy(self.running)
                self._start_timer(60 * minutes)
            self.history.insert(0, deepcopy(self.running))
            self.running = state
            self.note("commit")
            if minutes is None:
                self.committed()

    def committed(self) -> None:
        """Do what the platform does with a configuration that is there to stay."""

    def time_is_up(self) -> None:
        """Take back what nobody confirmed."""
        with self.lock:
            if self.unconfirmed is not None:
                self.activate(self.unconfirmed)

    def hasten(self) -> None:
        """Shorten the confirm timer that runs, if any, to a moment; it takes back in its own thread."""
        with self.lock:
            if self._timer is not None:
                self._stop_timer()
                self._start_timer(0.01)

    def power_off(self) -> None:
        with self.lock:
            self._stop_timer()
            self.unconfirmed = None
        super().power_off()

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self.time_is_up)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def with_faults(self, command: str, perform: Callable[[], str], refuse: Callable[[InjectedFault], str]) -> str:
        """Obey one command, or go wrong with it as was asked for."""
        if self.slowness:
            self.closing.wait(self.slowness)
        self.commands.append(command)
        fault = self.fault_for(command)
        if fault is None:
            return perform()
        if fault.kind == "ignore":
            return self.agree(command)
        if fault.kind == "refuse":
            return refuse(fault)
        if fault.kind == "say":
            return self.saying(fault.text)
        if fault.kind == "cut":
            if fault.done:
                perform()
            self.hang_up()
        else:
            self.closing.wait()
        raise Hangup

    def saying(self, text: str) -> str:
        """Wrap words that are no answer as the protocol wraps answers."""
        raise NotImplementedError

    def agree(self, command: str) -> str:
        """Say what is said when all went well, and do nothing."""
        raise NotImplementedError
