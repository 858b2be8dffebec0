"""A command line on a device, as the dialects need it."""

from typing import Protocol, runtime_checkable


class CommandLine(Protocol):
    """Sends lines and reads until a pattern is seen; connects when first used, again after :meth:`close`."""

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
