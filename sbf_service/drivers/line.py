"""A command line on a device, as the dialects need it."""

from typing import Protocol, runtime_checkable

LOST = "ended the session since it was read: nothing more was sent; it is read again"
"""What is said of a device that may have restarted between a reading and the change that was computed from it."""


class CommandLine(Protocol):
    """Sends lines and reads until a pattern is seen; connects when first used, again after :meth:`close`.

    A session that the device ended is not replaced by :meth:`ask`, which raises Unreachable: the device may have
    restarted, and a change that was computed from the reading before would be wrong. A reading starts with
    :func:`renew`.
    """

    @property
    def prompt(self) -> str:
        """Give the pattern of the device's prompt, in whatever mode, at the start of a line (``re.MULTILINE``)."""

    def ask(self, command: str, until: str, times: int = 1, patience: float = 1) -> str:
        """Send one line or several, and give what came back from their echo up to the pattern ``until``.

        ``times`` is how often the pattern is waited for. ``patience`` is how much longer than usual the device may be
        silent. Raises Unreachable when it is silent for too long or ends the session, Refused when it does not let us
        in. After an error the session is closed: what it still may say belongs to no later question.
        """

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


@runtime_checkable
class NoticesLoss(Protocol):
    """A session, or a driver with one, that knows without asking when the device has ended it."""

    def is_lost(self) -> bool:
        """Say whether a session was there and has ended by itself; may be called by any thread, and never raises."""


class Closes(Protocol):
    """A session that can be ended."""

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""


def renew(session: Closes) -> None:
    """Close a session that the device ended, so that the next question opens a new one.

    Only a reading may start in this way, and what depends on no reading: see :class:`CommandLine`.
    """
    if isinstance(session, NoticesLoss) and session.is_lost():
        session.close()
