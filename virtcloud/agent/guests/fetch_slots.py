"""The slots that limit simultaneous fetches of images. A failing server must not delay the images of other servers.

A server is *failing* if the last attempt to fetch a file from this server failed. Fetches from all other servers get
slots first. Fetches from failing servers leave at least one slot free, unless there is only one slot.
"""

import threading
from dataclasses import dataclass, field
from typing import Final

MAX_FAILED: Final = 1000
"""Limit of servers whose failure is remembered. Beyond the limit, the oldest failure is forgotten."""


@dataclass(slots=True)
class FetchSlots:
    """At most ``limit`` slots. Thread-safe. Fetches of equal rank get a slot in the order of their requests."""

    limit: int
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _waiting: list[tuple[object, str]] = field(default_factory=list)
    _occupied: list[str] = field(default_factory=list)
    _failed: dict[str, None] = field(default_factory=dict)

    def acquire(self, server: str) -> None:
        """Wait for a slot, and occupy it for a fetch from ``server``."""
        with self._changed:
            request = (object(), server)
            self._waiting.append(request)
            self._changed.wait_for(lambda: self._find_next() is request)
            self._waiting.remove(request)
            self._occupied.append(server)
            self._changed.notify_all()  # another waiting fetch may get a slot too

    def release(self, server: str) -> None:
        """Release the slot of a fetch from ``server``."""
        with self._changed:
            self._occupied.remove(server)
            self._changed.notify_all()

    def record_attempt(self, server: str, *, failed: bool) -> None:
        """Record whether the last attempt at ``server`` failed, or completed its fetch."""
        with self._changed:
            self._failed.pop(server, None)
            if failed:
                self._failed[server] = None
            if len(self._failed) > MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._changed.notify_all()

    def _find_next(self) -> tuple[object, str] | None:
        if len(self._occupied) >= self.limit:
            return None
        failed = [server for server in self._occupied if server in self._failed]
        may_fail = len(failed) < max(1, self.limit - 1)
        permitted = [request for request in self._waiting if may_fail or request[1] not in self._failed]
        return min(permitted, key=lambda request: request[1] in self._failed, default=None)
