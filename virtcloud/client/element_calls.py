"""Calls about elements: their state, differences and ports; and the audit log."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from virtcloud.client.calls import DEVICE_S, PAGE_SIZE, SbfCalls, flag_query, validated
from virtcloud.client.connection import LONGEST_WAIT_S
from virtcloud.model.changes import AuditEntry, ElementDifference, ElementReconciliation
from virtcloud.model.element_views import CleanDeclaration, ElementView
from virtcloud.model.port_use import PortAdoption, PortRelease, PortUse, PortView
from virtcloud.model.values import Name, PortName


class ElementCalls(SbfCalls):
    """Calls about elements and the audit log. Agents report with `AgentCalls`."""

    def elements(self) -> list[ElementView]:
        """Return all elements with their revisions."""
        return self._documents(ElementView, self._connection.send("GET", "/v1/elements"))

    def element_pages(
        self, *, site: str | None = None, kind: str | None = None, troubled: bool = False, size: int = PAGE_SIZE
    ) -> Iterator[list[ElementView]]:
        """Yield the elements in pages of ``size``, by name. Raise BadInput for an unknown site or kind.

        If ``troubled`` is true, yield only these elements:

        - elements that report an error, have a pending save, or do not answer
        - hosts and gateways whose agent never called SBF
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
        """Declare that nobody needs those clusters on an element that SBF's database does not contain. Idempotent.

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

        ``uses`` maps each port to the use that the caller saw. The call does not read the device. SBF later reads the
        ports. Until a port serves only SBF's VLANs or has the use in ``uses``, SBF does not configure this port.
        """
        adoption = PortAdoption(ports=dict(uses))
        self._connection.send("POST", f"/v1/elements/{Name(element)}/ports/adopt", adoption)

    def release_ports(self, element: str, ports: Iterable[str], *, forget: bool = False) -> None:
        """Release ports. SBF restores the ports' former configuration, unless ``forget`` is true.

        Raise Conflict if SBF cannot release a port.
        """
        release = validated(PortRelease, ports=tuple(ports), forget=forget)
        self._connection.send("POST", f"/v1/elements/{Name(element)}/ports/release", release)

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

        With ``after``, return rows with a higher ID. Wait up to ``wait`` seconds, at most 60, for the first such row.
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
