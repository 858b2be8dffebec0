"""Documents about the check of a cluster's paths: the exchange of frames between hosts, and the result for the user.

SBF asks each host's agent to open the cluster's bridge, and to exchange frames with the other hosts. All sizes are
packet sizes in bytes, like an MTU: without the Ethernet header and VLAN tags.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.guest_seed import Secret
from virtcloud.model.values import ClusterKey, Mac, Name, PortRef

SMALL_BYTES: Final = 64
"""Size of the small packets. A path that does not carry small packets carries no packets at all."""
MAX_HOSTS: Final = 128
"""Maximum number of hosts in a check. The number of paths grows with the square of the number of hosts."""


class BridgeEnd(Document):
    """The cluster's bridge on a host, as the host's agent reports it before the exchange."""

    mac: Mac
    mtu: Annotated[int, Field(ge=SMALL_BYTES, le=65535)]


class ExchangePeer(Document):
    """Another host of an exchange."""

    number: Annotated[int, Field(ge=0, lt=MAX_HOSTS)]
    mac: Mac


class FrameExchange(Document):
    """The frames that a host must send and expect during a check."""

    check: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    """The check's identifier. Frames of other checks are ignored."""
    secret: Secret
    """The key that authenticates frames, in hexadecimal digits. Guests do not know the key."""
    number: Annotated[int, Field(ge=0, lt=MAX_HOSTS)]
    """The number of this host in the check."""
    peers: tuple[ExchangePeer, ...]
    mtu: Annotated[int, Field(ge=SMALL_BYTES, le=65535)]
    """Size of the full packets."""
    round_s: Annotated[float, Field(gt=0, le=60)]
    """Seconds in which the host sends one frame of each size to each peer."""
    seconds: Annotated[float, Field(gt=0, le=300)]
    """Maximum duration in seconds.

    When this time has passed, the host reports the received frames, even if frames are missing.
    """


class ReceivedFrames(Document):
    """The frames that a host received from one host. A frame from the receiving host itself indicates a loop."""

    number: int
    """The number of the sender."""
    broadcast: int = 0
    small: int = 0
    full: int = 0
    duplicates: int = 0
    """Frames that arrived more than once."""


class FrameReport(Document):
    """The frames that a host received."""

    received: tuple[ReceivedFrames, ...] = ()
    error: str | None = None
    """Why the host could not send full packets; null: the host sent all full packets."""


class PathResult(StrEnum):
    """The result of the check of a path in one direction."""

    PASSES = "passes"
    NOTHING_PASSES = "nothing-passes"
    ONLY_SMALL = "only-small"
    NO_BROADCAST = "no-broadcast"
    DUPLICATES = "duplicates"


class PathSection(Document):
    """The part of a path in which frames are lost. Other checked paths show that the other parts carry frames."""

    after: PortRef | None = None
    """Of the ports before the loss, the last port that is known to carry frames in this direction; null: no such port
    is known.
    """
    before: PortRef | None = None
    """Of the ports after the loss, the first port that is known to carry frames in this direction; null: no such port
    is known.
    """
    ports: tuple[PortRef, ...] = ()
    """The ports between ``after`` and ``before``, in the order of the path."""


class VerifiedPath(Document):
    """The path from one host to another host."""

    source: Name
    target: Name
    result: PathResult
    """The result in this direction."""
    section: PathSection | None = None
    """Where frames are lost; null if frames pass, or if the path is not known."""


class UnverifiedHost(Document):
    """A host that did not take part in the check."""

    host: Name
    reason: str
    """Why the host did not take part."""
    seen_at: datetime | None = None
    """The last contact with the host's agent; null: there was no contact."""


class ClusterVerification(Document):
    """The result of the check of all paths between a cluster's hosts."""

    key: ClusterKey
    id: str
    """ID of the cluster."""
    mtu: int | None = None
    """Size of the full packets; null: fewer than two hosts took part."""
    mtus: dict[Name, int] = Field(default_factory=dict)
    """The MTU of the cluster's bridge on each host that took part."""
    paths: tuple[VerifiedPath, ...] = ()
    """One path for each direction between two hosts."""
    unverified: tuple[UnverifiedHost, ...] = ()
    """The hosts that did not take part. The check has no result for their paths."""
    notes: tuple[str, ...] = ()
    """Errors of hosts and devices that may explain the result."""

    @property
    def failed(self) -> tuple[VerifiedPath, ...]:
        """The paths whose result is not ``passes``."""
        return tuple(path for path in self.paths if path.result is not PathResult.PASSES)

    @property
    def passed(self) -> bool:
        """Whether all hosts took part, and the result of every path is ``passes``."""
        return not self.failed and not self.unverified
