"""What a site's devices see of their cables, beside what the topology says: the documents of ``site verify``."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Name, PortRef


class CableState(StrEnum):
    """What was found of a cable; ``unknown`` is neither right nor wrong."""

    RIGHT = "right"
    OTHER_NEIGHBOUR = "other-neighbour"
    OTHER_PORT = "other-port"
    ELSEWHERE = "elsewhere"
    UNLISTED = "unlisted"
    UNKNOWN = "unknown"


FINE = frozenset({CableState.RIGHT, CableState.UNKNOWN})


class CableView(Document):
    """A cable between two ports and what was found of it, in sentences.

    ``unlisted`` is a cable that was seen and is not in the topology; any other is one of its links.
    """

    a: PortRef
    b: PortRef
    state: CableState
    """Whether the cable is where the topology says."""
    found: tuple[str, ...] = ()
    """What was found, one sentence each."""

    @property
    def is_wrong(self) -> bool:
        """Whether the cable is seen not to be where the topology says."""
        return self.state not in FINE


class SiteCables(Document):
    """Every cable of a site, and the switches that could not be asked, each with the reason."""

    site: Name
    at: datetime
    """When the switches were read."""
    cables: tuple[CableView, ...] = ()
    """Every cable of the site."""
    unread: dict[Name, str] = Field(default_factory=dict)
    """Switches that could not be read, each with the reason."""

    @property
    def wrong(self) -> tuple[CableView, ...]:
        """The cables that are seen not to be where the topology says."""
        return tuple(cable for cable in self.cables if cable.is_wrong)
