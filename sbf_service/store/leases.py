"""Who converges an element: a lease with a fencing number, so that a late worker writes nothing (DESIGN.md §3)."""

from datetime import timedelta

from sqlalchemy import or_, select, update

from sbf_service.store.session import Unit
from sbf_service.store.tables import REACHED, ElementRow


def take_lease(unit: Unit, element: str, holder: str, length: timedelta) -> int | None:
    """Take an element for ``length``; gives the fencing number, or nothing while another one holds it."""
    mine = or_(ElementRow.lease_until.is_(None), ElementRow.lease_until < unit.now, ElementRow.lease_holder == holder)
    taken = (
        update(ElementRow)
        .where(ElementRow.name == element, REACHED, mine)
        .values(lease_holder=holder, lease_until=unit.now + length, fence=ElementRow.fence + 1)
        .returning(ElementRow.fence)
    )
    return unit.session.execute(taken).scalar_one_or_none()


def keep_lease(unit: Unit, element: str, fence: int, length: timedelta) -> bool:
    """Hold an element for another ``length``. Return false when the lease was given up or a newer one was taken."""
    kept = (
        update(ElementRow)
        .where(ElementRow.name == element, ElementRow.fence == fence, ElementRow.lease_until.is_not(None))
        .values(lease_until=unit.now + length)
        .returning(ElementRow.fence)
    )
    return unit.session.execute(kept).scalar_one_or_none() is not None


def holds_lease(unit: Unit, element: str, fence: int) -> bool:
    """Say whether ``fence`` is still the newest, and stays so until the unit ends."""
    return unit.session.scalar(select(ElementRow.fence).where(ElementRow.name == element).with_for_update()) == fence


def give_up_lease(unit: Unit, element: str, fence: int) -> None:
    """Let others take the element at once; nothing when a newer lease was taken."""
    unit.session.execute(
        update(ElementRow).where(ElementRow.name == element, ElementRow.fence == fence).values(lease_until=None)
    )


def give_up_all(unit: Unit, holder: str) -> None:
    """Give up what this holder had before it died; the fencing numbers keep its late writes out.

    It is about many elements: for :meth:`Store.change`.
    """
    unit.session.execute(
        update(ElementRow).where(ElementRow.lease_holder == holder).values(lease_until=None, fence=ElementRow.fence + 1)
    )
