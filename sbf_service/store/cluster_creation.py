"""Making a cluster: its numbers, its row, its parts, in the unit's transaction.

It is what is done most often while everybody else waits, so it is a handful of prepared statements, and its view is
made of what was just written instead of being read again.

What a cluster that is asked for would be: its numbers, its transport, its network. Nothing is written.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import insert

from sbf_service.domain.admission import check_admitted, find_origin
from sbf_service.domain.paths import ClusterNetwork, LiveCluster, find_cluster_ports, list_elements
from sbf_service.store.allocation import CanSeeOwner, NetworkIds, allocate_network_ids, can_see_none
from sbf_service.store.claims import claim_service_id, claim_vlans
from sbf_service.store.cluster_queries import make_joined_view, make_live_clusters, next_turn, read_vlans
from sbf_service.store.networks import (
    allocate_for_member,
    check_access_ports_free,
    check_guests_distinct,
    check_name_free,
    find_joinable_network,
)
from sbf_service.store.pools import ReservedVlans
from sbf_service.store.revisions import NewRevision, increment_revisions
from sbf_service.store.tables import Base, ClusterRow, PlacementRow
from sbf_service.store.unit_of_work import Unit, read_topology, record_audit
from virtcloud.model.cluster import ClusterSpec, ClusterState, check_transition
from virtcloud.model.element import kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView, PlacementProgress, PlacementView


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A cluster that is to be made. ``sees`` says of which owners' clusters the caller may know.

    ``former`` is the newest one under its key before it.
    """

    id: str
    key: str
    attempt: int
    spec: ClusterSpec
    sees: CanSeeOwner = can_see_none
    former: ClusterRow | None = None

    @property
    def version(self) -> int:
        """The version of its first view: past all that were shown under its key."""
        return 1 if self.former is None else self.former.version + 1


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """A cluster as elements would have to carry it; its network's numbers with it; a member's network as it is."""

    cluster: LiveCluster
    numbers: NetworkIds
    joined: ClusterRow | None = None


def plan_cluster(unit: Unit, topology: Topology, asked: NewCluster, reserved: ReservedVlans) -> PlannedCluster:
    """Say what it would be. Raises NotFound, Forbidden, Conflict for one that cannot be."""
    check_admitted(topology, asked.spec, find_origin(asked.spec.owner, unit.who))
    check_name_free(unit, asked.key, asked.spec.name)
    chosen = (_plan_network if asked.spec.joins is None else _plan_member)(unit, topology, asked, reserved)
    check_access_ports_free(unit, topology, chosen.cluster)
    return chosen


def _plan_network(unit: Unit, topology: Topology, asked: NewCluster, reserved: ReservedVlans) -> PlannedCluster:
    numbers = allocate_network_ids(unit, topology, asked.spec, reserved, asked.sees)
    return PlannedCluster(_make_live_cluster(asked, numbers), numbers)


def _plan_member(unit: Unit, topology: Topology, asked: NewCluster, reserved: ReservedVlans) -> PlannedCluster:
    row = find_joinable_network(unit, asked.spec)
    check_guests_distinct(unit, row, asked.spec)
    (network,) = make_live_clusters(unit, [row])
    numbers = allocate_for_member(unit, topology, network, asked.spec, reserved, asked.sees)
    return PlannedCluster(_make_live_cluster(asked, numbers, network.network), numbers, row)


def _make_live_cluster(asked: NewCluster, numbers: NetworkIds, joined: ClusterNetwork | None = None) -> LiveCluster:
    key = ClusterKey(asked.key)
    return LiveCluster(asked.id, key, asked.spec, numbers.vlans, numbers.on, numbers.service, joined)


_TABLES = Base.metadata.tables
_INSERT_CLUSTER = insert(_TABLES[ClusterRow.__tablename__])
_INSERT_PLACEMENT = insert(_TABLES[PlacementRow.__tablename__])


def create_cluster(unit: Unit, asked: NewCluster, reserved: ReservedVlans) -> ClusterView:
    """Claim a number at every site, give every element on the way its part. Raises NotFound, Forbidden, Conflict.

    A member claims nothing: its network gets what that lacks for it.
    """
    topology = read_topology(unit)
    chosen = plan_cluster(unit, topology, asked, reserved)
    elements = list_elements(find_cluster_ports(topology, chosen.cluster))
    unit.connection.execute(_INSERT_CLUSTER, _make_cluster_row(unit, asked, chosen.cluster))
    if chosen.joined is None:
        claim_vlans(unit, asked.id, chosen.numbers.vlans)
        claim_service_id(unit, chosen.numbers.on, chosen.numbers.service, asked.id)
    else:
        _extend_network(unit, chosen.joined, chosen.numbers)
    record_audit(
        unit, "cluster_created", why=f"asked for by {asked.spec.owner}: {_describe_ids(chosen)}", cluster_id=asked.id
    )
    return _insert_placements(unit, topology, asked, chosen.cluster, elements)


