"""Decides which user reaches which guest through a gateway's sshd, and when a connection ends. Pure.

A certificate proves the user's identity, and names a cluster (`ssh_certificates`). Without a grant in the wanted
document, even a valid certificate is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
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
    """A request of a relay (`ssh_relay_program`) for a connection to a guest."""

    guest: Annotated[str, Field(max_length=256)]
    """The command of the user's SSH client. The command must be the name of a guest."""
    proof: Annotated[str, Field(max_length=16384)]
    """The content of sshd's file SSH_USER_AUTH: one line with the user's certificate."""
    remote: Annotated[str, Field(max_length=64)]
    """The user's IP address and port."""


class ProvenUser(NamedTuple):
    """The claims of a valid certificate: its user, its cluster and its serial number."""

    cluster: str
    user: UserName
    serial: int


class SshTarget(NamedTuple):
    """A guest that a user may reach, and the grant that permits the connection."""

    network: str
    """ID of the cluster that created the network."""
    grant: SshGrant
    guest: SshGuest


class SshSession(Document):
    """A user's connection to a guest. The recorded sessions survive a restart of the agent."""

    pid: int
    started: int
    """The start of the relay's process, in clock ticks after the boot."""
    network: str
    """ID of the cluster that created the network."""
    cluster: str
    """ID of the cluster that the certificate names."""
    user: UserName
    guest: str
    """The name of the guest, and the ID of the guest's cluster: g1@1a2b."""
    serial: int
    remote: str
    """The user's IP address and port."""
    expires_at: datetime
    """The end of the grant in the latest wanted document that contained the grant."""
    connected_at: datetime | None = None
    """When the user connected; None if an earlier version of the agent accepted the connection."""


def find_grant(proven: ProvenUser, segments: Iterable[Segment], now: datetime) -> tuple[Segment, SshGrant]:
    """Return the user's grant, and the segment with this grant.

    Raise Forbidden if the user has no grant, the grant has ended, or the certificate was revoked.
    """
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
    """Return the guest with the name ``guest`` that a user may reach.

    If several clusters of the network have such a guest, prefer the guest of the certificate's cluster. Raise Forbidden
    as `find_grant` does, or if the network has no such guest.
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

    While ``segments`` is None, a session ends at its ``expires_at``.
    """
    known = None if segments is None else _index(segments)
    for session in sessions:
        grant = None if known is None else known.get(_key(session))
        if known is not None and grant is None:
            yield EndedSshSession(session, "the grant or the guest is gone")
        elif grant is not None and session.serial in grant.revoked:
            yield EndedSshSession(session, "the certificate was revoked")
        elif (grant.expires_at if grant else session.expires_at) <= now:
            yield EndedSshSession(session, "the lease of the cluster has ended")


def update_ends(sessions: Mapping[int, SshSession], segments: Iterable[Segment]) -> dict[int, SshSession]:
    """Return the sessions with the ends of their grants in ``segments``. A session without a grant is unchanged."""
    known, updated = _index(segments), dict(sessions)
    for number, session in sessions.items():
        if (grant := known.get(_key(session))) is not None and grant.expires_at != session.expires_at:
            updated[number] = session.model_copy(update={"expires_at": grant.expires_at})
    return updated


def _key(session: SshSession) -> tuple[str, str, str, str]:
    return session.network, session.cluster, session.user, session.guest


def _index(segments: Iterable[Segment]) -> dict[tuple[str, str, str, str], SshGrant]:
    return {
        (segment.id, grant.cluster, grant.user, name_guest(guest)): grant
        for segment in segments
        if segment.ssh is not None
        for grant in segment.ssh.grants
        for guest in segment.ssh.guests
    }


def name_guest(guest: SshGuest) -> str:
    """Return the value of `SshSession.guest` for a guest."""
    return f"{guest.name}@{guest.cluster}"


def make_connection(session: SshSession) -> SshConnection:
    """Return the report to SBF about a session."""
    return SshConnection(
        cluster=session.cluster,
        user=session.user,
        serial=session.serial,
        guest=Name(session.guest.partition("@")[0]),
        remote=session.remote,
        connected_at=session.connected_at,
    )
