"""The wanted state of elements, their confirmations and their error reports.

Workers confirm the revisions of switches and edges. Agents confirm the revisions of hosts and gateways. An agent
reports only the number of the confirmed revision. SBF computes the change on the host from the revisions, and records
this change together with the confirmation.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select, update

from sbf_service.domain.dry_run import plan_segments
from sbf_service.domain.error_report import NO_CLUSTER_ERRORS, format_cluster_errors
from sbf_service.domain.guest_power import apply_guest_powers, list_cluster_ids
from sbf_service.domain.wanted import WantedState, compute_wanted
from sbf_service.store.capacity import make_capacity
from sbf_service.store.cluster_queries import (
    UNSETTLED,
    find_clusters,
    has_placement,
    has_placement_on,
    make_live_clusters,
    read_live_clusters,
    split_ids,
)
from sbf_service.store.gateway_addresses import add_gateway_interfaces
from sbf_service.store.guest_power import read_guest_powers
from sbf_service.store.guest_seeds import add_network_seeds
from sbf_service.store.network_routers import add_network_routers, replace_routers, take_over_routers
from sbf_service.store.observed_state import parse_observed_circuits, parse_observed_ports, record_saved
from sbf_service.store.publications import add_published_ports
from sbf_service.store.revisions import require_element
from sbf_service.store.service_nodes import add_network_services
from sbf_service.store.ssh_grants import add_ssh_access
from sbf_service.store.tables import IS_RECONCILED, ClusterRow, ElementRow, PlacementRow
from sbf_service.store.transitions import apply_due_transitions, increment_versions
from sbf_service.store.unit_of_work import Unit, read_topology, record_audit
from sbf_service.store.vpn_grants import add_vpn
from virtcloud.model.changes import HostDifference
from virtcloud.model.edge import DEVICE_KINDS, DeviceObserved
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ElementView
from virtcloud.model.wanted import HostWanted, WantedDocument


def compute_confirmed_change(  # noqa: PLR0913, PLR0917 - the revisions before and after the confirmation
    unit: Unit, host: str, before: int, highest: int, revision: int, marked: Collection[str] = ()
) -> HostDifference | None:
    """Return the clusters that a host set up and the clusters that it removed when it confirmed ``revision``.

    Return None if there are no such clusters. ``before`` is the revision that was confirmed until now. ``before`` is 0
    after a reset, because the host then sets up all its clusters again. ``highest`` is the highest revision that the
    host ever confirmed. Removals up to ``highest`` are already recorded, except those of the ``marked`` clusters, whose
    mark `blocked` has just changed.
    """
    added_at, removed_at = PlacementRow.added_revision, PlacementRow.removed_revision
    is_added = and_(added_at > before, added_at <= revision, removed_at.is_(None))
    is_new = or_(removed_at > highest, PlacementRow.cluster_id.in_(marked)) if marked else removed_at > highest
    is_removed = and_(is_new, removed_at <= revision, PlacementRow.blocked.is_(False))
    here = select(PlacementRow.cluster_id).where(PlacementRow.element == host)
    added = make_live_clusters(unit, find_clusters(unit, ClusterRow.id.in_(here.where(is_added))))
    removed = find_clusters(unit, ClusterRow.id.in_(here.where(is_removed)))
    difference = HostDifference(
        add=plan_segments(Name(host), read_topology(unit), added),
        remove=tuple(sorted({ClusterKey(row.key) for row in removed})),
    )
    return difference or None


MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ElementClusterErrors:
    """Errors on an element that each concern a single cluster.

    ``clusters`` maps cluster IDs to errors. ``blocked`` has the IDs of networks that the element carries only in part.
    ``remaining`` has the IDs of clusters that the element could not remove.
    """

    message: str
    clusters: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()
    remaining: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """The wanted state and the revisions of an element, read in one transaction."""

    revision: int
    confirmed: int
    wanted: WantedState


def read_wanted_revision(unit: Unit, name: str) -> WantedRevision:
    """Return the wanted state of an element. Raise NotFound for an unknown element."""
    row = require_element(unit, name)
    clusters = read_live_clusters(unit, _is_placed_on(name))
    wanted = compute_wanted(Name(name), read_topology(unit), clusters)
    if isinstance(wanted, HostWanted):
        wanted = apply_guest_powers(wanted, read_guest_powers(unit, list_cluster_ids(wanted)))
    return WantedRevision(row.wanted_revision, row.confirmed_revision, wanted)


def read_confirmed_state(unit: Unit, name: str) -> WantedState:
    """Return the confirmed part of an element's wanted state. Raise NotFound for an unknown element."""
    confirmed = require_element(unit, name).confirmed_revision
    added = (
        PlacementRow.element == name,
        PlacementRow.removed_revision.is_(None),
        PlacementRow.added_revision <= confirmed,
        PlacementRow.blocked.is_(False),
    )
    clusters = read_live_clusters(unit, ClusterRow.id.in_(select(PlacementRow.cluster_id).where(*added)))
    return compute_wanted(Name(name), read_topology(unit), clusters)


