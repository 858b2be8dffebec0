"""Calls of agents: an element's wanted state and reports, sessions with guests, images, and SBF's clock."""

import random
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

from virtcloud.client.calls import SbfCalls, content_query, flag_query
from virtcloud.client.connection import LONGEST_WAIT_S, FileTransfer
from virtcloud.client.session_stream import SessionStream
from virtcloud.model.errors import ServiceUnreachable
from virtcloud.model.guest_sessions import GuestSession, SessionKind
from virtcloud.model.image import CatalogueImage, ImageContent
from virtcloud.model.outside_use import OutsideReport
from virtcloud.model.ssh_connections import SshConnections
from virtcloud.model.traffic import TrafficReport
from virtcloud.model.values import Name
from virtcloud.model.views import Confirmation, ElementErrorReport, HostCapacity
from virtcloud.model.vpn import VpnConnections
from virtcloud.model.wanted import WantedDocument

KNOWN_S = 4 * 3600.0
"""Maximum time in seconds for which the client uses a wanted document that has not changed.

Parts of the document can change without a new revision. Therefore the client reads the document again after 75 to 100 %
of this time (random).
"""


@dataclass(frozen=True, slots=True)
class _KnownDocument:
    document: WantedDocument
    etag: str
    until: float


def _draw_lifetime() -> float:
    """Return a random lifetime in seconds, so that agents do not read at the same time."""
    return KNOWN_S * (1 - random.random() / 4)  # noqa: S311 - no secret


class AgentCalls(SbfCalls):
    """Calls of the agents of hosts and gateways."""

    _known: dict[str, _KnownDocument]
    """The wanted documents that agents of this process have received, by element."""

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Return the wanted state of a host or gateway.

        With ``after``, wait until the revision is higher than ``after``, but at most ``wait`` seconds. The client can
        use a received document for three to four hours (a random time). Within this time, the client returns the
        document again if SBF answers that the document has not changed.
        """
        path, known = f"/v1/elements/{Name(element)}/wanted", self._known.get(element)
        if after is None or self.find_settled(element, after) is None:
            known = None
        answer = self._connection.poll(path, after, wait, if_none_match=None if known is None else known.etag)
        if known is not None and answer.is_unchanged:
            return known.document
        document = self._document(WantedDocument, answer)
        if answer.etag is None:
            self._known.pop(element, None)
        else:
            self._known[element] = _KnownDocument(document, answer.etag, time.monotonic() + _draw_lifetime())
        return document

    def find_settled(self, element: str, revision: int) -> WantedDocument | None:
        """Return the wanted document of this revision, or None if the client must read the document again."""
        known = self._known.get(element)
        is_usable = known is not None and known.document.revision == revision and time.monotonic() < known.until
        return known.document if known is not None and is_usable else None

    def confirm(self, element: str, confirmation: Confirmation) -> None:
        """Report that an element has the wanted state of a revision, except for some clusters. Idempotent.

        If SBF is too old for a key of the confirmation, SBF refuses the call, and this method raises BadInput.
        """
        self._connection.send("POST", f"/v1/elements/{Name(element)}/confirmed", confirmation)

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """Report why an element cannot reach the wanted state of ``revision``.

        `ElementErrorReport` describes the arguments.
        """
        report = ElementErrorReport(
            revision=revision, message=message, clusters=dict(clusters or {}), refused=dict(refused or {})
        )
        self._connection.send("POST", f"/v1/elements/{Name(element)}/trouble", report)

    def report_drift(self, element: str, revision: int) -> None:
        """Report that an element confirmed the wanted state of ``revision`` earlier, but no longer has this state."""
        self._connection.send("POST", f"/v1/elements/{Name(element)}/drifted", Confirmation(revision=revision))

    def report_capacity(self, element: str, capacity: HostCapacity) -> None:
        """Report a host's processors, memory and images. Idempotent. Raise NoSuchCall if SBF is too old."""
        self._connection.send("PUT", f"/v1/elements/{Name(element)}/capacity", capacity)

    def report_destination_uses(self, gateway: str, report: OutsideReport) -> None:
        """Report a gateway's counters for outside destinations, as the agent of the gateway. Idempotent."""
        self._connection.send("PUT", f"/v1/elements/{Name(gateway)}/outside", report)

    def report_traffic(self, element: str, report: TrafficReport) -> None:
        """Report the traffic counters of a host or gateway, as its agent. Raise NoSuchCall if SBF is too old."""
        self._connection.send("PUT", f"/v1/elements/{Name(element)}/traffic", report)

    def report_connections(self, gateway: str, report: VpnConnections) -> None:
        """Report all connections of a gateway, as its agent. The report replaces the previous report."""
        self._connection.send("PUT", f"/v1/elements/{Name(gateway)}/vpn/connections", report)

    def report_ssh_connections(self, gateway: str, report: SshConnections) -> None:
        """Report all SSH connections of a gateway, as its agent. The report replaces the previous report."""
        self._connection.send("PUT", f"/v1/elements/{Name(gateway)}/ssh/connections", report)

    def waiting_sessions(self, element: str, after: int = 0, wait: float = 0) -> list[GuestSession]:
        """Return the sessions that wait for an element's agent and have a number above ``after``.

        Without such a session, wait up to ``wait`` seconds.
        """
        kinds = ",".join(SessionKind)
        query: dict[str, str | float | None] = {"after": after, "wait": min(wait, LONGEST_WAIT_S), "kinds": kinds}
        answer = self._connection.send("GET", f"/v1/elements/{Name(element)}/sessions", query=query, wait=wait)
        return self._documents(GuestSession, answer)

    def join_session(self, element: str, session: GuestSession) -> SessionStream:
        """Open the agent's side of a session. Raise NotFound if the user has closed the session."""
        path = f"/v1/elements/{Name(element)}/sessions/{session.id}"
        return self._connection.open_stream(path, {}, url=session.address)

    def upload_clone(
        self, element: str, session: GuestSession, content: ImageContent, data: Iterable[bytes]
    ) -> CatalogueImage:
        """Send the image that a session of kind `clone` requested, as the agent of the guest's host.

        First check whether SBF would accept the image. Raise NotFound if the user has closed the session. Raise the
        errors of `ImageCalls.upload_image`.
        """
        path = f"/v1/elements/{Name(element)}/sessions/{session.id}/image"
        query = content_query(content)
        answer = self._connection.upload(path, (), 0, {**query, **flag_query(dry_run=True)}, session.address)
        if answer.content == b"null":
            answer = self._connection.upload(path, data, content.size, query, session.address)
        return self._document(CatalogueImage, answer)

    def download_image(
        self, name: str, offset: int = 0, etag: str | None = None
    ) -> AbstractContextManager[FileTransfer]:
        """Receive the file of an uploaded image.

        If the file has the entity tag ``etag``, receive the bytes from ``offset`` on; otherwise, receive the whole
        file. Raise NotFound if SBF stores no file of this image.
        """
        return self._connection.download(f"/v1/images/{Name(name)}/content", offset, etag)

    def clock(self) -> datetime:
        """Return SBF's time, to the second. Raise ServiceUnreachable if the answer has no Date header."""
        date = self._connection.send("GET", "/healthz").date
        if date is None:
            raise ServiceUnreachable("SBF's answer has no header Date; check whether a proxy removes the header")
        return parsedate_to_datetime(date)
