"""State transitions of clusters: queries for due transitions, and their effects on the database.

``domain/lifecycle.py`` contains the rules and the effects of transitions. :data:`HAS_DUE_TRANSITION` translates the
conditions of these rules to SQL. Thousands of clusters may exist. After an element's confirmation, SBF therefore reads
only the clusters that have a due transition.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, bindparam, delete, exists, or_, select, true, update
from sqlalchemy.orm import aliased

from sbf_service.domain.lifecycle import (
    ClusterTransition,
    Condition,
    compute_effects,
    find_transition,
    list_states,
    make_drain,
)
from sbf_service.store.allocation import release_vlans
from sbf_service.store.cluster_gateways import delete_vpn_access, end_publications_of, revoke_profiles_of
from sbf_service.store.cluster_queries import (
    UNSETTLED,
    find_clusters,
    has_placement_on,
    parse_spec,
    read_cluster_statuses,
)
from sbf_service.store.guest_seeds import find_network_hosts
from sbf_service.store.guest_tables import GuestPowerRow
from sbf_service.store.revisions import increment_revisions, require_element
from sbf_service.store.service_ids import release_service_id
from sbf_service.store.tables import ClaimRow, ClusterRow, ElementRow, PlacementRow
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterState
from virtcloud.model.element import ElementKind

_OF_PLACEMENT = ElementRow.name == PlacementRow.element
_IS_INCOMPLETE = or_(ElementRow.confirmed_revision < PlacementRow.added_revision, ElementRow.reachable.is_(False))
_IS_UNCONFIRMED = or_(ElementRow.confirmed_revision < ElementRow.wanted_revision, ElementRow.reachable.is_(False))
"""True for every element for which ``_IS_INCOMPLETE`` is true.

A query with ``_IS_INCOMPLETE`` therefore does not need this condition, but is faster with it, because the database
then starts from the few unconfirmed elements.
"""
_OTHER, _OTHER_ELEMENT = aliased(PlacementRow), aliased(ElementRow)
_HAS_COMPLETE_GATEWAY = exists().where(
    _OTHER.cluster_id == PlacementRow.cluster_id,
    _OTHER_ELEMENT.name == _OTHER.element,
    _OTHER_ELEMENT.kind == ElementKind.GATEWAY,
    _OTHER.removed_revision.is_(None),
    _OTHER.blocked.is_(False),
    _OTHER_ELEMENT.confirmed_revision >= _OTHER.added_revision,
    _OTHER_ELEMENT.reachable,
)
_IS_AWAITED = or_(ElementRow.kind != ElementKind.GATEWAY, ~_HAS_COMPLETE_GATEWAY)
"""False for a gateway while another gateway of the cluster is complete."""
_INCOMPLETE = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_PLACEMENT)
    .where(PlacementRow.removed_revision.is_(None), _IS_INCOMPLETE, _IS_UNCONFIRMED, _IS_AWAITED)
)
_BLOCKED = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_PLACEMENT)
    .where(PlacementRow.removed_revision.is_(None), PlacementRow.blocked == true(), _IS_AWAITED)
)
_IS_CARRIED = or_(
    PlacementRow.removed_revision.is_(None),
    ElementRow.confirmed_revision < PlacementRow.removed_revision,
    PlacementRow.blocked,
)
_CARRIED = exists().where(PlacementRow.cluster_id == ClusterRow.id, _OF_PLACEMENT, _IS_CARRIED)
_MEMBER = aliased(ClusterRow)
_HAS_MEMBERS = exists().where(
    _MEMBER.network == ClusterRow.id, or_(_MEMBER.state.not_in(ENDED_STATES), _MEMBER.quarantined == true())
)
_STILL_CARRIED = or_(_CARRIED, _HAS_MEMBERS)


_INCOMPLETE_OR_BLOCKED = or_(ClusterRow.id.in_(_INCOMPLETE), ClusterRow.id.in_(_BLOCKED))
_HOLDS = {
    Condition.LEASE_ENDED: ClusterRow.lease_ends <= bindparam("now"),
    Condition.COMPLETE: ~_INCOMPLETE_OR_BLOCKED,
    Condition.INCOMPLETE: _INCOMPLETE_OR_BLOCKED,
    Condition.SETUP_DEADLINE_PASSED: ClusterRow.deadline <= bindparam("now"),
    Condition.REMOVED: ~_STILL_CARRIED,
    Condition.DRAIN_DEADLINE_PASSED: ClusterRow.leaving_since <= bindparam("drained_before"),
    Condition.QUARANTINE_CONFIRMED: and_(ClusterRow.quarantined == true(), ~_STILL_CARRIED),
}
HAS_DUE_TRANSITION = or_(
    *(and_(ClusterRow.state.in_(list_states(condition)), _HOLDS[condition]) for condition in Condition)
)
"""The condition that a transition of a cluster is due, with the parameters of :func:`make_due_parameters`."""


def make_due_parameters(now: datetime, drain_deadline: timedelta) -> dict[str, datetime]:
    """Return the parameters of :data:`HAS_DUE_TRANSITION`."""
    return {"now": now, "drained_before": now - drain_deadline}


_DELETE_POWERS = delete(GuestPowerRow).where(GuestPowerRow.cluster_id == bindparam("ended"))
MAX_TRANSITIONS = 3
"""The highest number of transitions of one cluster in one call.

