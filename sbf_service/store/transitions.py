"""Making the moves that were decided: states, removals, numbers given back. The decisions are in ``settle.py``.

Which clusters may move now, said in SQL: the same as ``settle.py`` decides, of clusters that are not read for it.

Thousands of clusters wait or are well; every confirmation and every sweep asks which of them move. The pure decision
stays the one that is made: what it is asked about is narrowed here, and a test holds the two against each other.

Clusters that an element refuses for good while they are set up: they fail at once, with its words.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, exists, or_, select, true, update
from sqlalchemy.orm import aliased

from sbf_service.domain.lifecycle import ClusterTransition, Condition, find_transition, list_states
from sbf_service.store.allocation import release_vlans
from sbf_service.store.cluster_queries import UNSETTLED, find_clusters, has_placement_on, read_cluster_statuses
from sbf_service.store.revisions import increment_revisions, require_element
from sbf_service.store.service_ids import release_service_id
from sbf_service.store.tables import ClaimRow, ClusterRow, ElementRow, PlacementRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, WANTED_STATES, ClusterState, check_transition

_OF_PLACEMENT = ElementRow.name == PlacementRow.element
_IS_LOST = or_(ElementRow.confirmed_revision < PlacementRow.added_revision, ElementRow.reachable.is_(False))
_IS_BEHIND = or_(ElementRow.confirmed_revision < ElementRow.wanted_revision, ElementRow.reachable.is_(False))
"""An element that has lost a part is behind; said apart, since few elements are, and each has an index of its parts."""
_INCOMPLETE = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_PLACEMENT)
    .where(PlacementRow.removed_revision.is_(None), _IS_LOST, _IS_BEHIND)
)
_BLOCKED = select(PlacementRow.cluster_id).where(
    PlacementRow.removed_revision.is_(None), PlacementRow.blocked == true()
)
_IS_KEPT = or_(PlacementRow.removed_revision.is_(None), ElementRow.confirmed_revision < PlacementRow.removed_revision)
_CARRIED = exists().where(PlacementRow.cluster_id == ClusterRow.id, _OF_PLACEMENT, _IS_KEPT)
_MEMBER = aliased(ClusterRow)
_HAS_MEMBERS = exists().where(
    _MEMBER.network == ClusterRow.id, or_(_MEMBER.state.not_in(ENDED_STATES), _MEMBER.quarantined == true())
)
_STILL_CARRIED = or_(_CARRIED, _HAS_MEMBERS)


def has_due_transition(now: datetime, drain_deadline: timedelta) -> ColumnElement[bool]:
    """Select the clusters with a due transition: the rules of ``domain/lifecycle.py`` with their conditions as SQL."""
    incomplete = or_(ClusterRow.id.in_(_INCOMPLETE), ClusterRow.id.in_(_BLOCKED))
    holds = {
        Condition.LEASE_ENDED: ClusterRow.lease_ends <= now,
        Condition.COMPLETE: ~incomplete,
        Condition.INCOMPLETE: incomplete,
        Condition.SETUP_DEADLINE_PASSED: ClusterRow.deadline <= now,
        Condition.REMOVED: ~_STILL_CARRIED,
        Condition.DRAIN_DEADLINE_PASSED: ClusterRow.leaving_since <= now - drain_deadline,
        Condition.QUARANTINE_CONFIRMED: and_(ClusterRow.quarantined == true(), ~_STILL_CARRIED),
    }
    return or_(*(and_(ClusterRow.state.in_(list_states(one)), holds[one]) for one in Condition))


MAX_TRANSITIONS = 3
"""A cluster may pass several states in one go: configuring, draining, released."""


def apply_due_transitions(unit: Unit, drain_deadline: timedelta, *conditions: ColumnElement[bool]) -> None:
    """Move every cluster that may move on. May be repeated; what is settled stays.

    A network that waited for a member to go moves with it, wherever its own parts are.
    """
    networks = set()
    for _ in range(MAX_TRANSITIONS):
        moves = find_due_transitions(unit, drain_deadline, *conditions)
        stood = [row.state for row, _ in moves]
        for (row, found), state in zip(moves, stood, strict=True):
            if row.state == state:  # not so of a member that has just ended with its network
                apply_transition(unit, row, found)
            networks |= {row.network} - {None}
        if not moves:
            break
    if networks:
        apply_due_transitions(unit, drain_deadline, ClusterRow.id.in_(sorted(networks)))


def find_due_transitions(
    unit: Unit, drain_deadline: timedelta, *conditions: ColumnElement[bool]
) -> list[tuple[ClusterRow, ClusterTransition]]:
    """Give the moves that are due; changes nothing."""
    rows = find_clusters(unit, has_due_transition(unit.now, drain_deadline), *conditions)
    found = [
        (row, find_transition(one, unit.now, drain_deadline))
        for row, one in zip(rows, read_cluster_statuses(unit, rows), strict=True)
    ]
    return [(row, one) for row, one in found if one is not None]


def drain_cluster(unit: Unit, row: ClusterRow, reason: str) -> None:
    """End a cluster, unless it is ending or has ended already."""
    if ClusterState(row.state) in WANTED_STATES:
        apply_transition(unit, row, ClusterTransition(ClusterState.DRAINING, reason))


def apply_transition(unit: Unit, row: ClusterRow, found: ClusterTransition) -> None:
    """Make one move, with its audit row, in the unit's transaction."""
    before = ClusterState(row.state)
    row.state = before if found.to is before else check_transition(before, found.to)
    row.reason = _join_reasons(row.reason, found)
    row.quarantined = found.quarantines
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    record_audit(unit, f"cluster_{row.state}", why=row.reason, cluster_id=row.id)
    if found.to in LEAVING_STATES:
        row.leaving_since = unit.now
        _remove_placements(unit, row)
        _drain_members(unit, row)
    if found.to in ENDED_STATES:
        row.name = None
    if found.frees:
        _release_claims(unit, row)
    unit.session.flush()


