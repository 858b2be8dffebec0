"""Agents that asked, and agents that stopped asking."""

from datetime import timedelta

from sqlalchemy import or_, select

from sbf_service.store.revisions import element_row
from sbf_service.store.session import Store, Unit
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


def heard(store: Store, name: str) -> None:
    """Record that an agent asks. Raise NotFound, Conflict.

    An agent that was silent stays unreachable until it confirms or reports: its machine may have restarted meanwhile.
    """
    with store.read() as unit:
        row = element_row(unit, name)
        if ElementKind(row.kind) in DEVICES:
            raise Conflict(f"{row.kind} {name} has no agent: SBF configures it; hosts and gateways fetch and confirm")
        fresh = row.last_seen is not None and unit.now - row.last_seen < SEEN_STEP
    if not fresh:
        with store.touch(who=name) as unit:
            element_row(unit, name).last_seen = unit.now
