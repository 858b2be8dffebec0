"""The confirmations of elements. A confirmation records that an element has the wanted state of a revision.

A confirmation can exclude clusters that the element has not completely set up or removed. Workers confirm the revisions
of switches and edges, and agents confirm the revisions of hosts and gateways. For agents, SBF computes the clusters
that were set up or removed from the placements that changed since the previous confirmation, for the audit log.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import Executable, bindparam, select, union, update

from sbf_service.domain.dry_run import plan_segments
from sbf_service.domain.error_report import format_cluster_errors
from sbf_service.store.clusters.cluster_queries import IS_UNSETTLED
from sbf_service.store.clusters.guest_power import mark_unstopped_guests
from sbf_service.store.clusters.transitions import ON_ELEMENT, apply_due_transitions, increment_versions
from sbf_service.store.elements.element_clusters import COMPLETED_ON_ELEMENT, read_added_clusters, read_removed_clusters
from sbf_service.store.elements.observed_state import record_saved
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.elements.unchecked_elements import mark_checked
from sbf_service.store.networks.network_routers import take_over_routers
from sbf_service.store.networks.publication_moves import take_over_publications
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.transactions.network_scopes import read_unsettled_sites
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.changes import HostDifference
from virtcloud.model.edge import DEVICE_KINDS, DeviceObserved
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, Name

MAX_ERROR_CHARACTERS = 2000

_IS_BLOCKED_ON = (PlacementRow.element == bindparam("element"), PlacementRow.blocked)
_READ_BLOCKED: Executable = union(
    select(PlacementRow.cluster_id).where(*_IS_BLOCKED_ON),
    select(ClusterRow.network)
    .join(PlacementRow, PlacementRow.cluster_id == ClusterRow.id)
    .where(*_IS_BLOCKED_ON, PlacementRow.removed_revision.is_not(None), ClusterRow.network.is_not(None)),
).order_by("cluster_id")
_READ_UNSETTLED = (
    select(
        PlacementRow.cluster_id,
        ClusterRow.network,
        PlacementRow.blocked,
        PlacementRow.removed_revision.is_(None).label("stays"),
    )
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .where(PlacementRow.element == bindparam("element"), IS_UNSETTLED)
)


@dataclass(frozen=True, slots=True)
class ElementClusterErrors:
    """Errors of single clusters on an element, and the element's error text (``message``).

    - ``clusters``: the error text of each cluster with an error, by cluster ID.
    - ``blocked``: the IDs of clusters and networks that the element has not set up completely.
    - ``only_guests``: the IDs in ``blocked`` of clusters whose networks work. Other clusters can use these networks.
    - ``unstopped``: the guests with the power "off" that the element could not stop, by cluster ID.
    - ``remaining``: the IDs of clusters and networks that the element could not remove.
    - ``unknown``: the IDs of clusters that the element could not remove, and that have no placement on the element.
    """

    message: str
    clusters: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()
    only_guests: frozenset[str] = frozenset()
    unstopped: Mapping[str, Collection[str]] = field(default_factory=dict)
    remaining: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


def confirmation_topic(name: str) -> str:
    """Return the change topic of an element's confirmations."""
    return f"confirmed:{name}"


def confirm_revision(  # noqa: PLR0913, PLR0917 - the parameters are the parts of a confirmation
    unit: Unit,
    name: str,
    revision: int,
    drain_deadline: timedelta,
    carried: DeviceObserved | None = None,
    errors: ElementClusterErrors | None = None,
) -> None:
    """Record that an element has the wanted state of ``revision``. Then apply the due transitions. Idempotent.

    If ``revision`` is lower than the confirmed revision, record only ``carried``, and that the element was read.
    ``carried`` is the observed and saved state of a device. The clusters in ``errors`` count neither as set up nor as
    removed. Their VLAN IDs stay claimed until they count as removed. Raise NotFound for an unknown element. Raise
    Conflict for a revision that does not exist, or that is older than the last restore of the database.
    """
    row = require_element(unit, name)
    if revision > row.wanted_revision:
        raise Conflict(f"{row.kind} {name} confirmed revision {revision}, but the newest is {row.wanted_revision}")
    if revision < row.first_revision:
        raise Conflict(
            f"{row.kind} {name} confirmed revision {revision}, which it fetched before the database was restored: "
            f"expected revision {row.first_revision} or later; fetch the wanted state again"
        )
    _record_reading(unit, row, carried)
    if revision < row.confirmed_revision:
        return
    _apply_confirmation(unit, row, revision, drain_deadline, errors)
    if errors is None or not errors.unknown:
        mark_checked(unit, row)


def _apply_confirmation(
    unit: Unit, row: ElementRow, revision: int, drain_deadline: timedelta, errors: ElementClusterErrors | None
) -> None:
    name = row.name
    unit.changed.add(confirmation_topic(name))
    former = _record_confirmation(row, revision, errors)
    marked = _mark_blocked(unit, name, errors or ElementClusterErrors(""))
    has_same_errors = (former.trouble, former.troubles) == (row.trouble, row.troubles)
    is_unchanged = not marked and former.reachable and has_same_errors
    if errors is not None or (not is_unchanged and row.kind == ElementKind.GATEWAY):
        unit.require_everything()  # the confirmation can change clusters at any site
    elif not is_unchanged and unit.scope is not None:
        unit.require_sites(read_unsettled_sites(unit, name))
    if former.confirmed == revision and is_unchanged:
        return
    unit.session.flush()
    # The confirmed revision is 0 after a change of the gateway's description, with which it may be able to be a router
    # or to publish guests.
    if row.kind == ElementKind.GATEWAY and (not former.reachable or former.confirmed == 0):
        take_over_routers(unit, Name(name))
        take_over_publications(unit, Name(name))
    is_agents = row.kind not in DEVICE_KINDS
    if is_agents and former.confirmed == revision and former.reachable and errors is not None and not marked:
        increment_versions(unit, ON_ELEMENT, element=name)  # only the text of an error changed
        return
    _audit_confirmation(unit, row, former, marked)
    if is_unchanged:
        completed: dict[str, Any] = {"element": name, "before": former.confirmed, "revision": revision}
        increment_versions(unit, COMPLETED_ON_ELEMENT, **completed)
        apply_due_transitions(unit, drain_deadline, COMPLETED_ON_ELEMENT, **completed)
    else:
        increment_versions(unit, ON_ELEMENT, element=name)
        apply_due_transitions(unit, drain_deadline, ON_ELEMENT, element=name)