For example, a cluster that is configuring starts to drain, and is then released.
"""


def apply_due_transitions(unit: Unit, drain_deadline: timedelta, *conditions: ColumnElement[bool]) -> None:
    """Apply all due transitions of the selected clusters; idempotent.

    If a network waited for the end of a selected member, the network also ends, even if the network is not selected.
    """
    networks = set()
    for _ in range(MAX_TRANSITIONS):
        due = find_due_transitions(unit, drain_deadline, *conditions)
        states = [row.state for row, _ in due]
        for (row, transition), state in zip(due, states, strict=True):
            if row.state == state:  # otherwise the cluster is a member that has just ended together with its network
                apply_transition(unit, row, transition)
            networks |= {row.network} - {None}
        if not due:
            break
    if networks:
        apply_due_transitions(unit, drain_deadline, ClusterRow.id.in_(sorted(networks)))


def find_due_transitions(
    unit: Unit, drain_deadline: timedelta, *conditions: ColumnElement[bool]
) -> list[tuple[ClusterRow, ClusterTransition]]:
    """Return the due transitions of the selected clusters."""
    parameters = make_due_parameters(unit.now, drain_deadline)
    rows = find_clusters(unit, HAS_DUE_TRANSITION, *conditions, **parameters)
    statuses = read_cluster_statuses(unit, rows)
    transitions = [find_transition(status, unit.now, drain_deadline) for status in statuses]
    return [(row, transition) for row, transition in zip(rows, transitions, strict=True) if transition is not None]


def drain_cluster(unit: Unit, row: ClusterRow, reason: str) -> None:
    """Start to drain a cluster. Do nothing if the cluster is ending or has ended."""
    if (transition := make_drain(ClusterState(row.state), reason)) is not None:
        apply_transition(unit, row, transition)


def apply_transition(unit: Unit, row: ClusterRow, transition: ClusterTransition) -> None:
    """Apply the effects of a transition, and record an audit row."""
    effects = compute_effects(ClusterState(row.state), row.reason, transition)
    row.state, row.reason, row.quarantined = effects.state, effects.reason, effects.quarantined
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    record_audit(unit, f"cluster_{row.state}", why=row.reason, cluster_id=row.id)
    if effects.leaves:
        row.leaving_since = unit.now
        revoke_profiles_of(unit, row.id)
        _remove_placements(unit, row)
        _drain_members(unit, row)
    if effects.ends:
        row.name = None
        unit.session.execute(_DELETE_POWERS, {"ended": row.id})
        delete_vpn_access(unit, row.id)
    if effects.frees:
        _release_claims(unit, row)
    unit.session.flush()


def _remove_placements(unit: Unit, row: ClusterRow) -> None:
    """Increment the wanted revisions of a cluster's elements, and end the cluster's placements at these revisions.

    The cluster's publications end too.

    If the cluster is a member with guests, its guests are no longer peers, so the revisions of all hosts of the network
    are incremented.
    """
    carrying = select(PlacementRow).where(PlacementRow.cluster_id == row.id, PlacementRow.removed_revision.is_(None))
    placements = unit.session.scalars(carrying).all()
    own = {placement.element for placement in placements}
    others = _find_hosts_with_changed_peers(unit, row) | end_publications_of(unit, row.id)
    revisions = increment_revisions(unit, own | others)
    for placement in placements:
        placement.removed_revision = revisions[placement.element].revision


def _find_hosts_with_changed_peers(unit: Unit, row: ClusterRow) -> frozenset[str]:
    """Return the hosts of the network that a member with guests leaves. Return none if the whole network ends."""
    if row.network is None or not parse_spec(row.spec).guests:
        return frozenset()
    network = unit.session.get_one(ClusterRow, row.network)
    return find_network_hosts(unit, network.id) if network.state in WANTED_STATES else frozenset()


def _drain_members(unit: Unit, row: ClusterRow) -> None:
    """Start to drain the members of a network that is ending."""
    for member in find_clusters(unit, ClusterRow.state.in_(WANTED_STATES), ClusterRow.network == row.id):
        drain_cluster(unit, member, f"its network, cluster {row.key}, ended: {row.reason}")


def _release_claims(unit: Unit, row: ClusterRow) -> None:
    """Release all claims of a cluster. Every element must have confirmed the removal of the cluster before."""
    claims = select(ClaimRow.vlan, ClaimRow.site).where(ClaimRow.cluster_id == row.id).order_by(ClaimRow.site)
    for vlan, site in unit.session.execute(claims):
        record_audit(unit, "number_freed", why=f"VLAN {vlan} at {site}", cluster_id=row.id)
    release_vlans(unit, row.id)
    release_service_id(unit, row)


def increment_versions(unit: Unit, *conditions: ColumnElement[bool]) -> None:
    """Increment the view versions of the selected clusters, and publish the change.

    Skip clusters that have ended and whose claims are not in quarantine. Such clusters no longer change.
    """
    increment = update(ClusterRow).where(UNSETTLED, *conditions).values(version=ClusterRow.version + 1)
    keys = unit.session.scalars(increment.returning(ClusterRow.key).execution_options(synchronize_session=False)).all()
    unit.session.expire_all()
    unit.changed.update(f"cluster:{key}" for key in keys)


MAX_REFUSAL_CHARACTERS = 1000


def fail_refused_clusters(unit: Unit, element: str, refused: Mapping[str, str], drain_deadline: timedelta) -> None:
    """Fail the clusters that ``element`` refused during their set-up; idempotent.

    ``refused`` maps cluster IDs to errors. Only clusters in the state ``configuring`` fail. A cluster that was already
    active does not fail: the element sets it up again as soon as possible. If ``refused`` contains such an active
    network, its members that are configuring on the element fail. The members of a network that fails end together with
    the network. Raise NotFound for an unknown element.
    """
    row = require_element(unit, element)
    is_refused = or_(ClusterRow.id.in_(refused), ClusterRow.network.in_(refused))
    for cluster in find_clusters(
        unit, ClusterRow.state == ClusterState.CONFIGURING, is_refused, has_placement_on(element)
    ):
        if cluster.state != ClusterState.CONFIGURING:
            continue  # the cluster has just ended together with its network
        message = (refused.get(cluster.id) or refused[str(cluster.network)])[:MAX_REFUSAL_CHARACTERS]
        apply_transition(
            unit,
            cluster,
            ClusterTransition(ClusterState.FAILING, f"{row.kind} {element} at {row.site} refused: {message}"),
        )
    apply_due_transitions(unit, drain_deadline, has_placement_on(element))
