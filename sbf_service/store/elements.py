"""What elements are to carry and were seen to carry: the store's side of every converger and agent.

What a host or gateway did when it confirmed a revision, told by what that revision brought (DESIGN.md §7.8).

An agent says how far it is, not what it did: it may die between the two. What it must have done follows from the
revisions, and is written in the transaction that confirms them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import ColumnElement, and_, func, or_, select, true, update

from sbf_service.domain.dry_run import plan_segments
from sbf_service.domain.error_report import NO_CLUSTER_ERRORS, format_cluster_errors
from sbf_service.domain.wanted import WantedState, compute_wanted
from sbf_service.store.cluster_queries import (
    find_clusters,
    has_placement,
    has_placement_on,
    make_live_clusters,
    read_live_clusters,
)
from sbf_service.store.observed_state import parse_observed_circuits, parse_observed_ports, record_saved
from sbf_service.store.revisions import require_element
from sbf_service.store.tables import IS_RECONCILED, ClusterRow, ElementRow, PlacementRow
from sbf_service.store.transitions import apply_due_transitions, increment_versions
from sbf_service.store.unit_of_work import Unit, read_topology, record_audit
from virtcloud.model.changes import HostDifference
from virtcloud.model.edge import DEVICE_KINDS, DeviceObserved
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ElementView
from virtcloud.model.wanted import HostWanted, WantedDocument


def compute_confirmed_change(unit: Unit, host: str, before: int, highest: int, revision: int) -> HostDifference | None:
    """Return the clusters that a host set up and removed when it confirmed ``revision``; None when there are none.

    ``before`` is the revision that it had confirmed until now, 0 after a reset: then it set up again whatever stays.
    ``highest`` is the newest revision that it ever confirmed: removals up to that one were recorded then.
    """
    new, gone = PlacementRow.added_revision, PlacementRow.removed_revision
    came = and_(new > before, new <= revision, gone.is_(None))
    went = and_(gone > highest, gone <= revision)
    here = select(PlacementRow.cluster_id).where(PlacementRow.element == host)
    added = make_live_clusters(unit, find_clusters(unit, ClusterRow.id.in_(here.where(came))))
    removed = find_clusters(unit, ClusterRow.id.in_(here.where(went)))
    found = HostDifference(
        add=plan_segments(Name(host), read_topology(unit), added),
        remove=tuple(sorted({ClusterKey(row.key) for row in removed})),
    )
    return found or None


MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class ElementClusterErrors:
    """Trouble on an element with single clusters, which does not concern the others.

    ``clusters`` has what is about each, by its id. ``blocked`` are those networks that it does not carry wholly.
    """

    message: str
    clusters: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WantedRevision:
    """What an element must carry, and the revisions that belong to it, read in one transaction."""

    revision: int
    confirmed: int
    wanted: WantedState


def read_wanted_revision(unit: Unit, name: str) -> WantedRevision:
    """Read what an element must carry. Raises NotFound."""
    row = require_element(unit, name)
    clusters = read_live_clusters(unit, _is_placed_on(name))
    found = compute_wanted(Name(name), read_topology(unit), clusters)
    return WantedRevision(row.wanted_revision, row.confirmed_revision, found)


def read_confirmed_state(unit: Unit, name: str) -> WantedState:
    """Read what an element was confirmed to carry and is to carry on. Raises NotFound."""
    confirmed = require_element(unit, name).confirmed_revision
    added = (
        PlacementRow.element == name,
        PlacementRow.removed_revision.is_(None),
        PlacementRow.added_revision <= confirmed,
        PlacementRow.blocked.is_(False),
    )
    clusters = read_live_clusters(unit, ClusterRow.id.in_(select(PlacementRow.cluster_id).where(*added)))
    return compute_wanted(Name(name), read_topology(unit), clusters)


def confirm_revision(  # noqa: PLR0913, PLR0917 - what is confirmed, and what was read
    unit: Unit,
    name: str,
    revision: int,
    drain_deadline: timedelta,
    carried: DeviceObserved | None = None,
    concern: ElementClusterErrors | None = None,
) -> None:
    """Write that an element was read to carry exactly what ``revision`` wants; moves the clusters that waited for it.

    May be repeated; an older revision than one confirmed already changes nothing. Raises Conflict for one that is not
    wanted yet. ``carried`` is what a device was read to carry, and has in its startup configuration. ``concern`` is
    trouble with single clusters; the others are confirmed.
    """
    row = require_element(unit, name)
    if revision > row.wanted_revision:
        raise Conflict(f"{row.kind} {name} confirmed revision {revision}, but the newest is {row.wanted_revision}")
    _record_reading(unit, row, carried)
    if revision < row.confirmed_revision:
        return
    before, row.confirmed_revision = row.confirmed_revision, revision
    known = before if row.reachable else 0
    highest, row.highest_confirmed = row.highest_confirmed, max(row.highest_confirmed, revision)
    text, of_clusters = (
        (concern.message, format_cluster_errors(concern.clusters, MAX_ERROR_CHARACTERS)) if concern else (None, None)
    )
    is_news, well = text is not None and row.trouble != text, row.trouble == text and row.reachable
    row.trouble, row.troubles, row.reachable = text, of_clusters, True
    changed = row.kind in DEVICE_KINDS and _mark_blocked(unit, name, concern.blocked if concern else frozenset())
    if before == revision and well and not changed:
        return
    unit.session.flush()
    if is_news:
        record_audit(unit, "element_trouble", element=name, why=text)
    change = None if row.kind in DEVICE_KINDS else compute_confirmed_change(unit, name, known, highest, revision)
    record_audit(unit, "element_confirmed", element=name, why=f"revision {revision}", difference=change)
    increment_versions(
        unit, _is_completed_by(name, before, revision) if well and not changed else has_placement_on(name)
    )
    apply_due_transitions(unit, drain_deadline, has_placement_on(name))


def record_error(  # noqa: PLR0913 - what is wrong, and with what
    unit: Unit,
    name: str,
    message: str,
    drain_deadline: timedelta,
    *,
    reachable: bool = True,
    clusters: Mapping[str, str] = NO_CLUSTER_ERRORS,
) -> bool:
    """Write what an element says is wrong; clusters that were well degrade when it cannot be reached. Repeatable.

    ``clusters`` has what is about single clusters, by their ids. Says whether it is news.
    """
    row = require_element(unit, name)
    text, of_clusters = message[:MAX_ERROR_CHARACTERS], format_cluster_errors(clusters, MAX_ERROR_CHARACTERS)
    if (row.trouble, row.troubles, row.reachable) == (text, of_clusters, reachable):
        return False
    row.trouble, row.troubles, row.reachable = text, of_clusters, reachable
    unit.session.flush()
    record_audit(unit, "element_trouble", element=name, why=text)
    increment_versions(unit, has_placement_on(name))
    apply_due_transitions(unit, drain_deadline, has_placement_on(name))
    return True


def record_agent_error(
    unit: Unit, name: str, message: str, clusters: Mapping[str, str], drain_deadline: timedelta
) -> bool:
    """Record what an agent says is wrong. Return whether it is news.

    What an agent that was silent confirmed before is not believed: its machine may have restarted meanwhile.
    """
    if not require_element(unit, name).reachable:
        reset_confirmation(unit, name, "its agent was silent, and has trouble since", drain_deadline)
    return record_error(unit, name, message, drain_deadline, clusters=clusters)


def reset_confirmation(unit: Unit, name: str, why: str, drain_deadline: timedelta) -> None:
    """Believe nothing of what an element confirmed: it restarted or was found changed. Its clusters degrade."""
    row = require_element(unit, name)
    if row.confirmed_revision == 0:
        return
    row.confirmed_revision = 0
    unit.session.flush()
    unit.changed.add(f"element:{name}")
    record_audit(unit, "element_drifted", element=name, why=why)
    increment_versions(unit, has_placement_on(name))
    apply_due_transitions(unit, drain_deadline, has_placement_on(name))


def make_wanted_document(unit: Unit, name: str) -> WantedDocument:
    """Return what a host or gateway must carry, as its agent fetches it. Raise NotFound, Conflict for a device.

    An agent that was silent is told that it has confirmed nothing, so that it reads its machine and confirms anew.
    """
    target, row = read_wanted_revision(unit, name), require_element(unit, name)
    if not isinstance(target.wanted, HostWanted):
        raise Conflict(f"{row.kind} {name} has no agent: SBF configures it")
    confirmed = target.confirmed if row.reachable else 0
    return WantedDocument(
        element=Name(name), revision=target.revision, confirmed_revision=confirmed, wanted=target.wanted
    )


def make_element_views(unit: Unit) -> list[ElementView]:
    """Give every element of the topology, in name order."""
    found = select(ElementRow).where(IS_RECONCILED).order_by(ElementRow.name)
    return [_format_element(row) for row in unit.session.scalars(found)]


def make_element_view(unit: Unit, name: str) -> ElementView:
    """Give one element. Raises NotFound."""
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
    )


def _record_reading(unit: Unit, row: ElementRow, carried: DeviceObserved | None) -> None:
    row.last_seen = row.checked_at = unit.now
    if carried is not None:
        record_saved(unit, row, carried)


def _mark_blocked(unit: Unit, name: str, networks: frozenset[str]) -> bool:
    """Mark the parts of these networks on an element as blocked, and no others. Return whether that was news."""
    here = PlacementRow.element == name, PlacementRow.removed_revision.is_(None)
    theirs = select(ClusterRow.id).where(or_(ClusterRow.id.in_(networks), ClusterRow.network.in_(networks)))
    wrong = PlacementRow.blocked != PlacementRow.cluster_id.in_(theirs) if networks else PlacementRow.blocked == true()
    marked = update(PlacementRow).where(*here, wrong).values(blocked=~PlacementRow.blocked)
    marked = marked.returning(PlacementRow.cluster_id).execution_options(synchronize_session=False)
    return bool(unit.session.scalars(marked).all())


def _is_placed_on(element: str) -> ColumnElement[bool]:
    """Select the clusters that this element is to carry: it has a part in them that was not removed."""
    kept = PlacementRow.element == element, PlacementRow.removed_revision.is_(None)
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(*kept))


def _is_completed_by(element: str, before: int, after: int) -> ColumnElement[bool]:
    """Select the clusters whose part on this element these revisions complete."""
    awaited = func.coalesce(PlacementRow.removed_revision, PlacementRow.added_revision)
    newly = PlacementRow.element == element, awaited > before, awaited <= after
    return has_placement(*newly)
