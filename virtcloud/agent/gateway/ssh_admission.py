"""Who reaches which guest through a gateway's sshd, and when a connection ends. Pure.

A certificate proves the user and the cluster (`ssh_certificates`), and the grants of the wanted document decide. So a
user whose certificate is still valid is refused as soon as the grant is gone.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.errors import Forbidden
from virtcloud.model.message_text import printable
from virtcloud.model.ssh_access import SshGrant, SshGuest
from virtcloud.model.ssh_connections import SshConnection
from virtcloud.model.values import Name, UserName
from virtcloud.model.wanted import Segment


class SshRequest(Document):
    """A relay's request for a connection to a guest."""

    guest: Annotated[str, Field(max_length=256)]
    """The user's command: the name of a guest."""
    proof: Annotated[str, Field(max_length=16384)]
    """The methods by which sshd authenticated the user: one line with the certificate."""
    remote: Annotated[str, Field(max_length=64)]
    """The user's IP address and port."""


class ProvenUser(NamedTuple):
    """What a certificate proves."""

    cluster: str
    user: UserName
    serial: int


class SshTarget(NamedTuple):
    """A guest that a user may reach, and the grant that allows it."""

    network: str
    """Id of the network's cluster."""
    grant: SshGrant
    guest: SshGuest


class SshSession(Document):
    """A connection of a user with a guest. It is recorded, so that the next agent ends it at the right time."""

    pid: int
    """The process of the relay."""
    started: int
    """The start of this process in clock ticks after the boot."""
    network: str
    """Id of the network's cluster."""
    cluster: str
    """Id of the cluster for which the certificate was made."""
    user: UserName
    guest: str
    """The name of the guest, and the id of its cluster: g1@1a2b."""
    serial: int
    """The serial number of the certificate."""
    remote: str
    """The user's IP address and port."""
    expires_at: datetime
    """The end of the grant when the user connected."""
    connected_at: datetime | None = None
    """When the user connected; null: an agent of an earlier version accepted the connection."""


def find_grant(proven: ProvenUser, segments: Iterable[Segment], now: datetime) -> tuple[Segment, SshGrant]:
    """Return the grant of a user with its segment. Raise Forbidden if there is none, or if it has ended."""
    for segment in segments:
        for grant in segment.ssh.grants if segment.ssh else ():
            if (grant.cluster, grant.user) == (proven.cluster, proven.user):
                if grant.expires_at <= now:
                    raise Forbidden("the lease of this cluster has ended")
                if proven.serial in grant.revoked:
                    raise Forbidden("the certificate was revoked: request a new one")
                return segment, grant
    raise Forbidden(
        f"{proven.user} may not reach the guests of this cluster through this gateway: the cluster has ended, or the "
        "invitation was withdrawn"
    )


def find_target(proven: ProvenUser, guest: str, segments: Iterable[Segment], now: datetime) -> SshTarget:
    """Return the guest that a user may reach. The user's own cluster precedes the other members of the network.

    Raise Forbidden if the user has no grant, or if the network has no such guest.
    """
    segment, grant = find_grant(proven, segments, now)
    guests = segment.ssh.guests if segment.ssh else ()
    for found in sorted(guests, key=lambda found: found.cluster != grant.cluster):
        if found.name == guest:
            return SshTarget(segment.id, grant, found)
    known = ", ".join(Name(found.name) for found in guests) or "none"
    raise Forbidden(f"expected the name of a guest with an address, got {printable(guest)[:64]!r}; guests: {known}")


class EndedSshSession(NamedTuple):
    """A session that must end, with the reason."""

    session: SshSession
    reason: str


def find_ended_ssh_sessions(
    sessions: Iterable[SshSession], segments: Iterable[Segment] | None, now: datetime
) -> Iterator[EndedSshSession]:
    """Yield the sessions that must end. ``segments`` is None until the agent has received a wanted document.

    Without a document, a session ends at the end of the lease that was known when the user connected.
    """
    known = None if segments is None else {key: grant for segment in segments for key, grant in _index(segment)}
    for session in sessions:
        grant = None if known is None else known.get((session.network, session.cluster, session.user, session.guest))
        if known is not None and grant is None:
            yield EndedSshSession(session, "the grant or the guest is gone")
        elif grant is not None and session.serial in grant.revoked:
            yield EndedSshSession(session, "the certificate was revoked")
        elif (grant.expires_at if grant else session.expires_at) <= now:
            yield EndedSshSession(session, "the lease of the cluster has ended")


def _index(segment: Segment) -> Iterator[tuple[tuple[str, str, str, str], SshGrant]]:
    """Yield each pair of a grant and a guest."""
    if segment.ssh is None:
        return
    for grant in segment.ssh.grants:
        for guest in segment.ssh.guests:
            yield (segment.id, grant.cluster, grant.user, name_guest(guest)), grant


def name_guest(guest: SshGuest) -> str:
    """Return the name by which a session identifies its guest."""
    return f"{guest.name}@{guest.cluster}"


def make_connection(session: SshSession) -> SshConnection:
    """Return a session as SBF sees it."""
    return SshConnection(
        cluster=session.cluster,
        user=session.user,
        serial=session.serial,
        guest=Name(session.guest.partition("@")[0]),
        remote=session.remote,
        connected_at=session.connected_at,
    )
