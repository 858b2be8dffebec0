"""State transitions of clusters: queries for due transitions, and their effects on the database.

``domain/lifecycle.py`` contains the rules and the effects of transitions. :data:`HAS_DUE_TRANSITION` translates the
conditions of these rules to SQL. Thousands of clusters may exist. After an element's confirmation, SBF therefore reads
only the clusters that have a due transition.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, bindparam, delete, exists, or_, select, true, union, update
from sqlalchemy.orm import aliased

from sbf_service.domain.lifecycle import (
    ClusterTransition,
    Condition,
    compute_effects,
    find_transition,
    list_states,
    make_drain,
)
from sbf_service.request_context import current_call
from sbf_service.store.allocation import release_vlans
from sbf_service.store.cluster_documents import parse_spec
from sbf_service.store.cluster_gateways import delete_vpn_access, end_publications_of, revoke_profiles_of
from sbf_service.store.cluster_queries import (
    UNSETTLED,
    find_clusters,
    is_unsettled_on,
    read_clusters,
    read_clusters_by_id,
    select_clusters,
)
from sbf_service.store.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.columns import NAME_TYPE, equals_any
from sbf_service.store.guest_seeds import find_network_hosts
from sbf_service.store.guest_tables import GuestPowerRow
from sbf_service.store.live_clusters import read_cluster_statuses
from sbf_service.store.revisions import increment_revisions, require_element
from sbf_service.store.service_ids import release_service_id
from sbf_service.store.tables import Base, ElementRow
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.vlan_tables import ClaimRow
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterState
from virtcloud.model.element import ElementKind

_OF_PLACEMENT = ElementRow.name == PlacementRow.element
_IS_INCOMPLETE = or_(ElementRow.confirmed_revision < PlacementRow.added_revision, ElementRow.reachable.is_(False))
_IS_UNCONFIRMED = or_(ElementRow.confirmed_revision < ElementRow.wanted_revision, ElementRow.reachable.is_(False))
"""The condition of an index. It is true for every element for which ``_IS_INCOMPLETE`` is true."""
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
_STAYS = PlacementRow.removed_revision.is_(None)
_IS_OBSTACLE = exists().where(
    PlacementRow.cluster_id == ClusterRow.id,
    _OF_PLACEMENT,
    _STAYS,
    or_(_IS_INCOMPLETE, PlacementRow.blocked),
    _IS_AWAITED,
)
"""The condition that a cluster is incomplete, for a query that reads the placements of each cluster separately."""
_OF_ELEMENT = PlacementRow.element == ElementRow.name + ""
"""Like ``_OF_PLACEMENT``. No index serves the expression, so the database reads the elements first."""
_STATE = ClusterRow.state + ""
"""The state, in a condition for which the database does not use the index of states."""
_INCOMPLETE = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_ELEMENT)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .where(_STAYS, _IS_INCOMPLETE, _IS_UNCONFIRMED, _IS_AWAITED)
)
_BLOCKED = (
    select(PlacementRow.cluster_id)
    .join(ElementRow, _OF_PLACEMENT)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .where(_STAYS, PlacementRow.blocked == true(), _IS_AWAITED)
)
_IS_CARRIED = or_(
    PlacementRow.removed_revision.is_(None),
    ElementRow.confirmed_revision < PlacementRow.removed_revision,
    PlacementRow.blocked,
)
_CARRIED = exists().where(PlacementRow.cluster_id == ClusterRow.id, _OF_PLACEMENT, _IS_CARRIED)
_MEMBER = aliased(ClusterRow)
_HAS_MEMBERS = exists().where(
    _MEMBER.network == ClusterRow.id, or_(~equals_any(_MEMBER.state, ENDED_STATES), _MEMBER.quarantined == true())
)
_STILL_CARRIED = or_(_CARRIED, _HAS_MEMBERS)


_HOLDS = {
    Condition.LEASE_ENDED: ClusterRow.lease_ends <= bindparam("now"),
    Condition.COMPLETE: ~_IS_OBSTACLE,
    Condition.INCOMPLETE: _IS_OBSTACLE,
    Condition.SETUP_DEADLINE_PASSED: ClusterRow.deadline <= bindparam("now"),
    Condition.REMOVED: ~_STILL_CARRIED,
    Condition.DRAIN_DEADLINE_PASSED: ClusterRow.leaving_since <= bindparam("drained_before"),
    Condition.QUARANTINE_CONFIRMED: and_(ClusterRow.quarantined == true(), ~_STILL_CARRIED),
}


def _is_due(condition: Condition, holds: ColumnElement[bool]) -> ColumnElement[bool]:
    return and_(equals_any(ClusterRow.state, list_states(condition)), holds)


HAS_DUE_TRANSITION = or_(*(_is_due(condition, holds) for condition, holds in _HOLDS.items()))
"""The condition that a transition of a cluster is due, with the parameters of :func:`make_due_parameters`."""
_HAS_OBSTACLE = _STATE.in_(sorted(list_states(Condition.INCOMPLETE)))
_FIND_DUE = union(
    *(
        select(ClusterRow.id).where(_is_due(condition, holds))
        for condition, holds in _HOLDS.items()
        if condition is not Condition.INCOMPLETE
    ),
    *(found.where(_HAS_OBSTACLE) for found in (_INCOMPLETE, _BLOCKED)),
)
"""Finds the clusters with a due transition, by one index for each condition.

