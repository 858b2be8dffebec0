"""Changes of the topology. SBF computes their effects before the transaction that stores the new topology.

The transaction checks that the topology has not changed meanwhile. A new topology must contain every transport, element
and port that a cluster uses or may still use.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from sbf_service.domain.gateway_access import OUTSIDE_LINK
from sbf_service.domain.paths import LiveCluster
from sbf_service.domain.topology_change import TopologyChange, list_path_changes
from sbf_service.domain.topology_effects import TopologyEffects
from sbf_service.large_documents import collect_later, give_way
from sbf_service.store.clusters.cluster_queries import find_cluster_ids
from sbf_service.store.clusters.cluster_records import ClusterReading, read_cluster_records
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.elements.unchecked_elements import releasing_networks
from sbf_service.store.networks.certified_networks import suspend_uncertified
from sbf_service.store.networks.network_routers import announce_link, replace_routers, take_over_routers
from sbf_service.store.networks.networks import check_access_ports_kept
from sbf_service.store.store import Store
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from sbf_service.store.topology.topology_documents import (
    DocumentChanges,
    make_no_topology_error,
    prepare_documents,
    read_stored_version,
    write_documents,
)
from sbf_service.store.topology.topology_elements import ElementChanges, prepare_elements, update_elements, update_sites
from sbf_service.store.topology.topology_losses import check_nothing_lost, loses_nothing
from sbf_service.store.topology.topology_placements import find_other_destinations, update_placements
from sbf_service.store.topology.topology_ports import check_access_links_kept
from sbf_service.store.unit_of_work import TOPOLOGY_TOPIC, Unit, record_audit
from virtcloud.model.changes import PathChange
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links, share_parts

PREPARATIONS = 3
"""The maximum number of attempts to compute a change's effects before the transaction.

An attempt fails if another call changes the topology meanwhile. Afterwards, the transaction itself computes the
effects.
"""


@dataclass(frozen=True, slots=True)
class FormerTopology:
    """The topology that a change replaces, with its stored version.

    ``topology`` is None if SBF has no topology yet. The version is stored even before the first topology.
    """

    version: int
    topology: Topology | None

    def require(self) -> Topology:
        """Return the topology. Raise NotFound before the first topology."""
        if self.topology is None:
            raise make_no_topology_error()
        return self.topology

    def share_parts(self, topology: Topology) -> Topology:
        """Return ``topology`` with the former topology's objects for the parts that are equal in both topologies.

        The links of the result are in the stored order.
        """
        return arrange_links(topology) if self.topology is None else share_parts(topology, self.topology)


MakeTopology = Callable[[FormerTopology], Topology]
"""A function that returns the new topology for a given former topology, or raises an error.

The result must share its equal parts with the former topology (:meth:`FormerTopology.share_parts`).
"""


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change of the topology with the values that are computed before its transaction.

    The values are valid as long as the topology has the version of ``former``.
    """

    former: FormerTopology
    effects: TopologyEffects
    documents: DocumentChanges
    elements: ElementChanges
    reading: ClusterReading
    unharmed: Mapping[str, LiveCluster]
    """The clusters that have a path in both topologies, and keep their sites, transport and ports; by cluster ID."""

    @property
    def change(self) -> TopologyChange:
        """The difference between the former and the new topology."""
        return self.effects.change


def change_topology(store: Store, make: MakeTopology, *, who: str) -> int:
    """Replace the topology by the result of ``make``. Idempotent. Return the topology's version.

    Compute the effects before the transaction, so that other calls do not wait. Compute the effects again if another
    call changes the topology meanwhile. Raise the errors of :func:`put_topology` and of ``make``.
    """
    for _ in range(PREPARATIONS):
        with store.read() as unit:
            former = _read_former(unit)  # without pauses, because other threads wait while SBF parses a topology
        with give_way():
            prepared = _prepare_change(former, make, store.read)
        with store.change(who=who) as unit:
            if read_stored_version(unit.connection) == former.version:
                return _apply_change(unit, prepared)
    with store.change(who=who) as unit:
        return _apply_change(unit, _prepare_in(unit, make))


def put_topology(unit: Unit, topology: Topology) -> None:
    """Replace the topology; idempotent.

    Each running cluster gets placements on the elements of its new paths. The cluster's placements on other elements
    end. Raise Conflict if the new topology lacks a transport, site, element, port or path that a cluster uses or may
    still use. Also raise Conflict if the link of an access port changes while the port may still carry a cluster's
    VLAN.
    """
    _apply_change(unit, _prepare_in(unit, lambda former: former.share_parts(topology)))


