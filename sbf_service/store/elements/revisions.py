"""The wanted revisions of elements, which changes of the wanted state increment."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Text, bindparam, inspect, select, update
from sqlalchemy.orm.util import identity_key

from sbf_service.domain.cluster_status import PlacementStatus
from sbf_service.domain.error_report import find_cluster_error
from sbf_service.store.tables.columns import select_texts, split_ids
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import NotFound
from virtcloud.model.message_text import list_known
from virtcloud.model.values import Name

_READ_ELEMENT = select(ElementRow).where(ElementRow.name == bindparam("element"))
"""A prepared statement; ``Session.get`` would build a statement for each call."""
_INCREMENT = (
    update(ElementRow)
    .where(ElementRow.name.in_(bindparam("names", expanding=True)))
    .values(wanted_revision=ElementRow.wanted_revision + 1)
    .returning(
        ElementRow.name,
        ElementRow.kind,
        ElementRow.site,
        ElementRow.wanted_revision,
        ElementRow.confirmed_revision,
        ElementRow.trouble,
        ElementRow.troubles,
        ElementRow.reachable,
        ElementRow.last_seen,
    )
)

_INCREMENT_ALL = (
    update(ElementRow)
    .where(ElementRow.name.in_(select_texts(bindparam("names", type_=Text))))
    .values(wanted_revision=ElementRow.wanted_revision + 1)
    .execution_options(synchronize_session=False)
)


@dataclass(frozen=True, slots=True)
class NewRevision:
    """The new wanted revision of an element, and the element's recorded state.

    ``trouble`` and ``troubles`` are the element's error report and the errors of single clusters (``ElementRow``).
    """

    kind: ElementKind
    site: Name
    revision: int
    confirmed: int
    trouble: str | None
    troubles: str | None
    reachable: bool
    last_seen: datetime | None

    def make_status(self, element: Name, network: str | None) -> PlacementStatus:
        """Return the status of a new cluster's placement on ``element``.

        ``network`` is the ID of the network that the cluster joins.
        """
        return PlacementStatus(
            element=element,
            kind=self.kind,
            site=self.site,
            added=self.revision,
            removed=None,
            confirmed=self.confirmed,
            reachable=self.reachable,
            trouble=None if self.trouble is None else find_cluster_error(self.trouble, self.troubles, network),
            last_seen=self.last_seen,
        )


def require_element(unit: Unit, name: str) -> ElementRow:
    """Return the row of an element. Raise NotFound for an unknown element."""
    row = _find_loaded(unit, name)
    if row is None or inspect(row).expired:
        row = unit.session.scalars(_READ_ELEMENT, {"element": name}).one_or_none()
    if row is None or not (row.present or row.leaving):
        raise NotFound(f"element {name} is not known; known elements: {list_known(name, _list_names(unit))}")
    unit.values.elements[name] = row
    return row


def increment_revisions(unit: Unit, names: Iterable[str]) -> dict[str, NewRevision]:
    """Increment the wanted revision of each element. Return the new revisions by element, sorted by name.

    Ignore unknown names. Raise OutsideScopeError if the unit has not locked the sites of all elements.
    """
    unit.session.flush()
    groups = split_ids(sorted(set(names)))
    found = (row for group in groups for row in unit.connection.execute(_INCREMENT, {"names": group}))
    rows = sorted(found, key=lambda row: row.name)
    unit.require_sites({row.site for row in rows})
    for row in rows:
        unit.changed.add(f"element:{row.name}")
        _expire_loaded(unit, row.name)
    return {row.name: _make_new_revision(row) for row in rows}


def increment_all(unit: Unit, names: Collection[str]) -> None:
    """Increment the wanted revisions of elements, as :func:`increment_revisions` does, but without a result.

    For thousands of elements, this function takes a fifth of the time. The unit must lock everything.
    """
    unit.require_everything()
    if names:
        unit.session.flush()
        unit.connection.execute(_INCREMENT_ALL, {"names": json.dumps(sorted(names))})
        unit.changed.update(f"element:{name}" for name in names)
        expire_elements(unit)


def _make_new_revision(row: Any) -> NewRevision:  # noqa: ANN401 - a row of _INCREMENT
    return NewRevision(
        kind=ElementKind(row.kind),
        site=Name(row.site),
        revision=row.wanted_revision,
        confirmed=row.confirmed_revision,
        trouble=row.trouble,
        troubles=row.troubles,
        reachable=row.reachable,
        last_seen=row.last_seen,
    )


def _expire_loaded(unit: Unit, name: str) -> None:
    """Expire the element's object in the session: its next use reads the row that a statement has changed."""
    loaded = _find_loaded(unit, name)
    if loaded is not None:
        unit.session.expire(loaded)


def expire_elements(unit: Unit) -> None:
    """Expire the objects of all elements in the session: their next use reads the changed rows."""
    for loaded in [row for row in unit.session.identity_map.values() if isinstance(row, ElementRow)]:
        unit.session.expire(loaded)


def _find_loaded(unit: Unit, name: str) -> ElementRow | None:
    """Return the element's object if the session has loaded the object, or None. The object may be expired."""
    return unit.session.identity_map.get(identity_key(ElementRow, name))


def _list_names(unit: Unit) -> Iterable[str]:
    return unit.session.scalars(select(ElementRow.name).where(ElementRow.present).order_by(ElementRow.name))
