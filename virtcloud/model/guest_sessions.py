"""Documents about sessions: byte streams between a user and a guest, through SBF and the agent of the guest's host.

SBF itself opens sessions of the kind ``frames`` with hosts, to check the paths of a cluster.
"""

from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from virtcloud.model.document import OMIT_NONE, Document
from virtcloud.model.errors import BadInput
from virtcloud.model.image import CatalogueImage
from virtcloud.model.values import Name

END_OF_INPUT = "end"
"""The text message that ends one direction of a session. The other direction continues."""


class SessionKind(StrEnum):
    """The kinds of sessions with guests (log, console, TCP port, clone) and with hosts (frames)."""

    LOG = "log"
    CONSOLE = "console"
    PORT = "port"
    FRAMES = "frames"
    CLONE = "clone"


FIRST_KINDS: Final = frozenset({SessionKind.LOG, SessionKind.CONSOLE, SessionKind.PORT})
"""The kinds of sessions that the agent's first version supports. An agent of that version reports no kinds to SBF."""
USER_KINDS: Final = FIRST_KINDS | {SessionKind.CLONE}


class SessionRequest(Document):
    """A user's request for a session with a guest."""

    kind: SessionKind
    """The kind of session."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """The TCP port of the guest, for a session of kind `port`."""
    follow: bool = False
    """Whether a session of kind `log` continues with later output."""
    image: Annotated[Name | None, OMIT_NONE] = None
    """The name of the new image, for a session of kind `clone`."""

    @model_validator(mode="after")
    def _check_image(self) -> Self:
        if (self.image is not None) != (self.kind is SessionKind.CLONE):
            raise BadInput(f"image: expected a name for kind clone only, got {self.image} for kind {self.kind}")
        return self

    @model_validator(mode="after")
    def _check_port(self) -> Self:
        if (self.port is not None) != (self.kind is SessionKind.PORT):
            raise BadInput(f"port: expected a TCP port for kind port only, got {self.port} for kind {self.kind}")
        return self


class GuestSession(SessionRequest):
    """A session that waits for the agent of the guest's host."""

    number: int
    """The number of the session. SBF numbers all sessions in the order of their requests."""
    id: str
    """The secret identifier of the session. The agent joins the session with this identifier."""
    network: str
    """ID of the cluster that created the guest's network. The network's segment has the same ID."""
    guest: Name
    """Name of the guest; for kind `frames`, name of the host."""
    address: str | None = None
    """Address of the replica that waits for the agent; null: the address in the agent's settings."""


class SessionAnswer(Document):
    """The agent's first message of a session. `error` is null if the session is connected."""

    error: str | None = None
    """The error that prevents the session."""


class CloneProgress(Document):
    """A progress report in a session of kind `clone`. The last report contains the new image or the error."""

    packed: int = 0
    """Number of bytes that the host has packed into the image's file."""
    sent: int = 0
    """Number of bytes of the file that SBF has received from the host."""
    size: int | None = None
    """Size of the image's file in bytes; null: the host is still packing."""
    image: CatalogueImage | None = None
    """The new image."""
    error: str | None = None
    """The error that prevented the new image."""