def _read_former(unit: Unit) -> FormerTopology:
    version = read_topology_version(unit)
    if version is None:
        return FormerTopology(read_stored_version(unit.connection), None)
    return FormerTopology(version, read_topology(unit))


def _prepare_in(unit: Unit, make: MakeTopology) -> PreparedChange:
    return _prepare_change(_read_former(unit), make, lambda: nullcontext(unit))


def _prepare_change(
    former: FormerTopology, make: MakeTopology, read: Callable[[], AbstractContextManager[Unit]]
) -> PreparedChange:
    """Prepare the replacement of ``former`` by the result of ``make``. ``read`` opens a unit of work.

    The unit contains no yield point, because a pause would prolong its transaction.
    """
    wanted = make(former)
    documents = prepare_documents(former.topology, wanted)
    change = TopologyChange(former.topology or wanted.model_copy(update={"sites": (), "links": ()}), wanted)
    with collect_later(documents.size):
        change.compute()
        with read() as unit:
            reading = _read_clusters_at(unit, change, ClusterReading())
            elements = prepare_elements(unit, change)
        effects = TopologyEffects(change)
        effects.prepare(reading.clusters)
        unharmed = {one.id: one for one in reading.clusters if effects.has_path(one) and loses_nothing(change, one)}
    return PreparedChange(former, effects, documents, elements, reading, unharmed)


def _apply_change(unit: Unit, prepared: PreparedChange) -> int:
    former, change = prepared.former.topology, prepared.change
    if former == change.topology:
        return prepared.former.version
    if former is None or change.keeps_paths:
        version = _store_change(unit, prepared)
        increment_revisions(unit, find_other_destinations(change))
        return version
    live = _read_clusters_at(unit, change, prepared.reading).clusters
    check_nothing_lost(unit, change, [one for one in live if prepared.unharmed.get(one.id) is not one])
    check_access_ports_kept(unit, change)
    check_access_links_kept(unit, change)
    with releasing_networks(unit):
        version = _store_change(unit, prepared)
    update_placements(unit, prepared.effects, live)
    _replace_routers(unit, change)
    _suspend_at_moved_gateways(unit, change)
    return version


def _store_change(unit: Unit, prepared: PreparedChange) -> int:
    update_sites(unit, prepared.elements)
    version = write_documents(unit.connection, prepared.documents)
    unit.topology_version, unit.new_topology = version, prepared.change.topology
    unit.changed.add(TOPOLOGY_TOPIC)
    record_audit(unit, "topology_put", why=f"version {version}")
    update_elements(unit, prepared.elements)
    return version


def _replace_routers(unit: Unit, change: TopologyChange) -> None:
    """Replace routers that lose their link to the outside.

    Also replace unusable routers of the networks of a gateway that gets a link to the outside, or returns with one.
    """
    for name in dict.fromkeys((*change.former.gateways, *change.topology.gateways)):
        had_link, has_link = (OUTSIDE_LINK.has(one, name) for one in (change.former, change.topology))
        if had_link is has_link:
            continue
        announce_link(unit, name)
        if had_link:
            replace_routers(unit, name)
        else:
            take_over_routers(unit, name)


def _suspend_at_moved_gateways(unit: Unit, change: TopologyChange) -> None:
    """Suspend publications of networks with uncertified images if a gateway returns to the topology or moves.

    While the gateway was removed, a certification may have been revoked, or an uncertified guest may have joined the
    network. A new site may have certified other images.
    """
    former, current = change.former.site_of, change.topology.site_of
    if any(name not in former or former[name].name != current[name].name for name in change.topology.gateways):
        suspend_uncertified(unit)


def _read_clusters_at(unit: Unit, change: TopologyChange, earlier: ClusterReading) -> ClusterReading:
    """Read the live clusters that use an element at a changed site, or all live clusters if most sites change.

    Read no cluster if the change keeps all paths.
    """
    if change.keeps_paths or not change.sites:
        return ClusterReading()
    if len(change.sites) > len(change.former.sites) // 2:
        return read_cluster_records(unit, None, earlier)
    return read_cluster_records(unit, find_cluster_ids(unit, change.elements, change.sites), earlier)


def read_path_changes(unit: Unit, former: Topology) -> tuple[PathChange, ...]:
    """Return the differences of live clusters' paths between ``former`` and the current topology."""
    change = TopologyChange(former, read_topology(unit))
    return tuple(list_path_changes(change, _read_clusters_at(unit, change, ClusterReading()).clusters))
