"""Calls about elements: their state, differences and ports, the reports of agents, and the audit log."""

import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from virtcloud.client.calls import DEVICE_S, PAGE_SIZE, SbfCalls, flag_query, validated
from virtcloud.client.connection import LONGEST_WAIT_S
from virtcloud.model.changes import AuditEntry, ElementDifference, ElementReconciliation
from virtcloud.model.outside_use import OutsideReport
from virtcloud.model.port_use import PortAdoption, PortRelease, PortUse, PortView
from virtcloud.model.traffic import TrafficReport
from virtcloud.model.values import Name, PortName
from virtcloud.model.views import CleanDeclaration, Confirmation, ElementErrorReport, ElementView, HostCapacity
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
    """Return the seconds for which a document is used: a random time, so that agents do not read at the same time."""
    return KNOWN_S * (1 - random.random() / 4)  # noqa: S311 - no secret


class ElementCalls(SbfCalls):
    """Calls about elements, for administrators and agents."""

    _known: dict[str, _KnownDocument]
    """The wanted documents that agents of this process have received, by element."""

    def elements(self) -> list[ElementView]:
        """Return all elements with their revisions."""
        return self._documents(ElementView, self._connection.send("GET", "/v1/elements"))

    def element_pages(
        self, *, site: str | None = None, kind: str | None = None, troubled: bool = False, size: int = PAGE_SIZE
    ) -> Iterator[list[ElementView]]:
        """Yield the elements in pages of ``size``, by name. Raise BadInput for an unknown site or kind.

        With ``troubled``, yield only elements that report an error, have a pending save, or do not answer, and hosts
        and gateways whose agent never called SBF.
        """
        query = {"site": site, "kind": kind, **flag_query(troubled=troubled)}
        return self._pages(ElementView, "/v1/elements", query, size)

    def element(self, name: str) -> ElementView:
        """Return one element. Raise NotFound if the topology does not contain the element."""
        return self._document(ElementView, self._connection.send("GET", f"/v1/elements/{Name(name)}"))

    def difference(self, element: str, *, read: bool = False) -> ElementDifference:
        """Return the changes that an element needs.

        If ``read`` is true, SBF reads the device first. In this case, raise ElementError if the device cannot be read,
        and Conflict for a host or gateway.
        """
        path, wait = f"/v1/elements/{Name(element)}/difference", DEVICE_S if read else 0
        answer = self._connection.send("GET", path, query=flag_query(read=read), wait=wait)
        return self._document(ElementDifference, answer)

    def reconcile(self, element: str) -> ElementReconciliation:
        """Request that SBF reads a device now, and changes the device to its wanted state.

        Raise NotFound for an unknown element. Raise Conflict for a host or gateway, or if another replica is
        reconciling the device.
        """
        path = f"/v1/elements/{Name(element)}/reconcile"
        return self._document(ElementReconciliation, self._connection.send("POST", path, wait=DEVICE_S))

    def declare_element_clean(self, element: str, *, reason: str) -> ElementView:
        """Declare that SBF's restored database contains every cluster that an element carries. Idempotent.

        Raise NotFound for an unknown element. Raise BadInput for a blank reason.
        """
        declaration = validated(CleanDeclaration, reason=reason)
        return self._document(
            ElementView, self._connection.send("POST", f"/v1/elements/{Name(element)}/clean", declaration)
        )

    def ports(self, element: str) -> list[PortView]:
        """Request that SBF reads a switch now. Return the switch's managed ports and their uses.

        Raise NotFound for an unknown element. Raise Conflict unless the element is a switch. Raise ElementError if the
        switch cannot be read.
        """
        path = f"/v1/elements/{Name(element)}/ports"
        return self._documents(PortView, self._connection.send("GET", path, wait=DEVICE_S))

    def adopt_ports(self, element: str, uses: Mapping[PortName, PortUse]) -> None:
        """Allow SBF to replace the configuration of ports that SBF did not configure. Idempotent.

        ``uses`` maps each port to the use that the caller saw. The call does not read the device. Afterwards, if one of
        these ports serves something other than SBF's VLANs, SBF starts to configure the port only if the port's use
        equals the use in ``uses``.
        """
        adoption = PortAdoption(ports=dict(uses))
        self._connection.send("POST", f"/v1/elements/{Name(element)}/ports/adopt", adoption)

    def release_ports(self, element: str, ports: Iterable[str], *, forget: bool = False) -> None:
        """Release ports. SBF restores the ports' former configuration, unless ``forget`` is true.

        Raise Conflict if SBF cannot release a port.
        """
        release = validated(PortRelease, ports=tuple(ports), forget=forget)
        self._connection.send("POST", f"/v1/elements/{Name(element)}/ports/release", release)

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Return the wanted state of a host or gateway.

        If ``after`` is set, wait until the revision is higher than ``after``, but at most ``wait`` seconds; otherwise
        return the document immediately. If this client read the document of revision ``after`` within the last three to
        four hours (a random time), and SBF answers that this document has not changed, return the document from memory.
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

    def confirm(
        self,
        element: str,
        revision: int,
        incomplete: Mapping[str, str] | None = None,
        remaining: Mapping[str, str] | None = None,
        only_guests: Collection[str] = (),
    ) -> None:
        """Report that an element has the wanted state of ``revision``. Idempotent.

        The clusters in ``incomplete`` and ``remaining`` are exceptions: the element does not have their wanted state.
        ``incomplete`` maps the id of each incomplete cluster to the reason why it is not set up completely.
        ``remaining`` contains each cluster that the element could not remove, and maps the cluster's id to the error.
        ``only_guests`` are the clusters in ``incomplete`` whose networks are complete: only guests are missing.
        An earlier SBF refuses a call with one of these arguments; then this method raises BadInput.
        """
        # Keys of empty arguments are omitted, so that an earlier SBF accepts the call.
        confirmation = Confirmation(
            revision=revision,
            incomplete=dict(incomplete) if incomplete else None,
            only_guests=tuple(only_guests) or None,
            remaining=dict(remaining) if remaining else None,
        )
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

        ``message`` is the error of the element as a whole. ``clusters`` maps a cluster id to the error of this cluster.
        ``refused`` contains each cluster that the element refused several times in a row, and maps the cluster's id to
        the reason.
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
        """Report a gateway's counters for outside destinations. Idempotent.

        Only the agent of the gateway may call this method.
        """
        self._connection.send("PUT", f"/v1/elements/{Name(gateway)}/outside", report)

    def report_traffic(self, element: str, report: TrafficReport) -> None:
        """Report the traffic counters of a host or gateway. Only the agent of this element may call this method.

        Raise NoSuchCall if SBF is too old for this call.
        """
        self._connection.send("PUT", f"/v1/elements/{Name(element)}/traffic", report)

    def audit(  # noqa: PLR0913, PLR0917 - the filters of the call
        self,
        element: str | None = None,
        cluster: str | None = None,
        after: int | None = None,
        limit: int = 100,
        wait: float = 0,
        request_id: str | None = None,
    ) -> list[AuditEntry]:
        """Return at most ``limit`` rows of the audit log, oldest first. Without ``after``, return the newest rows.

        With ``after``, return rows with a higher id. Wait up to ``wait`` seconds, at most 60, for the first such row.
        """
        wait = min(wait, LONGEST_WAIT_S)
        query = {"element": element, "cluster": cluster, "after": after, "limit": limit, "wait": wait or None}
        query["request_id"] = request_id
        answer = self._connection.send("GET", "/v1/audit", query=query, wait=wait)
        self._check_filters("/v1/audit", query, answer)
        return self._documents(AuditEntry, answer)

    def audit_pages(  # noqa: PLR0913 - the filters of the call
        self,
        element: str | None = None,
        cluster: str | None = None,
        *,
        who: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        request_id: str | None = None,
        newest: bool = False,
        size: int = PAGE_SIZE,
    ) -> Iterator[list[AuditEntry]]:
        """Yield the rows of the audit log in pages of ``size``, oldest first, or ``newest`` first.

        ``who`` selects the changes of one caller. ``since`` and ``until`` must have a time zone. Raise BadInput for an
        unknown element.
        """
        query: dict[str, str | float | None] = {"element": element, "cluster": cluster, "who": who}
        query |= {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at is not None}
        query |= {"request_id": request_id, "order": "newest" if newest else "oldest"}
        return self._pages(AuditEntry, "/v1/audit", query, size)
