"""Making the moves that were decided: states, removals, numbers given back. The decisions are in ``settle.py``."""

from datetime import timedelta

from sqlalchemy import ColumnElement, select, update

from sbf_service.settle import Move, settle
from sbf_service.store.audit import record
from sbf_service.store.free_numbers import give_back
from sbf_service.store.movable import movable
from sbf_service.store.revisions import grow
from sbf_service.store.services import give_back_service
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, clusters_where, standings
from sbf_service.store.tables import ClaimRow, ClusterRow, PlacementRow
from virtcloud.model.cluster import ENDED, LEAVING, WANTED, State, move

MOST_MOVES_AT_ONCE = 3
"""A cluster may pass several states in one go: configuring, draining, released."""


def settle_clusters(unit: Unit, drain_deadline: timedelta, *conditions: ColumnElement[bool]) -> None:
    """Move every cluster that may move on. May be repeated; what is settled stays.

    A network that waited for a member to go moves with it, wherever its own parts are.
    """
    networks = set()
    for _ in range(MOST_MOVES_AT_ONCE):
        moves = due_moves(unit, drain_deadline, *conditions)
        stood = [row.state for row, _ in moves]
        for (row, found), state in zip(moves, stood, strict=True):
            if row.state == state:  # not so of a member that has just ended with its network
                make(unit, row, found)
            networks |= {row.network} - {None}
        if not moves:
            break
    if networks:
        settle_clusters(unit, drain_deadline, ClusterRow.id.in_(sorted(networks)))


def due_moves(unit: Unit, drain_deadline: timedelta, *conditions: ColumnElement[bool]) -> list[tuple[ClusterRow, Move]]:
    """Give the moves that are due; changes nothing."""
    rows = clusters_where(unit, movable(unit.now, drain_deadline), *conditions)
    found = [(row, settle(one, unit.now, drain_deadline)) for row, one in zip(rows, standings(unit, rows), strict=True)]
    return [(row, one) for row, one in found if one is not None]


def drain(unit: Unit, row: ClusterRow, reason: str) -> None:
    """End a cluster, unless it is ending or has ended already."""
    if State(row.state) in WANTED:
        make(unit, row, Move(State.DRAINING, reason))


def make(unit: Unit, row: ClusterRow, found: Move) -> None:
    """Make one move, with its audit row, in the unit's transaction."""
    before = State(row.state)
    row.state = before if found.to is before else move(before, found.to)
    row.reason = _reason(row.reason, found)
    row.quarantined = found.quarantines
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    record(unit, f"cluster_{row.state}", why=row.reason, cluster_id=row.id)
    if found.to in LEAVING:
        row.leaving_since = unit.now
        _remove(unit, row)
        _drain_members(unit, row)
    if found.to in ENDED:
        row.name = None
    if found.frees:
        _free(unit, row)
    unit.session.flush()


def _reason(before: str | None, found: Move) -> str | None:
    """Leave a cluster that is well no reason; keep the reason of an end, and add what keeps its numbers."""
    if found.to is State.ACTIVE:
        return None
    if found.quarantines and before:
        return f"{before}; {found.reason}"
    return found.reason or before


def _remove(unit: Unit, row: ClusterRow) -> None:
    """Let each element that carries the cluster, or may carry it, lose it."""
    carrying = select(PlacementRow).where(PlacementRow.cluster_id == row.id, PlacementRow.removed_revision.is_(None))
    placements = unit.session.scalars(carrying).all()
    revisions = grow(unit, [placement.element for placement in placements])
    for placement in placements:
        placement.removed_revision = revisions[placement.element].revision


def _drain_members(unit: Unit, row: ClusterRow) -> None:
    """End the members of a network with it."""
    for member in clusters_where(unit, ClusterRow.state.in_(WANTED), ClusterRow.network == row.id):
        make(unit, member, Move(State.DRAINING, f"its network, cluster {row.key}, ended: {row.reason}"))


def _free(unit: Unit, row: ClusterRow) -> None:
    """Give all its numbers back at once: every element has confirmed that it lost the cluster."""
    held = select(ClaimRow.vlan, ClaimRow.site).where(ClaimRow.cluster_id == row.id).order_by(ClaimRow.site)
    for vlan, site in unit.session.execute(held):
        record(unit, "number_freed", why=f"VLAN {vlan} at {site}", cluster_id=row.id)
    give_back(unit, row.id)
    give_back_service(unit, row)


def touch_clusters(unit: Unit, *conditions: ColumnElement[bool]) -> None:
    """Let the views of unsettled clusters grow a version, and wake those who wait for them."""
    touched = update(ClusterRow).where(UNSETTLED, *conditions).values(version=ClusterRow.version + 1)
    keys = unit.session.scalars(touched.returning(ClusterRow.key).execution_options(synchronize_session=False)).all()
    unit.session.expire_all()
    unit.changed.update(f"cluster:{key}" for key in keys)
