"""SSH certificates of users, and open SSH connections through gateways: reports of gateways, and views for users."""

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name, UserName, UtcTime

SERIAL_LIMIT: Final = 1 << 63
MAX_CONNECTIONS: Final = 4096
"""Maximum number of connections in a report, with a margin: a gateway admits at most 1024 connections at once."""
SerialNumber = Annotated[int, Field(ge=0, lt=SERIAL_LIMIT)]
ShortText = Annotated[str, Field(max_length=128)]


class SshCertificateEntry(Document):
    """A certificate of a user for the guests of a cluster. SBF stores neither the certificate nor the private key."""

    serial: SerialNumber
    """The serial number, by which the certificate is revoked."""
    cluster: ClusterKey
    user: UserName
    fingerprint: str | None
    """The fingerprint of the user's public key; null: SBF knows the certificate only from an open connection."""
    created_at: datetime
    """When the certificate was created."""
    expires_at: datetime
    """When the certificate becomes invalid. Open connections continue after this time."""
    revoked_at: datetime | None = None
    """When the certificate was revoked."""
    connections: int = 0
    """Number of open connections, as the gateways reported them."""


class SshConnection(Document):
    """An open connection of a user with a guest, as a gateway reports it."""

    cluster: ShortText
    """ID of the cluster for which the certificate was made."""
    user: UserName
    serial: SerialNumber
    """The serial number of the certificate."""
    guest: Name
    """The guest's name."""
    remote: ShortText
    """The user's IP address and port."""
    connected_at: UtcTime | None = None
    """When the connection began; null: the gateway's agent is too old to report this time."""


class SshConnections(Document):
    """All SSH connections through a gateway. Each report replaces the previous report of this gateway."""

    connections: Annotated[tuple[SshConnection, ...], Field(max_length=MAX_CONNECTIONS)] = ()
    """The open connections."""


class SshConnectionView(Document):
    """An open connection of a user with a guest."""

    gateway: Name
    user: UserName
    serial: SerialNumber
    """The serial number of the certificate."""
    guest: Name
    """The guest's name."""
    remote: str
    """The user's IP address and port."""
    connected_at: datetime | None
    """When the connection began; null: the gateway's agent is too old to report this time."""
    reported_at: datetime
    """When the gateway last reported the connection."""
