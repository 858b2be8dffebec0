"""What went wrong with a device in one try, as it is recorded. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sbf_service.ownership import foreign_words
from virtcloud.model.device import DeviceCarried
from virtcloud.model.errors import ElementError, Refused, Unreachable
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import ForeignVlan

SHARED = "its cluster is joined to that use until one of them is moved"
LEFT_ALONE = "it was left as it is and is excluded from the site's pool; create the cluster again to get another VLAN"


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
        """Store the trouble."""
        super().__init__(trouble.message)
        self.trouble = trouble


def shared_words(wanted: VlanSet, foreign: Iterable[ForeignVlan]) -> dict[int, str]:
    """Return what is wrong with each wanted VLAN that somebody else uses too, on a device that carries it."""
    return {int(one.vlan): f"{foreign_words([one])}; {SHARED}" for one in foreign if one.vlan in wanted}


def blocked_words(blocked: VlanSet, foreign: Iterable[ForeignVlan]) -> dict[int, str]:
    """Return what is wrong with each wanted VLAN that cannot be set up because somebody else uses it."""
    return {int(one.vlan): f"{foreign_words([one])}; {LEFT_ALONE}" for one in foreign if one.vlan in blocked}


def trouble_of(error: ElementError, *, unsaved: bool = False) -> Trouble:
    """Return what is recorded for a driver's error; an unsaved device concerns every cluster on it."""
    about = error.about if isinstance(error, Refused) and not unsaved else {}
    return Trouble(str(error), not isinstance(error, Unreachable), about, unsaved)