@dataclass(frozen=True, slots=True)
class _FormerConfirmation:
    confirmed: int
    highest: int
    trouble: str | None
    troubles: str | None
    reachable: bool


def _record_confirmation(row: ElementRow, revision: int, errors: ElementClusterErrors | None) -> _FormerConfirmation:
    former = _FormerConfirmation(
        row.confirmed_revision, row.highest_confirmed, row.trouble, row.troubles, row.reachable
    )
    row.confirmed_revision, row.highest_confirmed = revision, max(former.highest, revision)
    row.trouble = errors.message if errors else None
    row.troubles = format_cluster_errors(errors.clusters, MAX_ERROR_CHARACTERS) if errors else None
    row.reachable = True
    return former


def _audit_confirmation(unit: Unit, row: ElementRow, former: _FormerConfirmation, marked: Collection[str]) -> None:
    change = None
    if row.kind not in DEVICE_KINDS:
        change = _compute_confirmed_change(unit, row, former, marked)
    elif row.trouble not in {None, former.trouble}:
        record_audit(unit, "element_trouble", element=row.name, why=row.trouble)
    record_audit(
        unit, "element_confirmed", element=row.name, why=f"revision {row.confirmed_revision}", difference=change
    )


def _compute_confirmed_change(
    unit: Unit, row: ElementRow, former: _FormerConfirmation, marked: Collection[str]
) -> HostDifference | None:
    """Return the clusters that a host has set up or removed since ``former``, or None if there are no such clusters.

    All clusters count as set up again after a reset of the confirmed revision, or after the host was unreachable. Omit
    removals by revisions up to ``former.highest``, which the audit log already contains, except for clusters in
    ``marked``: the clusters whose column ``blocked`` this confirmation changed.
    """
    before, revision = former.confirmed if former.reachable else 0, row.confirmed_revision
    added = read_added_clusters(unit, row.name, before, revision)
    removed = read_removed_clusters(unit, row.name, former.highest, revision, marked)
    if not added and not removed:
        return None
    return HostDifference(
        add=plan_segments(Name(row.name), read_topology(unit), added) if added else (),
        remove=tuple(sorted({ClusterKey(cluster.key) for cluster in removed})),
    )


def reset_confirmation(unit: Unit, name: str, why: str, drain_deadline: timedelta) -> None:
    """Set an element's confirmed revision to 0, because the element restarted or has drifted.

    The active clusters on the element become degraded. Raise NotFound for an unknown element.
    """
    row = require_element(unit, name)
    if row.confirmed_revision == 0:
        return
    unit.require_everything()
    row.confirmed_revision = 0
    unit.session.flush()
    unit.changed.add(f"element:{name}")
    record_audit(unit, "element_drifted", element=name, why=why)
    increment_versions(unit, ON_ELEMENT, element=name)
    apply_due_transitions(unit, drain_deadline, ON_ELEMENT, element=name)


def read_blocked_clusters(unit: Unit, name: str) -> tuple[str, ...]:
    """Return the IDs of the clusters that an element confirmed neither as set up nor as removed, sorted.

    For a network's member that the element must remove, also return the network's ID: the agent may have to remove the
    network, too.
    """
    return tuple(unit.connection.execute(_READ_BLOCKED, {"element": name}).scalars())


def _record_reading(unit: Unit, row: ElementRow, carried: DeviceObserved | None) -> None:
    row.last_seen = row.checked_at = unit.now
    if carried is not None:
        record_saved(unit, row, carried)


def _mark_blocked(unit: Unit, name: str, errors: ElementClusterErrors) -> frozenset[str]:
    """Set the column ``blocked`` of an element's placements, and return the IDs of the changed clusters.

    Also mark the guests that the element could not stop: their clusters are in ``errors.blocked``.

    - If the element must carry a cluster, the placement is blocked if the cluster's ID is in ``errors.blocked``. The
      placement is also blocked if the network's ID is in ``errors.blocked``, but not in ``errors.only_guests``.
    - If the element must remove a cluster, the placement is blocked if the ID of the cluster or of its network is in
      ``errors.remaining``.
    """
    blocked, remaining = errors.blocked, errors.remaining
    if not (blocked or remaining) and not read_blocked_clusters(unit, name):
        return frozenset()  # the usual case: one constant statement, fifteen times faster than the following statements
    mark_unstopped_guests(unit, name, errors.unstopped)
    changed = []
    for row in unit.connection.execute(_READ_UNSETTLED, {"element": name}):
        clusters, networks = (blocked, blocked - errors.only_guests) if row.stays else (remaining, remaining)
        is_blocked = row.cluster_id in clusters or row.network in networks
        if row.blocked != is_blocked:
            changed.append(row.cluster_id)
    for group in split_ids(changed):
        marked = update(PlacementRow).where(PlacementRow.element == name, PlacementRow.cluster_id.in_(group))
        marked = marked.values(blocked=~PlacementRow.blocked)
        unit.session.execute(marked.execution_options(synchronize_session=False))
    return frozenset(changed)
