"""What went wrong with a device in one try, as it is recorded. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from virtcloud.model.device import DeviceCarried
from virtcloud.model.errors import ElementError, Refused, Unreachable


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an element is recorded to have trouble with.

    ``about`` has what is about single VLAN IDs, where nothing else is wrong. ``unsaved``: a save was tried, and is not
    known to have worked. ``saved`` is what the device carries and has saved in spite of the trouble.
    """

    message: str
    reachable: bool = True
    about: Mapping[int, str] = field(default_factory=dict)
    unsaved: bool = False
    saved: DeviceCarried | None = None


class StoppedError(Exception):
    """A try ended with trouble."""

    def __init__(self, trouble: Trouble) -> None:
        """Keep the trouble."""
        super().__init__(trouble.message)
        self.trouble = trouble


def trouble_of(error: ElementError, *, unsaved: bool = False) -> Trouble:
    """Return what is recorded for a driver's error; an unsaved device concerns every cluster on it."""
    about = error.about if isinstance(error, Refused) and not unsaved else {}
    return Trouble(str(error), not isinstance(error, Unreachable), about, unsaved)
