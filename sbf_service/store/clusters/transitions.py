"""The effects of clusters' state transitions on the database.

``domain/lifecycle.py`` contains the rules, and :mod:`.due_transitions` finds the clusters with a due transition. A
*member* is a cluster that joined the network of another cluster.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import ColumnElement, bindparam, delete, or_, select, true, update

from sbf_service.domain.lifecycle import ClusterTransition, compute_effects, find_transition, make_drain
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.cluster_queries import (
    UNSETTLED,
    find_clusters,
    is_unsettled_on,
    read_clusters,
    read_clusters_by_id,
    select_clusters,
)
from sbf_service.store.clusters.cluster_statuses import read_cluster_statuses
from sbf_service.store.clusters.due_transitions import FIND_DUE, HAS_DUE_TRANSITION, make_due_parameters
from sbf_service.store.clusters.guest_seeds import find_network_hosts
from sbf_service.store.elements.revisions import increment_revisions, require_element
from sbf_service.store.networks.cluster_gateways import (
    delete_gateways,
    delete_vpn_access,
    end_publications_of,
    revoke_profiles_of,
)
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import NAME_TYPE, equals_any
from sbf_service.store.tables.guest_tables import GuestPowerRow
from sbf_service.store.tables.tables import Base
from sbf_service.store.tables.vlan_tables import ClaimRow
from sbf_service.store.unit_of_work import Unit, record_audit
from sbf_service.store.vlans.claims import release_vlans
from sbf_service.store.vlans.service_ids import release_service_id
from virtcloud.current_call import current_call
from virtcloud.model.cluster import WANTED_STATES, ClusterState

log = get_log(__name__)

_READ_SITES = select(ClaimRow.site).where(ClaimRow.cluster_id == bindparam("network"))
_READ_CLAIMS = (
    select(ClaimRow.vlan, ClaimRow.site).where(ClaimRow.cluster_id == bindparam("network")).order_by(ClaimRow.site)
)
_READ_WANTED_MEMBERS = select_clusters(
    equals_any(ClusterRow.state, WANTED_STATES), ClusterRow.network == bindparam("network_id")
)
_CLUSTERS = Base.metadata.tables[ClusterRow.__tablename__]
_PLACEMENTS = Base.metadata.tables[PlacementRow.__tablename__]
_READ_STAYING = select(_PLACEMENTS.c.element).where(
    _PLACEMENTS.c.cluster_id == bindparam("leaving"), _PLACEMENTS.c.removed_revision.is_(None)
)
_REMOVE = (
    update(_PLACEMENTS)
    .where(_PLACEMENTS.c.cluster_id == bindparam("leaving"), _PLACEMENTS.c.element == bindparam("on"))
    .values(removed_revision=bindparam("revision"))
)
_DELETE_POWERS = delete(GuestPowerRow).where(GuestPowerRow.cluster_id == bindparam("ended"))
_SETTLE = update(_PLACEMENTS).where(_PLACEMENTS.c.cluster_id == bindparam("ended")).values(settled=true())
MAX_TRANSITIONS = 3
"""The maximum number of transitions of one cluster (such as drain and release) in one call."""


class ClusterSelection:
    """Prepared statements on the clusters that meet the conditions of this selection.

    ``due`` reads the selected clusters with a due transition, and ``increment_versions`` increments the versions of the
    selected clusters whose state can still change. Selections are module constants, because building a statement takes
    a millisecond.
    """

    def __init__(self, *conditions: ColumnElement[bool]) -> None:
        """Build the statements, which receive bound parameters by name.

        An index must support the conditions: the database checks each selected cluster.
        """
        self.due = select_clusters(HAS_DUE_TRANSITION, *conditions)
        increment = update(_CLUSTERS).where(UNSETTLED, *conditions).values(version=_CLUSTERS.c.version + 1)
        self.increment_versions = increment.returning(_CLUSTERS.c.key)


ON_ELEMENT = ClusterSelection(is_unsettled_on(bindparam("element")))
OF_NETWORK = ClusterSelection(
    or_(ClusterRow.id == bindparam("network_id"), ClusterRow.network == bindparam("network_id"))
)
BY_IDS = ClusterSelection(ClusterRow.id.in_(bindparam("ids", type_=NAME_TYPE, expanding=True)))


def apply_due_transitions(
    unit: Unit,
    drain_deadline: timedelta,
    selected: ClusterSelection | None = None,
    *,
    with_deadlines: bool = False,
    **parameters: object,
) -> None:
    """Apply all due transitions of the selected clusters (None: all clusters). Idempotent.

    ``parameters`` are the bound parameters of ``selected``. Also apply the due transitions of a network's cluster that
    may have waited for a member's end.

    ``with_deadlines`` includes the transitions of ``DEADLINES``. Only the deadline sweep sets it, after postponing
    leases and setup deadlines that passed during an outage.
    """
    networks = set[str]()
    for _ in range(MAX_TRANSITIONS):
        due = find_due_transitions(unit, drain_deadline, selected, with_deadlines=with_deadlines, **parameters)
        states = [row.state for row, _ in due]
        for (row, transition), state in zip(due, states, strict=True):
            if row.state == state:  # a member has another state if its network began to end earlier in this loop
                apply_transition(unit, row, transition)
            if row.network is not None:
                networks.add(row.network)
        if not due:
            break
    if networks:
        apply_due_transitions(unit, drain_deadline, BY_IDS, with_deadlines=with_deadlines, ids=sorted(networks))


def find_due_transitions(
    unit: Unit,
    drain_deadline: timedelta,
    selected: ClusterSelection | None = None,
    *,
    with_deadlines: bool,
    **parameters: object,
) -> list[tuple[ClusterRow, ClusterTransition]]:
    """Return each due transition of the selected clusters, or of all clusters, with its cluster."""
    due = make_due_parameters(unit.now, drain_deadline, with_deadlines=with_deadlines)
    rows: Sequence[ClusterRow] = (
        read_clusters_by_id(unit, find_due_clusters(unit, drain_deadline, with_deadlines=with_deadlines))
        if selected is None
        else read_clusters(unit, selected.due, due | parameters)
    )
    statuses = read_cluster_statuses(unit, rows)
    transitions = [
        find_transition(status, unit.now, drain_deadline, with_deadlines=with_deadlines) for status in statuses
    ]
    return [(row, transition) for row, transition in zip(rows, transitions, strict=True) if transition is not None]


def find_due_clusters(unit: Unit, drain_deadline: timedelta, *, with_deadlines: bool = True) -> list[str]:
    """Return the IDs of all clusters with a due transition.

    ``with_deadlines`` includes the transitions of ``DEADLINES``.
    """
    unit.session.flush()
    due = make_due_parameters(unit.now, drain_deadline, with_deadlines=with_deadlines)
    return list(unit.connection.execute(FIND_DUE, due).scalars())


def drain_cluster(unit: Unit, row: ClusterRow, reason: str) -> None:
    """Start to drain a cluster, unless the cluster is ending or has ended."""
    if (transition := make_drain(ClusterState(row.state), reason)) is not None:
        apply_transition(unit, row, transition)


def state_topic(key: str) -> str:
    """Return the change topic of a cluster's state.

    This topic is published when the cluster is created, and at each transition. The topic of the view, ``cluster:KEY``,
    is also published at other changes.
    """
    return f"state:{key}"


def apply_transition(unit: Unit, row: ClusterRow, transition: ClusterTransition) -> None:
    """Apply the effects of a transition, and record an audit row.

    Raise IllegalTransition if the lifecycle has no such transition. Raise OutsideScopeError if the unit has not locked
    all sites of the cluster's network.
    """
    _require_network_sites(unit, row)
    effects = compute_effects(ClusterState(row.state), row.reason, transition)
    row.state, row.reason, row.quarantined = effects.state, effects.reason, effects.quarantined
    row.version += 1
    unit.changed |= {f"cluster:{row.key}", state_topic(row.key)}
    record_audit(unit, f"cluster_{row.state}", why=row.reason, cluster_id=row.id, request_id=row.request_id)
    if effects.leaves:
        row.leaving_since = unit.now
        if (call := current_call()) is not None:
            row.request_id, row.traceparent = call.request_id, call.traceparent
    unit.session.flush()
    if effects.leaves:
        revoke_profiles_of(unit, row.id)
        _remove_placements(unit, row)
        _drain_members(unit, row)
    if effects.ends:
        row.name = None
        unit.connection.execute(_DELETE_POWERS, {"ended": row.id})
        delete_vpn_access(unit, row.id)
    if effects.frees:
        delete_gateways(unit, row.id)
        _release_claims(unit, row)
        unit.connection.execute(_SETTLE, {"ended": row.id})
    unit.session.flush()


def _require_network_sites(unit: Unit, row: ClusterRow) -> None:
    if unit.scope is not None:
        unit.require_sites(unit.connection.execute(_READ_SITES, {"network": row.network or row.id}).scalars().all())


def _remove_placements(unit: Unit, row: ClusterRow) -> None:
    """Increment the wanted revisions of a cluster's elements, and end its placements and publications.

    If guests leave a network that does not end, also increment the revisions of its hosts, whose lists of peers change.
    """
    own = set(unit.connection.execute(_READ_STAYING, {"leaving": row.id}).scalars())
    others = _find_hosts_with_changed_peers(unit, row) | end_publications_of(unit, row.id)
    revisions = increment_revisions(unit, own | others)
    removed = [{"leaving": row.id, "on": element, "revision": revisions[element].revision} for element in sorted(own)]
    if removed:
        unit.connection.execute(_REMOVE, removed)


def _find_hosts_with_changed_peers(unit: Unit, row: ClusterRow) -> frozenset[str]:
    """Return the hosts of a member's network; empty if the member has no guests or the network ends.

    An unreadable cluster counts as a cluster with guests: an unneeded revision changes nothing on a host.
    """
    if row.network is None or not _may_have_guests(row):
        return frozenset()
    network = unit.session.get_one(ClusterRow, row.network)
    return find_network_hosts(unit, network.id) if network.state in WANTED_STATES else frozenset()


def _may_have_guests(row: ClusterRow) -> bool:
    try:
        return bool(parse_current_spec(row).guests)
    except ValueError as error:
        log.fault("cluster_unreadable", error, cluster=row.id)
        return True


def _drain_members(unit: Unit, row: ClusterRow) -> None:
    for member in read_clusters(unit, _READ_WANTED_MEMBERS, {"network_id": row.id}):
        drain_cluster(unit, member, f"its network, cluster {row.key}, ended: {row.reason}")


def _release_claims(unit: Unit, row: ClusterRow) -> None:
    """Release all claims of a cluster, when every element has confirmed the cluster's removal."""
    for vlan, site in unit.connection.execute(_READ_CLAIMS, {"network": row.id}).all():
        record_audit(unit, "number_freed", why=f"VLAN {vlan} at {site}", cluster_id=row.id)
    release_vlans(unit, row.id)
    release_service_id(unit, row)