def confirmation_topic(name: str) -> str:
    """Return the change topic of an element's confirmations."""
    return f"confirmed:{name}"


def confirm_revision(  # noqa: PLR0913, PLR0917 - the confirmed revision and the reading
    unit: Unit,
    name: str,
    revision: int,
    drain_deadline: timedelta,
    carried: DeviceObserved | None = None,
    errors: ElementClusterErrors | None = None,
) -> None:
    """Record that an element carries exactly ``revision``, and apply the transitions that follow; idempotent.

    A revision lower than the confirmed revision changes nothing. ``carried`` is the observed and saved state of a
    device. ``errors`` has errors of single clusters. The clusters of the networks in ``errors.blocked`` are not
    confirmed; all other clusters are confirmed. An agent's errors are what these clusters still wait for. The clusters
    in ``errors.remaining`` do not count as removed, so their VLAN IDs stay claimed. Raise Conflict for a revision that
    does not exist.
    """
    row = require_element(unit, name)
    if revision > row.wanted_revision:
        raise Conflict(f"{row.kind} {name} confirmed revision {revision}, but the newest is {row.wanted_revision}")
    _record_reading(unit, row, carried)
    if revision < row.confirmed_revision:
        return
    unit.changed.add(confirmation_topic(name))
    former = _record_confirmation(row, revision, errors)
    marked = _mark_blocked(unit, name, errors or ElementClusterErrors(""))
    is_unchanged = not marked and former.reachable and former.trouble == row.trouble
    if former.confirmed == revision and is_unchanged:
        return
    unit.session.flush()
    if row.kind == ElementKind.GATEWAY and not former.reachable:
        take_over_routers(unit, Name(name))
    is_agents = row.kind not in DEVICE_KINDS
    if is_agents and former.confirmed == revision and former.reachable and errors is not None and not marked:
        increment_versions(unit, has_placement_on(name))  # an agent reports progress
        return
    if not is_agents and row.trouble not in {None, former.trouble}:
        record_audit(unit, "element_trouble", element=name, why=row.trouble)
    before = former.confirmed if former.reachable else 0
    change = compute_confirmed_change(unit, name, before, former.highest, revision, marked) if is_agents else None
    record_audit(unit, "element_confirmed", element=name, why=f"revision {revision}", difference=change)
    is_completed = _is_completed_by(name, former.confirmed, revision)
    increment_versions(unit, is_completed if is_unchanged else has_placement_on(name))
    apply_due_transitions(unit, drain_deadline, has_placement_on(name))


@dataclass(frozen=True, slots=True)
class _FormerConfirmation:
    """What was recorded of an element before a confirmation."""

    confirmed: int
    highest: int
    trouble: str | None
    reachable: bool


def _record_confirmation(row: ElementRow, revision: int, errors: ElementClusterErrors | None) -> _FormerConfirmation:
    """Record a confirmed revision and its errors. Return what was recorded before."""
    former = _FormerConfirmation(row.confirmed_revision, row.highest_confirmed, row.trouble, row.reachable)
    row.confirmed_revision, row.highest_confirmed = revision, max(former.highest, revision)
    row.trouble = errors.message if errors else None
    row.troubles = format_cluster_errors(errors.clusters, MAX_ERROR_CHARACTERS) if errors else None
    row.reachable = True
    return former


