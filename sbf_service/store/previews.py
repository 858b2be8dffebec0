"""Dry runs: what a call would do and what an element lacks, read in one snapshot; nothing is written."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select

from sbf_service.calls import Blocked, New, decide
from sbf_service.preview import change_of, edge_change_of, plans
from sbf_service.store.asked_number import Sees, sees_none
from sbf_service.store.carried import circuits_carried, ports_carried
from sbf_service.store.choosing import Asked, choose_cluster
from sbf_service.store.keys import former_of, highest_of, latest
from sbf_service.store.pools import Reserved, managed_vlans
from sbf_service.store.quotas import NO_LIMITS, check_new
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import element_row
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, joined_by, live, live_clusters
from sbf_service.store.tables import ClusterRow, ElementRow, PlacementRow
from sbf_service.wanted import LiveCluster, PortsOn, Ways, elements_of, ports_for, wanted
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.edge import EdgeWanted
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import AttemptWaits
from virtcloud.model.preview import ClusterPreview, ElementDifference, HostDifference
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import Joined
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted

NOT_MADE = ""
"""The id of a cluster that is only asked about."""


_CONFIRMED = select(ElementRow.name, ElementRow.confirmed_revision)
_PARTS = select(PlacementRow.element, PlacementRow.cluster_id, PlacementRow.added_revision)
_LEAVING = (
    select(PlacementRow.element, ClusterRow.key)
    .join(ClusterRow, ClusterRow.id == PlacementRow.cluster_id)
    .join(ElementRow, ElementRow.name == PlacementRow.element)
    .where(UNSETTLED, PlacementRow.removed_revision > ElementRow.confirmed_revision)
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The clusters that an element is to carry, those of them that are not confirmed, and the keys of leaving ones."""

    staying: list[LiveCluster] = field(default_factory=list)
    coming: list[LiveCluster] = field(default_factory=list)
    leaving: list[ClusterKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Shown:
    """Which clusters differences are about: those that are there and ``extra``, or only those of the network of one.

    Of clusters that others have in that network, a host's difference shows nothing.
    """

    extra: tuple[LiveCluster, ...] = ()
    only: LiveCluster | None = None

    def of(self, seen: _Seen) -> _Seen:
        """Return the part of an element's clusters that is shown, with the extra ones."""
        one = self.only
        if one is None:
            return _Seen([*seen.staying, *self.extra], [*seen.coming, *self.extra], seen.leaving)
        network = [other for other in seen.staying if other.network.id == one.network.id]
        coming = [other for other in seen.coming if other.id == one.id]
        return _Seen([*network, *self.extra], [*coming, *self.extra], [])

    def vlans(self, unit: Unit, site: str) -> VlanSet:
        """Return the VLAN IDs at a site that are compared."""
        managed = managed_vlans(unit, site)
        return managed if self.only is None else managed & self.only.vlans.values()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A cluster as asked for, and whether it would be made."""

    cluster: LiveCluster
    created: bool


def preview_cluster(  # noqa: PLR0913 - as put_cluster
    unit: Unit,
    key: ClusterKey,
    request: ClusterRequest,
    reserved: Reserved,
    quota: QuotaLimits = NO_LIMITS,
    *,
    sees: Sees = sees_none,
    whole: bool = True,
) -> ClusterPreview:
    """Return what asking for this cluster would do now. Raise what :func:`put_cluster` would, and change nothing.

    ``whole`` shows everything that an element lacks; otherwise only what it lacks of this cluster and its network,
    for a caller who may not know of others' clusters.
    """
    row = latest(unit, key)
    decision = decide(key, request, former_of(row), highest_of(unit, row, request.spec.owner))
    if isinstance(decision, Blocked):
        raise AttemptWaits(decision.message)
    if isinstance(decision, New) or row is None:
        check_new(unit, quota, request.spec)
        wished = Asked(NOT_MADE, key, 0, request.spec, sees)
        asked = _Asked(choose_cluster(unit, read_topology(unit), wished, reserved).cluster, created=True)
    else:
        asked = _Asked(live(unit, [row])[0], created=False)
    found = tuple(_cluster_differences(unit, asked, whole=whole)) if asked.cluster.vlans else ()
    return ClusterPreview(
        key=key, created=asked.created, vlans=dict(asked.cluster.vlans), joined=_joined(unit, asked), elements=found
    )


def element_difference(unit: Unit, name: str) -> ElementDifference:
    """Return what would be changed on an element now. Raises NotFound."""
    (found,) = _differences(unit, [element_row(unit, name)], _Shown())
    return found


def _cluster_differences(unit: Unit, asked: _Asked, *, whole: bool) -> list[ElementDifference]:
    shown = _Shown((asked.cluster,) if asked.created else (), None if whole else asked.cluster)
    names = sorted(elements_of(ports_for(read_topology(unit), asked.cluster)))
    return _differences(unit, [element_row(unit, name) for name in names], shown)


def _joined(unit: Unit, asked: _Asked) -> Joined | None:
    if asked.cluster.transport is None:
        return None
    return joined_by(read_topology(unit).transport(asked.cluster.transport), asked.cluster.service)


def _differences(unit: Unit, rows: Sequence[ElementRow], shown: _Shown) -> list[ElementDifference]:
    """Return what would be changed on each element.

    Every cluster is loaded once, however many of the elements it is on, with its parts on these elements only.
    """
    seen, ways = _read_elements(unit, [row.name for row in rows]), Ways()
    return [_difference(unit, row, shown.of(seen[row.name]), shown, ways.ports_on) for row in rows]


def _difference(unit: Unit, row: ElementRow, seen: _Seen, shown: _Shown, ports: PortsOn) -> ElementDifference:
    name, topology = Name(row.name), read_topology(unit)
    made = ElementDifference(
        element=name, kind=ElementKind(row.kind), site=Name(row.site), read_at=row.carried_at or row.last_seen
    )
    must = wanted(name, topology, seen.staying, ports)
    if isinstance(must, SwitchWanted):
        change = change_of(must, ports_carried(row) or {}, shown.vlans(unit, row.site))
        return made.model_copy(update={"switch": change})
    if isinstance(must, EdgeWanted):
        circuits = edge_change_of(must, circuits_carried(row) or (), shown.vlans(unit, row.site))
        return made.model_copy(update={"edge": circuits})
    add, remove = plans(name, topology, seen.coming, ports), tuple(sorted(seen.leaving))
    return made.model_copy(update={"host": HostDifference(add=add, remove=remove)})


def _read_elements(unit: Unit, names: Sequence[str]) -> Mapping[str, _Seen]:
    """Return the clusters on each of these elements."""
    found: dict[str, _Seen] = defaultdict(_Seen)
    here = PlacementRow.element.in_(names)
    staying = here, PlacementRow.removed_revision.is_(None)
    ids = select(PlacementRow.cluster_id).where(*staying)
    clusters = {one.id: one for one in live_clusters(unit, ClusterRow.id.in_(ids))}
    confirmed = {
        row.name: row.confirmed_revision for row in unit.session.execute(_CONFIRMED.where(ElementRow.name.in_(names)))
    }
    for part in unit.session.execute(_PARTS.where(*staying)):
        one = clusters.get(part.cluster_id)
        if one is not None:
            found[part.element].staying.append(one)
            found[part.element].coming.extend([one] if part.added_revision > confirmed[part.element] else [])
    for row in unit.session.execute(_LEAVING.where(here)):
        found[row.element].leaving.append(ClusterKey(row.key))
    return found