def increment_versions(unit: Unit, selected: ClusterSelection, **parameters: object) -> None:
    """Increment the versions of the selected clusters whose state can still change, and publish these changes."""
    unit.session.flush()
    keys = unit.connection.execute(selected.increment_versions, parameters).scalars().all()
    for row in unit.session.identity_map.values() if keys else ():
        if isinstance(row, ClusterRow):
            unit.session.expire(row)
    unit.changed.update(f"cluster:{key}" for key in keys)


MAX_REFUSAL_CHARACTERS = 1000


def fail_refused_clusters(unit: Unit, element: str, refused: Mapping[str, str], drain_deadline: timedelta) -> None:
    """For each cluster that ``element`` refused, change the state ``configuring`` to ``failing``.

    Idempotent. ``refused`` maps the IDs of clusters or networks to errors. A cluster that was active does not fail: the
    element sets it up again. If a network fails, its members end, too. Raise NotFound for an unknown element.
    """
    unit.require_everything()
    row = require_element(unit, element)
    is_configuring = ClusterRow.state == ClusterState.CONFIGURING, is_unsettled_on(element)
    for cluster in find_clusters(unit, *is_configuring) if refused else ():
        if cluster.id not in refused and cluster.network not in refused:
            continue
        if cluster.state != ClusterState.CONFIGURING:
            continue  # this member is draining already, because its network failed earlier in this loop
        message = (refused.get(cluster.id) or refused[str(cluster.network)])[:MAX_REFUSAL_CHARACTERS]
        apply_transition(
            unit,
            cluster,
            ClusterTransition(ClusterState.FAILING, f"{row.kind} {element} at {row.site} refused: {message}"),
        )
    apply_due_transitions(unit, drain_deadline, ON_ELEMENT, element=element)
