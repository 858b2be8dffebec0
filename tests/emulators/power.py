"""Reboots of an emulated switch: sessions dropped, connections refused for a while, another configuration after it."""

import threading
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from emulators.switch import State

Boot = Literal["startup", "older", "empty"]
"""What a switch boots from: its startup configuration, the one before the last save, or none: the factory's state."""


class Power:
    """A switch that can be switched off and on; while it is off, connections are refused."""

    startup: "State"
    running: "State"
    older: "list[State]"
    lock: threading.RLock
    lost: list[float]

    def __init__(self) -> None:
        self.boots = 0
        self.off = False
        self.hang_up: Callable[[], None] = lambda: None
        self.listen: Callable[[], None] = lambda: None
        self.refuse: Callable[[], None] = lambda: None
        self._boot_timer: threading.Timer | None = None

    def factory_state(self) -> "State":
        """Return the configuration of a switch that was erased."""
        raise NotImplementedError

    def booted(self, state: "State") -> "State":
        """Return the running configuration after booting from ``state``."""
        return state

    def power_off(self) -> None:
        """Drop every session and refuse connections."""
        self.off = True
        self.refuse()
        self.hang_up()
        self.lost.clear()

    def power_on(self, boot: Boot = "startup") -> None:
        """Boot, and accept connections again."""
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
        """Lose every session and whatever was not saved; return at once, be back after ``down`` seconds."""
        self.power_off()
        if not down:
            self.power_on(boot)
            return
        self._boot_timer = threading.Timer(down, self.power_on, (boot,))
        self._boot_timer.daemon = True
        self._boot_timer.start()
