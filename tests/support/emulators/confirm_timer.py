"""The base class of switches with commits: confirm timer, lock, and injected faults."""

import threading
from collections.abc import Callable
from copy import deepcopy

from support.emulators.fault_injection import InjectedFault
from support.emulators.switch_device import EmulatedSwitch, SwitchState
from support.emulators.terminal import Hangup


class ConfirmTimerSwitch(EmulatedSwitch):
    """A switch whose running configuration changes only by commits."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.history: list[SwitchState] = []
        self.locked_by = ""
        """Another user who has locked the configuration, or "" if there is none. Only tests set this attribute."""
        self.unconfirmed: SwitchState | None = None
        """The configuration that the timer restores; None if no commit awaits a confirmation."""
        self._timer: threading.Timer | None = None
        self.record("initial configuration")

    def record(self, cause: str) -> None:
        now = self.carrying()
        if not self.timeline or self.timeline[-1][1] != now:
            self.timeline.append((cause, now))
        if not self.untagged_timeline or self.untagged_timeline[-1] != self.untagged():
            self.untagged_timeline.append(self.untagged())

    def activate(self, state: SwitchState, minutes: float | None = None) -> None:
        with self.lock:
            self._stop_timer()
            if minutes is None:
                self.unconfirmed = None
            else:
                self.unconfirmed = self.unconfirmed or deepcopy(self.running)
                self._start_timer(60 * minutes)
            self.history.insert(0, deepcopy(self.running))
            self.running = state
            self.record("commit")
            if minutes is None:
                self.committed()

    def committed(self) -> None:
        """Do nothing. Called after a configuration became permanent. Subclasses may override this method."""

    def expire_timer(self) -> None:
        with self.lock:
            if self.unconfirmed is not None:
                self.activate(self.unconfirmed)

    def shorten_timer(self) -> None:
        """Shorten a running confirm timer to 0.01 s. The timer's own thread reverts the commit."""
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
        self._timer = threading.Timer(seconds, self.expire_timer)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def with_faults(self, command: str, perform: Callable[[], str], refuse: Callable[[InjectedFault], str]) -> str:
        if self.slowness:
            self.closing.wait(self.slowness)
        self.commands.append(command)
        fault = self.fault_for(command)
        if fault is None:
            return perform()
        if fault.kind == "ignore":
            return self.format_success(command)
        if fault.kind == "refuse":
            return refuse(fault)
        if fault.kind == "print":
            return self.format_text(fault.text)
        if fault.kind == "disconnect":
            if fault.done:
                perform()
            self.hang_up()
        else:
            self.closing.wait()
        raise Hangup

    def format_text(self, text: str) -> str:
        raise NotImplementedError

    def format_success(self, command: str) -> str:
        raise NotImplementedError