def _join_reasons(before: str | None, found: ClusterTransition) -> str | None:
    """Leave a cluster that is well no reason; keep the reason of an end, and add what keeps its numbers."""
    if found.to is ClusterState.ACTIVE:
        return None
    if found.quarantines and before:
        return f"{before}; {found.reason}"
    return found.reason or before


def _remove_placements(unit: Unit, row: ClusterRow) -> None:
    """Let each element that carries the cluster, or may carry it, lose it."""
    carrying = select(PlacementRow).where(PlacementRow.cluster_id == row.id, PlacementRow.removed_revision.is_(None))
    placements = unit.session.scalars(carrying).all()
    revisions = increment_revisions(unit, [placement.element for placement in placements])
    for placement in placements:
        placement.removed_revision = revisions[placement.element].revision


def _drain_members(unit: Unit, row: ClusterRow) -> None:
    """End the members of a network with it."""
    for member in find_clusters(unit, ClusterRow.state.in_(WANTED_STATES), ClusterRow.network == row.id):
        apply_transition(
            unit,
            member,
            ClusterTransition(ClusterState.DRAINING, f"its network, cluster {row.key}, ended: {row.reason}"),
        )


def _release_claims(unit: Unit, row: ClusterRow) -> None:
    """Give all its numbers back at once: every element has confirmed that it lost the cluster."""
    held = select(ClaimRow.vlan, ClaimRow.site).where(ClaimRow.cluster_id == row.id).order_by(ClaimRow.site)
    for vlan, site in unit.session.execute(held):
        record_audit(unit, "number_freed", why=f"VLAN {vlan} at {site}", cluster_id=row.id)
    release_vlans(unit, row.id)
    release_service_id(unit, row)


def increment_versions(unit: Unit, *conditions: ColumnElement[bool]) -> None:
    """Let the views of unsettled clusters grow a version, and wake those who wait for them."""
    touched = update(ClusterRow).where(UNSETTLED, *conditions).values(version=ClusterRow.version + 1)
    keys = unit.session.scalars(touched.returning(ClusterRow.key).execution_options(synchronize_session=False)).all()
    unit.session.expire_all()
    unit.changed.update(f"cluster:{key}" for key in keys)


MAX_REFUSAL_CHARACTERS = 1000


def fail_refused_clusters(unit: Unit, element: str, refused: Mapping[str, str], drain_deadline: timedelta) -> None:
    """Let those of ``refused`` (cluster ids, the element's words) fail that are being set up on ``element``.

    Others are left alone: one that was active is put back when it can be. Where a network is refused, so are its
    members: without it they cannot be there. May be repeated. Raises NotFound.
    """
    row = require_element(unit, element)
    theirs = or_(ClusterRow.id.in_(refused), ClusterRow.network.in_(refused))
    for cluster in find_clusters(unit, ClusterRow.state == ClusterState.CONFIGURING, theirs, has_placement_on(element)):
        if cluster.state != ClusterState.CONFIGURING:
            continue  # it ended with its network, a moment ago
        words = (refused.get(cluster.id) or refused[str(cluster.network)])[:MAX_REFUSAL_CHARACTERS]
        apply_transition(
            unit,
            cluster,
            ClusterTransition(ClusterState.FAILING, f"{row.kind} {element} at {row.site} refused: {words}"),
        )
    apply_due_transitions(unit, drain_deadline, has_placement_on(element))
