"""Switches and edges as the converger looks at them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import select

from sbf_service.converge.choose import Candidate
from sbf_service.store.leases import give_up_all
from sbf_service.store.reading import read_topology
from sbf_service.store.session import Store, Unit
from sbf_service.store.tables import REACHED, ElementRow
from virtcloud.model.device import DEVICES
from virtcloud.model.element import Device, Element
from virtcloud.model.values import Name

_DEVICES = (
    select(
        ElementRow.name,
        ElementRow.wanted_revision,
        ElementRow.confirmed_revision,
        ElementRow.checked_at,
        ElementRow.reachable,
        ElementRow.lease_until,
        ElementRow.lease_holder,
    )
    .where(REACHED, ElementRow.kind.in_(sorted(DEVICES)))
    .order_by(ElementRow.name)
)
"""Not what they carry: that is long, and this is read at every change."""


class Candidates(Protocol):
    """What the converger reads and writes; each method is one transaction."""

    def find(self, holder: str) -> tuple[datetime, list[Candidate]]:
        """Return the database's time, and every switch and edge as ``holder`` may take it."""

    def give_up_leases(self, holder: str) -> None:
        """End all leases of a replica that starts anew; what its last life still does is then ignored."""


@dataclass(frozen=True, slots=True)
class StoreCandidates:
    """The converger's transactions on the database."""

    store: Store

    def find(self, holder: str) -> tuple[datetime, list[Candidate]]:
        """Return the database's time, and every switch and edge as ``holder`` may take it."""
        with self.store.read() as unit:
            return unit.now, candidates(unit, holder)

    def give_up_leases(self, holder: str) -> None:
        """End all leases of a replica that starts anew; what its last life still does is then ignored."""
        with self.store.change() as unit:
            give_up_all(unit, holder)


def candidates(unit: Unit, holder: str) -> list[Candidate]:
    """Give every switch and edge of the topology, in name order."""
    rows = unit.connection.execute(_DEVICES).all()
    known = read_topology(unit).elements if rows else {}
    return [
        Candidate(
            name=Name(row.name),
            wanted=row.wanted_revision,
            confirmed=row.confirmed_revision,
            checked_at=row.checked_at,
            leased=row.lease_until is not None and row.lease_until >= unit.now and row.lease_holder != holder,
            platform=_platform(known.get(Name(row.name))),
            reachable=row.reachable,
        )
        for row in rows
    ]


def _platform(element: Element | None) -> str:
    return element.platform if isinstance(element, Device) else ""
