"""Changes of the topology: the effects of a new topology are computed before the transaction that stores it.

The transaction checks that the topology has not changed meanwhile. A new topology must contain every transport, element
and port that a cluster uses, or that may still carry a cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sbf_service.domain.gateway_access import OUTSIDE_LINK
from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_change import TopologyChange, list_path_changes
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.store.cluster_queries import find_unsettled_clusters
from sbf_service.store.current_topology import read_topology, read_topology_version
from sbf_service.store.live_clusters import make_live_clusters, read_live_clusters
from sbf_service.store.network_routers import replace_routers
from sbf_service.store.networks import check_access_ports_kept
from sbf_service.store.topology_documents import make_no_topology_error, read_stored_version, write_documents
from sbf_service.store.topology_elements import update_elements, update_sites
from sbf_service.store.topology_losses import check_nothing_lost
from sbf_service.store.topology_placements import update_placements
from sbf_service.store.unchecked_elements import releasing_networks
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Store, Unit, record_audit
from virtcloud.model.changes import PathChange
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links, share_parts

PREPARATIONS = 3
"""The maximum number of attempts to compute the effects of a change before the transaction.

An attempt fails if another call changes the topology before the transaction begins. After these attempts, the effects
are computed inside the transaction, so that no other call can change the topology meanwhile.
"""


@dataclass(frozen=True, slots=True)
class FormerTopology:
    """The topology that a change replaces, and the stored version of the topology.

    ``topology`` is None before the first topology. A version is stored even then.
    """

    version: int
    topology: Topology | None

    def require(self) -> Topology:
        """Return the topology. Raise NotFound before the first topology."""
        if self.topology is None:
            raise make_no_topology_error()
        return self.topology

    def share_parts(self, topology: Topology) -> Topology:
        """Return a topology equal to ``topology`` that uses the objects of the old topology for all equal parts.

        The links are in the order in which SBF stores links.
        """
        return arrange_links(topology) if self.topology is None else share_parts(topology, self.topology)


MakeTopology = Callable[[FormerTopology], Topology]
"""A function that receives the topology to be replaced, and returns the new topology or raises an error."""


def change_topology(store: Store, make: MakeTopology, *, who: str) -> int:
    """Replace the topology by the result of ``make``. Idempotent. Return the topology's version.

    The effects of the change are computed before the transaction, so that other calls do not wait meanwhile. If another
    call has changed the topology before the transaction begins, compute the effects again. Raise the errors of
    :func:`put_topology` and of ``make``.
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

    Each running cluster gets placements on the elements that its paths use in the new topology. Its other placements
    are ended. Raise Conflict if the new topology lacks an element or port that a cluster uses or may still use.
    """
    former = _read_former(unit)
    _apply_change(unit, former, TopologyEffects(_prepare_change(former, lambda _former: topology)))


def _read_former(unit: Unit) -> FormerTopology:
    version = read_topology_version(unit)
    if version is None:
        return FormerTopology(read_stored_version(unit.connection), None)
    return FormerTopology(version, read_topology(unit))


def _prepare_change(former: FormerTopology, make: MakeTopology) -> TopologyChange:
    """Return the change from the old topology to the topology that ``make`` returns."""
    wanted = former.share_parts(make(former))
    return TopologyChange(former.topology or wanted.model_copy(update={"sites": (), "links": ()}), wanted)


def _apply_change(unit: Unit, former: FormerTopology, effects: TopologyEffects) -> int:
    """Store a change of the topology and its effects. Return the topology's version. An empty change stores nothing."""
    change = effects.change
    if former.topology == change.topology:
        return former.version
    is_first = former.topology is None
    live = [] if is_first else effects.share(_read_clusters_at(unit, change))
    if not is_first:
        check_nothing_lost(unit, change, live)
        check_access_ports_kept(unit, change)
    with releasing_networks(unit):
        version = _store_change(unit, former, change)
    if not is_first:
        update_placements(unit, effects, live)
        _replace_lost_routers(unit, change)
    return version


def _store_change(unit: Unit, former: FormerTopology, change: TopologyChange) -> int:
    """Store a changed topology, with its sites and elements. Return the topology's version."""
    update_sites(unit, change)
    version = write_documents(unit.connection, former.topology, change.topology)
    unit.topology_version, unit.new_topology = version, change.topology
    unit.changed.add(TOPOLOGY_TOPIC)
    record_audit(unit, "topology_put", why=f"version {version}")
    update_elements(unit, change)
    return version


def _replace_lost_routers(unit: Unit, change: TopologyChange) -> None:
    """Choose other routers for networks whose router loses its link to the outside with this change."""
    for name, gateway in change.former.gateways.items():
        if gateway.outside is not None and not OUTSIDE_LINK.has(change.topology, name):
            replace_routers(unit, name)


def _read_clusters_at(unit: Unit, change: TopologyChange) -> list[LiveCluster]:
    """Return at least the live clusters that use an element at a site that changes."""
    if not change.sites:
        return []
    if len(change.sites) > len(change.former.sites) // 2:
        return read_live_clusters(unit)
    rows = find_unsettled_clusters(unit, change.elements, change.sites)
    return make_live_clusters(unit, [row for row in rows if row.state in WANTED_STATES])


def read_path_changes(unit: Unit, former: Topology) -> tuple[PathChange, ...]:
    """Return the differences of live clusters' paths between the topology ``former`` and the current topology."""
    change = TopologyChange(former, read_topology(unit))
    return tuple(list_path_changes(change, _read_clusters_at(unit, change)))