def _extend_network(unit: Unit, network: ClusterRow, numbers: NetworkIds) -> None:
    """Give a network the numbers at new sites, and what joins them; they are its own until it ends."""
    held = read_vlans(unit, [network.id])[network.id]
    new = {site: vlan for site, vlan in numbers.vlans.items() if site not in held}
    if not new:
        return
    claim_vlans(unit, network.id, new)
    if network.transport is None:
        claim_service_id(unit, numbers.on, numbers.service, network.id)
        network.transport = numbers.on
    network.version += 1
    unit.changed.add(f"cluster:{network.key}")
    unit.session.flush()
    why = ", ".join(f"VLAN {vlan} at {site}" for site, vlan in new.items())
    record_audit(unit, "network_widened", why=f"{why}, over transport {numbers.on}", cluster_id=network.id)


def _insert_placements(
    unit: Unit, topology: Topology, asked: NewCluster, cluster: LiveCluster, elements: Iterable[Name]
) -> ClusterView:
    """Give each element its part; shows the cluster as it is then."""
    parts = increment_revisions(unit, elements)
    if parts:
        unit.connection.execute(
            _INSERT_PLACEMENT, [_make_placement_row(asked, name, part) for name, part in parts.items()]
        )
    unit.changed.add(f"cluster:{asked.key}")
    transport = None if cluster.transport is None else topology.transport(cluster.transport)
    return ClusterView(
        key=cluster.key,
        id=asked.id,
        attempt=asked.attempt,
        version=asked.version,
        state=ClusterState.CONFIGURING,
        vlans=dict(cluster.vlans),
        joined=make_joined_view(transport, cluster.service),
        lease_ends=unit.now + timedelta(seconds=asked.spec.lease_s),
        spec=asked.spec,
        placements=tuple(_make_placement_view(topology, Name(name), part) for name, part in parts.items()),
        network=None if cluster.joined is None else cluster.joined.key,
        created_by=unit.who,
    )


def _make_cluster_row(unit: Unit, asked: NewCluster, cluster: LiveCluster) -> dict[str, Any]:
    spec = asked.spec
    return {
        "id": asked.id,
        "key": asked.key,
        "turn": next_turn(asked.former, spec.owner),
        "attempt": asked.attempt,
        "owner": spec.owner,
        "spec": spec.model_dump_json(),
        "version": asked.version,
        "state": check_transition(ClusterState.REQUESTED, ClusterState.CONFIGURING),
        "created_at": unit.now,
        "deadline": unit.now + timedelta(seconds=spec.deadline_s),
        "lease_ends": unit.now + timedelta(seconds=spec.lease_s),
        "quarantined": False,
        "transport": cluster.transport,
        "name": spec.name,
        "network": None if cluster.joined is None else cluster.joined.id,
        "created_by": unit.who,
    }


def _make_placement_row(asked: NewCluster, element: str, part: NewRevision) -> dict[str, object]:
    return {"cluster_id": asked.id, "element": element, "added_revision": part.revision}


def _make_placement_view(topology: Topology, name: Name, part: NewRevision) -> PlacementView:
    """Show a part that its element has just been told of: nobody can have confirmed it yet."""
    site, kind = topology.site_of[name].name, kind_of(topology.element(name))
    return PlacementView(
        element=name,
        kind=kind,
        site=site,
        progress=PlacementProgress.ADDING,
        trouble=part.trouble,
        reachable=part.reachable,
        seen_at=part.last_seen,
    )


def _describe_ids(chosen: PlannedCluster) -> str:
    """Say the number, and the sites only where they differ; its own service, where it has one; whom it joins."""
    vlans, service = chosen.numbers.vlans, chosen.numbers.service
    words = [f"VLAN {vlan} at {site}" for site, vlan in vlans.items()]
    if len(set(vlans.values())) == 1:
        words = [f"VLAN {next(iter(vlans.values()))}"]
    if service is not None:
        words.append(f"service {service}")
    if chosen.joined is not None:
        words.append(f"joins cluster {chosen.joined.key}")
    return ", ".join(words)