The few elements that are unconfirmed, and the few placements that are blocked, lead to the incomplete clusters.
"""


def make_due_parameters(now: datetime, drain_deadline: timedelta) -> dict[str, object]:
    """Return the parameters of :data:`HAS_DUE_TRANSITION`."""
    return {"now": now, "drained_before": now - drain_deadline}


_READ_SITES = select(ClaimRow.site).where(ClaimRow.cluster_id == bindparam("network"))
_CLUSTERS = Base.metadata.tables[ClusterRow.__tablename__]
_DELETE_POWERS = delete(GuestPowerRow).where(GuestPowerRow.cluster_id == bindparam("ended"))
_SETTLE = (
    update(Base.metadata.tables[PlacementRow.__tablename__])
    .where(PlacementRow.cluster_id == bindparam("ended"))
    .values(settled=true())
)
MAX_TRANSITIONS = 3
"""The highest number of transitions of one cluster in one call.

For example, a cluster that is configuring starts to drain, and is then released.
"""


class ClusterSelection:
    """The clusters that a change may concern, with the statements on these clusters.

    Selections are module constants, because building such a statement takes a millisecond.
    """

    def __init__(self, *conditions: ColumnElement[bool]) -> None:
        """Select the clusters that meet the conditions. Their bound parameters are given at each call, by name.

        An index must find these clusters, because the conditions of transitions are evaluated for each of them.
        """
        self.due = select_clusters(HAS_DUE_TRANSITION, *conditions)
        increment = update(_CLUSTERS).where(UNSETTLED, *conditions).values(version=_CLUSTERS.c.version + 1)
        self.increment_versions = increment.returning(_CLUSTERS.c.key)


ON_ELEMENT = ClusterSelection(is_unsettled_on(bindparam("element")))
"""The clusters that have a placement on ``element`` and may still change."""
OF_NETWORK = ClusterSelection(
    or_(ClusterRow.id == bindparam("network_id"), ClusterRow.network == bindparam("network_id"))
)
"""The clusters of the network ``network_id``."""
_BY_IDS = ClusterSelection(ClusterRow.id.in_(bindparam("ids", type_=NAME_TYPE, expanding=True)))


def apply_due_transitions(
    unit: Unit, drain_deadline: timedelta, selected: ClusterSelection | None = None, **parameters: object
) -> None:
    """Apply all due transitions of the selected clusters, or of all clusters; idempotent.

    ``parameters`` are the parameters of ``selected``.

    If a network waited for the end of a selected member, the network also ends, even if the network is not selected.
    """
    networks = set[str]()
    for _ in range(MAX_TRANSITIONS):
        due = find_due_transitions(unit, drain_deadline, selected, **parameters)
        states = [row.state for row, _ in due]
        for (row, transition), state in zip(due, states, strict=True):
            if row.state == state:  # otherwise the cluster is a member that has just ended together with its network
                apply_transition(unit, row, transition)
            if row.network is not None:
                networks.add(row.network)
        if not due:
            break
    if networks:
        apply_due_transitions(unit, drain_deadline, _BY_IDS, ids=sorted(networks))


def find_due_transitions(
    unit: Unit, drain_deadline: timedelta, selected: ClusterSelection | None = None, **parameters: object
) -> list[tuple[ClusterRow, ClusterTransition]]:
    """Return the due transitions of the selected clusters, or of all clusters."""
    rows: Sequence[ClusterRow] = (
        read_clusters_by_id(unit, find_due_clusters(unit, drain_deadline))
        if selected is None
        else read_clusters(unit, selected.due, make_due_parameters(unit.now, drain_deadline) | parameters)
    )
    statuses = read_cluster_statuses(unit, rows)
    transitions = [find_transition(status, unit.now, drain_deadline) for status in statuses]
    return [(row, transition) for row, transition in zip(rows, transitions, strict=True) if transition is not None]


def find_due_clusters(unit: Unit, drain_deadline: timedelta) -> list[str]:
    """Return the IDs of all clusters with a due transition."""
    unit.session.flush()
    due = make_due_parameters(unit.now, drain_deadline)
    return list(unit.connection.execute(_FIND_DUE, due).scalars())


def drain_cluster(unit: Unit, row: ClusterRow, reason: str) -> None:
    """Start to drain a cluster. Do nothing if the cluster is ending or has ended."""
    if (transition := make_drain(ClusterState(row.state), reason)) is not None:
        apply_transition(unit, row, transition)


def apply_transition(unit: Unit, row: ClusterRow, transition: ClusterTransition) -> None:
    """Apply the effects of a transition, and record an audit row."""
    _require_network_sites(unit, row)
    effects = compute_effects(ClusterState(row.state), row.reason, transition)
    row.state, row.reason, row.quarantined = effects.state, effects.reason, effects.quarantined
    row.version += 1
    unit.changed.add(f"cluster:{row.key}")
    record_audit(unit, f"cluster_{row.state}", why=row.reason, cluster_id=row.id, request_id=row.request_id)
    unit.session.flush()
    if effects.leaves:
        row.leaving_since = unit.now
        if (call := current_call()) is not None:
            row.request_id, row.traceparent = call.request_id, call.traceparent
        revoke_profiles_of(unit, row.id)
        _remove_placements(unit, row)
        _drain_members(unit, row)
    if effects.ends:
        row.name = None
        unit.session.execute(_DELETE_POWERS, {"ended": row.id})
        delete_vpn_access(unit, row.id)
    if effects.frees:
        _release_claims(unit, row)
        unit.connection.execute(_SETTLE, {"ended": row.id})
    unit.session.flush()


def _require_network_sites(unit: Unit, row: ClusterRow) -> None:
    """Raise OutsideScopeError unless the unit may change all sites of a cluster's network."""
    if unit.scope is not None:
        unit.require_sites(unit.connection.execute(_READ_SITES, {"network": row.network or row.id}).scalars().all())


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
    for member in find_clusters(unit, equals_any(ClusterRow.state, WANTED_STATES), ClusterRow.network == row.id):
        drain_cluster(unit, member, f"its network, cluster {row.key}, ended: {row.reason}")


