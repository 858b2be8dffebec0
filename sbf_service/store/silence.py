"""Agents that asked, and agents that stopped asking."""

from datetime import timedelta

from sqlalchemy import or_, select

from sbf_service.store.audit import record
from sbf_service.store.moves import settle_clusters, touch_clusters
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Store, Unit
from sbf_service.store.standing import on_element
from sbf_service.store.tables import ElementRow
from virtcloud.model.device import DEVICES
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import Name

SEEN_STEP = timedelta(seconds=5)
"""``last_seen`` is not written more often than this."""


def silent_agents(unit: Unit, silence: timedelta) -> list[Name]:
    """Give hosts and gateways that are taken for well, but whose agents have not asked for this long."""
    quiet = or_(ElementRow.last_seen.is_(None), ElementRow.last_seen < unit.now - silence)
    agents = ElementRow.present, ElementRow.kind.not_in(sorted(DEVICES)), ElementRow.reachable, quiet
    found = unit.session.scalars(select(ElementRow.name).where(*agents).order_by(ElementRow.name))
    return [Name(name) for name in found]


def heard(store: Store, name: str, drain_deadline: timedelta) -> None:
    """Write that an agent asks; one that was taken for unreachable is well again. Raises NotFound, Conflict."""
    with store.read() as unit:
        row = element_row(unit, name)
        if ElementKind(row.kind) in DEVICES:
            raise Conflict(f"{row.kind} {name} has no agent: SBF configures it; hosts and gateways fetch and confirm")
        fresh = row.last_seen is not None and unit.now - row.last_seen < SEEN_STEP
        silent = not row.reachable
    if silent:
        with store.change(who=name) as unit:
            _speaks_again(unit, element_row(unit, name), drain_deadline)
    elif not fresh:
        with store.touch(who=name) as unit:
            element_row(unit, name).last_seen = unit.now


def _speaks_again(unit: Unit, row: ElementRow, drain_deadline: timedelta) -> None:
    row.last_seen, row.reachable, row.trouble = unit.now, True, None
    unit.session.flush()
    record(unit, "element_reachable", element=row.name)
    touch_clusters(unit, on_element(row.name))
    settle_clusters(unit, drain_deadline, on_element(row.name))