def describe_exceptions(
    unit: Unit, name: str, incomplete: Mapping[str, str] | None, remaining: Mapping[str, str] | None
) -> ElementClusterErrors | None:
    """Return the exceptions from a host's confirmation as the report of the host; None for no exceptions.

    ``incomplete`` maps cluster IDs to what the clusters still wait for, and ``remaining`` to errors of their removal.
    """
    texts = {**(incomplete or {}), **(remaining or {})}
    if not texts:
        return None
    keys = {
        row.id: row.key
        for ids in split_ids(texts)
        for row in find_clusters(unit, ClusterRow.id.in_(ids), UNSETTLED, has_placement_on(name))
    }
    clusters = {cluster: text for cluster, text in texts.items() if cluster in keys}
    message = "; ".join(f"cluster {keys.get(cluster, cluster)}: {text}" for cluster, text in texts.items())
    return ElementClusterErrors(
        message[:MAX_ERROR_CHARACTERS],
        clusters,
        blocked=frozenset(clusters.keys() & (incomplete or {}).keys()),
        remaining=frozenset(clusters.keys() & (remaining or {}).keys()),
    )


def record_error(  # noqa: PLR0913 - the parts of an error report
    unit: Unit,
    name: str,
    message: str,
    drain_deadline: timedelta,
    *,
    reachable: bool = True,
    clusters: Mapping[str, str] = NO_CLUSTER_ERRORS,
) -> bool:
    """Record the error report of an element; idempotent. Return whether the report is new.

    If the element is not ``reachable``, active clusters become degraded. ``clusters`` maps cluster IDs to errors that
    each concern a single cluster.
    """
    row = require_element(unit, name)
    text, of_clusters = message[:MAX_ERROR_CHARACTERS], format_cluster_errors(clusters, MAX_ERROR_CHARACTERS)
    if (row.trouble, row.troubles, row.reachable) == (text, of_clusters, reachable):
        return False
    row.trouble, row.troubles, row.reachable = text, of_clusters, reachable
    unit.session.flush()
    if not reachable and row.kind == ElementKind.GATEWAY:
        replace_routers(unit, Name(name))
    record_audit(unit, "element_trouble", element=name, why=text)
    increment_versions(unit, has_placement_on(name))
    apply_due_transitions(unit, drain_deadline, has_placement_on(name))
    return True


def record_agent_error(
    unit: Unit, name: str, message: str, clusters: Mapping[str, str], drain_deadline: timedelta
) -> bool:
    """Record the error report of an agent. Return whether the report is new.

    If the agent was stale, its earlier confirmations are reset, because its host may have restarted.
    """
    if not require_element(unit, name).reachable:
        reset_confirmation(unit, name, "the agent was stale and now reports an error", drain_deadline)
    return record_error(unit, name, message, drain_deadline, clusters=clusters)


def reset_confirmation(unit: Unit, name: str, why: str, drain_deadline: timedelta) -> None:
    """Reset the confirmed revision of an element that restarted or has drifted.

    Clusters on the element become degraded.
    """
    row = require_element(unit, name)
    if row.confirmed_revision == 0:
        return
    row.confirmed_revision = 0
    unit.session.flush()
    unit.changed.add(f"element:{name}")
    record_audit(unit, "element_drifted", element=name, why=why)
    increment_versions(unit, has_placement_on(name))
    apply_due_transitions(unit, drain_deadline, has_placement_on(name))


_ADDITIONS = (
    add_vpn,
    add_gateway_interfaces,
    add_network_routers,
    add_network_services,
    add_ssh_access,
    add_published_ports,
)