def _release_claims(unit: Unit, row: ClusterRow) -> None:
    """Release all claims of a cluster. Every element must have confirmed the removal of the cluster before."""
    claims = select(ClaimRow.vlan, ClaimRow.site).where(ClaimRow.cluster_id == row.id).order_by(ClaimRow.site)
    for vlan, site in unit.session.execute(claims):
        record_audit(unit, "number_freed", why=f"VLAN {vlan} at {site}", cluster_id=row.id)
    release_vlans(unit, row.id)
    release_service_id(unit, row)


def increment_versions(unit: Unit, selected: ClusterSelection, **parameters: object) -> None:
    """Increment the view versions of the selected clusters, and publish the change.

    Skip clusters that have ended and whose claims are not in quarantine. Such clusters no longer change.
    """
    unit.session.flush()
    keys = unit.connection.execute(selected.increment_versions, parameters).scalars().all()
    for row in unit.session.identity_map.values() if keys else ():
        if isinstance(row, ClusterRow):
            unit.session.expire(row)
    unit.changed.update(f"cluster:{key}" for key in keys)


MAX_REFUSAL_CHARACTERS = 1000


def fail_refused_clusters(unit: Unit, element: str, refused: Mapping[str, str], drain_deadline: timedelta) -> None:
    """Fail the clusters that ``element`` refused during their set-up; idempotent.

    ``refused`` maps cluster IDs to errors. Only clusters in the state ``configuring`` fail. A cluster that was already
    active does not fail: the element sets it up again as soon as possible. If ``refused`` contains such an active
    network, its members that are configuring on the element fail. The members of a network that fails end together with
    the network. Raise NotFound for an unknown element.
    """
    unit.require_everything()
    row = require_element(unit, element)
    is_configuring = ClusterRow.state == ClusterState.CONFIGURING, is_unsettled_on(element)
    for cluster in find_clusters(unit, *is_configuring) if refused else ():
        if cluster.id not in refused and cluster.network not in refused:
            continue
        if cluster.state != ClusterState.CONFIGURING:
            continue  # the cluster has just ended together with its network
        message = (refused.get(cluster.id) or refused[str(cluster.network)])[:MAX_REFUSAL_CHARACTERS]
        apply_transition(
            unit,
            cluster,
            ClusterTransition(ClusterState.FAILING, f"{row.kind} {element} at {row.site} refused: {message}"),
        )
    apply_due_transitions(unit, drain_deadline, ON_ELEMENT, element=element)
