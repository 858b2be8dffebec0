"""What elements are to carry and were seen to carry: the store's side of every converger and agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from sqlalchemy import ColumnElement, func, or_, select, true, update

from sbf_service.store.audit import record
from sbf_service.store.carried import circuits_carried, ports_carried
from sbf_service.store.host_changes import confirmed_change
from sbf_service.store.moves import settle_clusters, touch_clusters
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import element_row
from sbf_service.store.saves import record_saved
from sbf_service.store.session import Unit
from sbf_service.store.standing import has_part, live_clusters, on_element
from sbf_service.store.tables import REACHED, ClusterRow, ElementRow, PlacementRow
from sbf_service.store.troubles import NOTHING, written
from sbf_service.wanted import Wanted, wanted
from virtcloud.model.device import DEVICES, DeviceCarried
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import Conflict
from virtcloud.model.values import Name
from virtcloud.model.views import ElementView
from virtcloud.model.wanted import HostWanted, WantedDocument

MOST_TROUBLE_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Concern:
    """Trouble on an element with single clusters, which does not concern the others.

    ``clusters`` has what is about each, by its id. ``blocked`` are those networks that it does not carry wholly.
    """

    message: str
    clusters: Mapping[str, str] = field(default_factory=dict)
    blocked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Target:
    """What an element must carry, and the revisions that belong to it, read in one transaction."""

    revision: int
    confirmed: int
    wanted: Wanted


def target_of(unit: Unit, name: str) -> Target:
    """Read what an element must carry. Raises NotFound."""
    row = element_row(unit, name)
    clusters = live_clusters(unit, _placed(name))
    found = wanted(Name(name), read_topology(unit), clusters)
    return Target(row.wanted_revision, row.confirmed_revision, found)


def kept_by(unit: Unit, name: str) -> Wanted:
    """Read what an element was confirmed to carry and is to carry on. Raises NotFound."""
    confirmed = element_row(unit, name).confirmed_revision
    added = (
        PlacementRow.element == name,
        PlacementRow.removed_revision.is_(None),
        PlacementRow.added_revision <= confirmed,
        PlacementRow.blocked.is_(False),
    )
    clusters = live_clusters(unit, ClusterRow.id.in_(select(PlacementRow.cluster_id).where(*added)))
    return wanted(Name(name), read_topology(unit), clusters)


def confirm(  # noqa: PLR0913, PLR0917 - what is confirmed, and what was read
    unit: Unit,
    name: str,
    revision: int,
    drain_deadline: timedelta,
    carried: DeviceCarried | None = None,
    concern: Concern | None = None,
) -> None:
    """Write that an element was read to carry exactly what ``revision`` wants; moves the clusters that waited for it.

    May be repeated; an older revision than one confirmed already changes nothing. Raises Conflict for one that is not
    wanted yet. ``carried`` is what a device was read to carry, and has in its startup configuration. ``concern`` is
    trouble with single clusters; the others are confirmed.
    """
    row = element_row(unit, name)
    if revision > row.wanted_revision:
        raise Conflict(f"{row.kind} {name} confirmed revision {revision}, but the newest is {row.wanted_revision}")
    _seen(unit, row, carried)
    if revision < row.confirmed_revision:
        return
    before, row.confirmed_revision = row.confirmed_revision, revision
    known = before if row.reachable else 0
    highest, row.highest_confirmed = row.highest_confirmed, max(row.highest_confirmed, revision)
    text, of_clusters = (
        (concern.message, written(concern.clusters, MOST_TROUBLE_CHARACTERS)) if concern else (None, None)
    )
    is_news, well = text is not None and row.trouble != text, row.trouble == text and row.reachable
    row.trouble, row.troubles, row.reachable = text, of_clusters, True
    changed = row.kind in DEVICES and _mark_blocked(unit, name, concern.blocked if concern else frozenset())
    if before == revision and well and not changed:
        return
    unit.session.flush()
    if is_news:
        record(unit, "element_trouble", element=name, why=text)
    change = None if row.kind in DEVICES else confirmed_change(unit, name, known, highest, revision)
    record(unit, "element_confirmed", element=name, why=f"revision {revision}", difference=change)
    touch_clusters(unit, _progressed(name, before, revision) if well and not changed else on_element(name))
    settle_clusters(unit, drain_deadline, on_element(name))


def set_trouble(  # noqa: PLR0913 - what is wrong, and with what
    unit: Unit,
    name: str,
    message: str,
    drain_deadline: timedelta,
    *,
    reachable: bool = True,
    clusters: Mapping[str, str] = NOTHING,
) -> bool:
    """Write what an element says is wrong; clusters that were well degrade when it cannot be reached. Repeatable.

    ``clusters`` has what is about single clusters, by their ids. Says whether it is news.
    """
    row = element_row(unit, name)
    text, of_clusters = message[:MOST_TROUBLE_CHARACTERS], written(clusters, MOST_TROUBLE_CHARACTERS)
    if (row.trouble, row.troubles, row.reachable) == (text, of_clusters, reachable):
        return False
    row.trouble, row.troubles, row.reachable = text, of_clusters, reachable
    unit.session.flush()
    record(unit, "element_trouble", element=name, why=text)
    touch_clusters(unit, on_element(name))
    settle_clusters(unit, drain_deadline, on_element(name))
    return True


def report_trouble(unit: Unit, name: str, message: str, clusters: Mapping[str, str], drain_deadline: timedelta) -> bool:
    """Record what an agent says is wrong. Return whether it is news.

    What an agent that was silent confirmed before is not believed: its machine may have restarted meanwhile.
    """
    if not element_row(unit, name).reachable:
        set_back(unit, name, "its agent was silent, and has trouble since", drain_deadline)
    return set_trouble(unit, name, message, drain_deadline, clusters=clusters)


def set_back(unit: Unit, name: str, why: str, drain_deadline: timedelta) -> None:
    """Believe nothing of what an element confirmed: it restarted or was found changed. Its clusters degrade."""
    row = element_row(unit, name)
    if row.confirmed_revision == 0:
        return
    row.confirmed_revision = 0
    unit.session.flush()
    unit.changed.add(f"element:{name}")
    record(unit, "element_drifted", element=name, why=why)
    touch_clusters(unit, on_element(name))
    settle_clusters(unit, drain_deadline, on_element(name))


def wanted_document(unit: Unit, name: str) -> WantedDocument:
    """Return what a host or gateway must carry, as its agent fetches it. Raise NotFound, Conflict for a device.

    An agent that was silent is told that it has confirmed nothing, so that it reads its machine and confirms anew.
    """
    target, row = target_of(unit, name), element_row(unit, name)
    if not isinstance(target.wanted, HostWanted):
        raise Conflict(f"{row.kind} {name} has no agent: SBF configures it")
    confirmed = target.confirmed if row.reachable else 0
    return WantedDocument(
        element=Name(name), revision=target.revision, confirmed_revision=confirmed, wanted=target.wanted
    )


def element_views(unit: Unit) -> list[ElementView]:
    """Give every element of the topology, in name order."""
    found = select(ElementRow).where(REACHED).order_by(ElementRow.name)
    return [_view(row) for row in unit.session.scalars(found)]


def element_view(unit: Unit, name: str) -> ElementView:
    """Give one element. Raises NotFound."""
    return _view(element_row(unit, name))


def _view(row: ElementRow) -> ElementView:
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
        carried=ports_carried(row),
        circuits=circuits_carried(row),
        unsaved_since=row.unsaved_since,
    )


def _seen(unit: Unit, row: ElementRow, carried: DeviceCarried | None) -> None:
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


def _placed(element: str) -> ColumnElement[bool]:
    """Select the clusters that this element is to carry: it has a part in them that was not removed."""
    kept = PlacementRow.element == element, PlacementRow.removed_revision.is_(None)
    return ClusterRow.id.in_(select(PlacementRow.cluster_id).where(*kept))


def _progressed(element: str, before: int, after: int) -> ColumnElement[bool]:
    """Select the clusters whose part on this element these revisions complete."""
    awaited = func.coalesce(PlacementRow.removed_revision, PlacementRow.added_revision)
    newly = PlacementRow.element == element, awaited > before, awaited <= after
    return has_part(*newly)