def make_wanted_document(unit: Unit, name: str) -> WantedDocument:
    """Return the wanted state of a host or gateway for its agent, with the seeds of its guests, or its VPN servers.

    For an agent that was stale, the confirmed revision in the document is 0, so that the agent reads its host again.
    Raise NotFound for an unknown element. Raise Conflict for a device.
    """
    read, row = read_wanted_revision(unit, name), require_element(unit, name)
    if not isinstance(read.wanted, HostWanted):
        raise Conflict(f"{row.kind} {name} has no agent: SBF configures it")
    wanted = add_network_seeds(unit, read.wanted)
    for add in _ADDITIONS:
        wanted = add(unit, name, wanted)
    return WantedDocument(
        element=Name(name),
        revision=read.revision,
        confirmed_revision=read.confirmed if row.reachable else 0,
        incomplete=tuple(unit.connection.execute(_READ_BLOCKED, {"element": name}).scalars()),
        wanted=wanted,
    )


_READ_BLOCKED = (
    select(PlacementRow.cluster_id)
    .where(PlacementRow.element == bindparam("element"), PlacementRow.blocked)
    .order_by(PlacementRow.cluster_id)
)


def make_element_views(unit: Unit) -> list[ElementView]:
    """Return the views of all elements, in the order of their names."""
    found = select(ElementRow).where(IS_RECONCILED).order_by(ElementRow.name)
    return [_format_element(row) for row in unit.session.scalars(found)]


def make_element_view(unit: Unit, name: str) -> ElementView:
    """Return the view of an element. Raise NotFound for an unknown element."""
    return _format_element(require_element(unit, name))


def _format_element(row: ElementRow) -> ElementView:
    return ElementView(
        name=Name(row.name),
        kind=ElementKind(row.kind),
        site=Name(row.site),
        wanted_revision=row.wanted_revision,
        confirmed_revision=row.confirmed_revision,
        trouble=row.trouble,
        reachable=row.reachable,
        last_seen=row.last_seen,
        read_at=row.carried_at,
        carried=parse_observed_ports(row),
        circuits=parse_observed_circuits(row),
        unsaved_since=row.unsaved_since,
        capacity=make_capacity(row),
    )


def _record_reading(unit: Unit, row: ElementRow, carried: DeviceObserved | None) -> None:
    row.last_seen = row.checked_at = unit.now
    if carried is not None:
        record_saved(unit, row, carried)


def _mark_blocked(unit: Unit, name: str, errors: ElementClusterErrors) -> frozenset[str]:
    """Mark the placements that an element confirmed neither as complete nor as removed; unmark all others.

    These are the placements of the networks in ``errors.blocked`` and, of clusters that are not wanted, the placements
    of ``errors.remaining``. Return the IDs of the clusters whose mark changed.
    """
    networks, remaining = errors.blocked, errors.remaining
    if not (networks or remaining) and unit.connection.execute(_READ_BLOCKED, {"element": name}).first() is None:
        return frozenset()  # the usual case, which is fifteen times faster with a constant statement
    stays = PlacementRow.removed_revision.is_(None)
    clusters = select(ClusterRow.id).where(or_(ClusterRow.id.in_(networks), ClusterRow.network.in_(networks)))
    is_blocked = or_(
        and_(stays, PlacementRow.cluster_id.in_(clusters)), and_(~stays, PlacementRow.cluster_id.in_(remaining))
    )
    concerned = or_(stays, PlacementRow.blocked, PlacementRow.cluster_id.in_(remaining))
    marked = update(PlacementRow).where(PlacementRow.element == name, concerned, PlacementRow.blocked != is_blocked)
    marked = marked.values(blocked=~PlacementRow.blocked).returning(PlacementRow.cluster_id)
    return frozenset(unit.session.scalars(marked.execution_options(synchronize_session=False)).all())


def _is_placed_on(element: str) -> ColumnElement[bool]:
    """Return the condition that a cluster has a placement on ``element`` that is not being removed."""
    staying = PlacementRow.element == element, PlacementRow.removed_revision.is_(None)
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(*staying))


def _is_completed_by(element: str, before: int, after: int) -> ColumnElement[bool]:
    """Return the condition that a revision from ``before`` + 1 to ``after`` completes a placement on ``element``."""
    awaited = func.coalesce(PlacementRow.removed_revision, PlacementRow.added_revision)
    newly = PlacementRow.element == element, awaited > before, awaited <= after
    return has_placement(*newly)
