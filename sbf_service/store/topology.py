"""Changes of the topology: a new topology is prepared before its transaction, and stored if its version still fits.

A new topology must contain every transport, element and port that a cluster uses, or that may still carry a cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sbf_service.domain.gateway_access import OUTSIDE_LINK
from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_change import TopologyChange, list_path_changes
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.store.cluster_queries import find_unsettled_clusters
from sbf_service.store.live_clusters import make_live_clusters, read_live_clusters
from sbf_service.store.network_routers import replace_routers
from sbf_service.store.networks import check_access_ports_kept
from sbf_service.store.topology_documents import make_no_topology_error, read_stored_version, write_documents
from sbf_service.store.topology_elements import update_elements, update_sites
from sbf_service.store.topology_losses import check_nothing_lost
from sbf_service.store.topology_placements import update_placements
from sbf_service.store.unit_of_work import (
    TOPOLOGY_TOPIC,
    Store,
    Unit,
    read_topology,
    read_topology_version,
    record_audit,
)
from virtcloud.model.changes import PathChange
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links, share_parts

PREPARATIONS = 3
"""How often a change is prepared before its transaction. Then it is prepared inside, where no version changes."""


@dataclass(frozen=True, slots=True)
class FormerTopology:
    """The topology that a change replaces, or None, and its version. The version exists before the first topology."""

    version: int
    topology: Topology | None

    def require(self) -> Topology:
        """Return the topology. Raise NotFound if there is none."""
        if self.topology is None:
            raise make_no_topology_error()
        return self.topology

    def share_parts(self, topology: Topology) -> Topology:
        """Return ``topology`` with its links in the stored order, and with the objects of equal parts."""
        return arrange_links(topology) if self.topology is None else share_parts(topology, self.topology)


MakeTopology = Callable[[FormerTopology], Topology]
"""Returns a new topology, or raises an error, from the topology that it replaces."""


def change_topology(store: Store, make: MakeTopology, *, who: str) -> int:
    """Replace the topology by the result of ``make``; idempotent. Return the version.

    What changes is computed before the transaction, so that other calls do not wait for it. If another call changed
    the topology in between, the change is prepared again. Raise the errors of :func:`put_topology` and of ``make``.
    """
    for _ in range(PREPARATIONS):
        with store.read() as unit:
            former = _read_former(unit)
        effects = TopologyEffects(_prepare_change(former, make))
        with store.read() as unit:
            live = _read_clusters_at(unit, effects.change)
        effects.prepare(live)
        with store.change(who=who) as unit:
            if read_stored_version(unit.connection) == former.version:
                return _apply_change(unit, former, effects)
    with store.change(who=who) as unit:
        former = _read_former(unit)
        return _apply_change(unit, former, TopologyEffects(_prepare_change(former, make)))


def put_topology(unit: Unit, topology: Topology) -> None:
    """Replace the topology; idempotent.

    Add placements of running clusters on the elements that carry the clusters in the new topology. Remove the clusters'
    other placements. Raise Conflict when the new topology lacks an element or port that a cluster uses or may still
    use.
    """
    former = _read_former(unit)
    _apply_change(unit, former, TopologyEffects(_prepare_change(former, lambda _former: topology)))


def _read_former(unit: Unit) -> FormerTopology:
    version = read_topology_version(unit)
    if version is None:
        return FormerTopology(read_stored_version(unit.connection), None)
    return FormerTopology(version, read_topology(unit))


def _prepare_change(former: FormerTopology, make: MakeTopology) -> TopologyChange:
    """Return the change to a new topology, with the sites and elements that it concerns."""
    wanted = former.share_parts(make(former))
    return TopologyChange(former.topology or wanted.model_copy(update={"sites": (), "links": ()}), wanted)


def _apply_change(unit: Unit, former: FormerTopology, effects: TopologyEffects) -> int:
    """Store a change of the current topology. Return the new version."""
    change = effects.change
    if former.topology == change.topology:
        return former.version
    is_first = former.topology is None
    live = [] if is_first else effects.share(_read_clusters_at(unit, change))
    if not is_first:
        check_nothing_lost(unit, change, live)
        check_access_ports_kept(unit, change)
    update_sites(unit, change)
    version = write_documents(unit.connection, former.topology, change.topology)
    unit.topology_version, unit.new_topology = version, change.topology
    unit.changed.add(TOPOLOGY_TOPIC)
    record_audit(unit, "topology_put", why=f"version {version}")
    update_elements(unit, change)
    if not is_first:
        update_placements(unit, effects, live)
        _replace_lost_routers(unit, change)
    return version


def _replace_lost_routers(unit: Unit, change: TopologyChange) -> None:
    """Choose other routers for the networks whose gateway has no link to the outside any more."""
    for name, gateway in change.former.gateways.items():
        if gateway.outside is not None and not OUTSIDE_LINK.has(change.topology, name):
            replace_routers(unit, name)


def _read_clusters_at(unit: Unit, change: TopologyChange) -> list[LiveCluster]:
    """Return the live clusters that use, or may use, an element at a site that changes."""
    if not change.sites:
        return []
    if len(change.sites) > len(change.former.sites) // 2:
        return read_live_clusters(unit)
    rows = find_unsettled_clusters(unit, change.elements, change.sites)
    return make_live_clusters(unit, [row for row in rows if row.state in WANTED_STATES])


def read_path_changes(unit: Unit, former: Topology) -> tuple[PathChange, ...]:
    """Return the changes of live clusters' paths from a former topology to the topology of the unit."""
    change = TopologyChange(former, read_topology(unit))
    return tuple(list_path_changes(change, _read_clusters_at(unit, change)))
