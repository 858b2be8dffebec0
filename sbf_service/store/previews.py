"""Dry runs: what a call would do and what an element lacks, read in one snapshot; nothing is written."""

from collections.abc import Sequence
from dataclasses import dataclass

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
from sbf_service.store.standing import (
    UNSETTLED,
    clusters_where,
    joined_by,
    live,
    live_clusters,
    on_element,
    parts_of,
)
from sbf_service.store.tables import ElementRow
from sbf_service.wanted import LiveCluster, elements_of, ports_for, wanted
from virtcloud.model.access import QuotaLimits
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.edge import EdgeWanted
from virtcloud.model.element import ElementKind
from virtcloud.model.errors import AttemptWaits
from virtcloud.model.preview import ClusterPreview, ElementDifference, HostDifference
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import Joined, Progress
from virtcloud.model.wanted import SwitchWanted

NOT_MADE = ""
"""The id of a cluster that is only asked about."""


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
) -> ClusterPreview:
    """Say what asking for this cluster would do now. Raises what :func:`put_cluster` would, and changes nothing."""
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
    found = tuple(_differences(unit, asked)) if asked.cluster.vlans else ()
    return ClusterPreview(
        key=key, created=asked.created, vlans=dict(asked.cluster.vlans), joined=_joined(unit, asked), elements=found
    )


def element_difference(unit: Unit, name: str, extra: Sequence[LiveCluster] = ()) -> ElementDifference:
    """Say what would be changed on an element now, and with ``extra`` clusters on it. Raises NotFound."""
    row = element_row(unit, name)
    made = ElementDifference(
        element=Name(row.name), kind=ElementKind(row.kind), site=Name(row.site), read_at=row.last_seen
    )
    must = wanted(Name(name), read_topology(unit), [*_on(unit, name), *extra])
    if isinstance(must, SwitchWanted):
        change = change_of(must, ports_carried(row) or {}, managed_vlans(unit, row.site))
        return made.model_copy(update={"switch": change})
    if isinstance(must, EdgeWanted):
        circuits = edge_change_of(must, circuits_carried(row) or (), managed_vlans(unit, row.site))
        return made.model_copy(update={"edge": circuits})
    return made.model_copy(update={"host": _host_difference(unit, row, extra)})


def _differences(unit: Unit, asked: _Asked) -> list[ElementDifference]:
    topology = read_topology(unit)
    extra = [asked.cluster] if asked.created else []
    elements = sorted(elements_of(ports_for(topology, asked.cluster)))
    return [element_difference(unit, name, extra) for name in elements]


def _joined(unit: Unit, asked: _Asked) -> Joined | None:
    if asked.cluster.transport is None:
        return None
    return joined_by(read_topology(unit).transport(asked.cluster.transport), asked.cluster.service)


def _on(unit: Unit, name: str) -> list[LiveCluster]:
    """Give the clusters that an element is to carry."""
    staying = _parts(unit, name, {Progress.ADDING, Progress.CONFIRMED})
    return [one for one in live_clusters(unit, on_element(name)) if one.id in staying]


def _host_difference(unit: Unit, row: ElementRow, extra: Sequence[LiveCluster]) -> HostDifference:
    adding = _parts(unit, row.name, {Progress.ADDING})
    leaving = _parts(unit, row.name, {Progress.REMOVING})
    coming = [one for one in live_clusters(unit, on_element(row.name)) if one.id in adding]
    return HostDifference(
        add=plans(Name(row.name), read_topology(unit), [*coming, *extra]), remove=tuple(sorted(leaving.values()))
    )


def _parts(unit: Unit, name: str, progress: set[Progress]) -> dict[str, ClusterKey]:
    """Give the clusters, by id, with whose part an element is so far."""
    rows = clusters_where(unit, UNSETTLED, on_element(name))
    parts = parts_of(unit, [row.id for row in rows])
    keys = {row.id: ClusterKey(row.key) for row in rows}
    return {
        cluster_id: keys[cluster_id]
        for cluster_id, found in parts.items()
        if any(part.element == name and part.progress in progress for part in found)
    }
