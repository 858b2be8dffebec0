"""The counts of calls for rate limits, in the memory of this replica.

The memory storage of the library ``limits`` never removes the key of a former caller, and after each counted call
visits all keys. But anyone who can connect to SBF can send invalid tokens from any number of addresses. Therefore SBF's
storage removes windows without recent calls, and limits the number of windows.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from limits.storage import MemoryStorage

MAX_WINDOWS: Final = 50_000
REMOVAL_INTERVAL_S: Final = 60.0


@dataclass(slots=True)
class _Window:
    length_s: int
    calls: deque[float] = field(default_factory=deque)

    def forget_before(self, now: float) -> None:
        while self.calls and self.calls[0] < now - self.length_s:
            self.calls.popleft()


class CallCounts(MemoryStorage):
    """Moving windows in memory. Thread-safe.

    ``clock`` returns seconds. The default is the monotonic clock, because SBF would refuse callers for too long after a
    clock was set back.

    At most :data:`MAX_WINDOWS` windows are stored: otherwise a caller with many addresses could exhaust the memory. A
    new window replaces the window whose last call is the oldest, so that no caller can lock out the others.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a storage without windows."""
        super().__init__()
        self._clock = clock
        self._lock = Lock()
        self._windows: dict[str, _Window] = {}
        self._next_removal = clock() + REMOVAL_INTERVAL_S

    @property
    def window_count(self) -> int:
        """The number of windows."""
        return len(self._windows)

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count ``amount`` calls, and return True. If they would exceed ``limit``, count no call, and return False."""
        with self._lock:
            now = self._clock()
            window = self._windows.pop(key, None) or _Window(expiry)
            self._windows[key] = window  # the order of the keys is the order of their last calls
            window.forget_before(now)
            is_allowed = len(window.calls) + amount <= limit
            if is_allowed:
                window.calls.extend([now] * amount)
            self._remove_former(now)
            return is_allowed

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:  # noqa: ARG002 - the library's parameters
        """Return the time of the oldest call in the window, and the number of calls.

        For a window without calls, the returned time is now.
        """
        with self._lock:
            now = self._clock()
            window = self._windows.get(key)
            if window is not None:
                window.forget_before(now)
            return (window.calls[0], len(window.calls)) if window is not None and window.calls else (now, 0)

    def _remove_former(self, now: float) -> None:
        if now >= self._next_removal:
            for window in self._windows.values():
                window.forget_before(now)
            self._windows = {key: window for key, window in self._windows.items() if window.calls}
            self._next_removal = now + REMOVAL_INTERVAL_S
        while len(self._windows) > MAX_WINDOWS:
            del self._windows[next(iter(self._windows))]
