"""A command line on a device, as the dialects need it."""

from typing import Protocol


class CommandLine(Protocol):
    """Sends a line and reads until a pattern is seen; connects when first used, again after :meth:`close`."""

    def ask(self, command: str, until: str) -> str:
        """Send one line and give everything that came back up to the pattern ``until``.

        Raises Unreachable when the device does not answer in time, Refused when it does not let us in. After an error
        the session is closed: what it still may say belongs to no later question.
        """

    def close(self) -> None:
        """End the session; may be repeated, and never raises."""
