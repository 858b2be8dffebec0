"""Making a cluster: its numbers, its row, its parts, in the unit's transaction.

It is what is done most often while everybody else waits, so it is a handful of prepared statements, and its view is
made of what was just written instead of being read again.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import insert

from sbf_service.store.audit import record
from sbf_service.store.choosing import Asked, Chosen, choose_cluster
from sbf_service.store.free_numbers import claim
from sbf_service.store.keys import turn_after
from sbf_service.store.numbers import Numbers
from sbf_service.store.pools import Reserved
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import Grown, grow
from sbf_service.store.services import claim_service
from sbf_service.store.session import Unit
from sbf_service.store.standing import joined_by, numbers_of
from sbf_service.store.tables import Base, ClusterRow, PlacementRow
from sbf_service.wanted import LiveCluster, elements_of, ports_for
from virtcloud.model.cluster import State, move
from virtcloud.model.element import kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, PlacementView, Progress

_TABLES = Base.metadata.tables
_CLUSTER = insert(_TABLES[ClusterRow.__tablename__])
_PLACEMENT = insert(_TABLES[PlacementRow.__tablename__])


def create(unit: Unit, asked: Asked, reserved: Reserved) -> ClusterView:
    """Claim a number at every site, give every element on the way its part. Raises NotFound, Forbidden, Conflict.

    A member claims nothing: its network gets what that lacks for it.
    """
    topology = read_topology(unit)
    chosen = choose_cluster(unit, topology, asked, reserved)
    elements = elements_of(ports_for(topology, chosen.cluster))
    unit.connection.execute(_CLUSTER, _row(unit, asked, chosen.cluster))
    if chosen.joined is None:
        claim(unit, asked.id, chosen.numbers.vlans)
        claim_service(unit, chosen.numbers.on, chosen.numbers.service, asked.id)
    else:
        _widen(unit, chosen.joined, chosen.numbers)
    record(unit, "cluster_created", why=f"asked for by {asked.spec.owner}: {_shown(chosen)}", cluster_id=asked.id)
    return _placed(unit, topology, asked, chosen.cluster, elements)


def _widen(unit: Unit, network: ClusterRow, numbers: Numbers) -> None:
    """Give a network the numbers at new sites, and what joins them; they are its own until it ends."""
    held = numbers_of(unit, [network.id])[network.id]
    new = {site: vlan for site, vlan in numbers.vlans.items() if site not in held}
    if not new:
        return
    claim(unit, network.id, new)
    if network.transport is None:
        claim_service(unit, numbers.on, numbers.service, network.id)
        network.transport = numbers.on
    network.version += 1
    unit.changed.add(f"cluster:{network.key}")
    unit.session.flush()
    why = ", ".join(f"VLAN {vlan} at {site}" for site, vlan in new.items())
    record(unit, "network_widened", why=f"{why}, over transport {numbers.on}", cluster_id=network.id)


def _placed(
    unit: Unit, topology: Topology, asked: Asked, cluster: LiveCluster, elements: Iterable[Name]
) -> ClusterView:
    """Give each element its part; shows the cluster as it is then."""
    parts = grow(unit, elements)
    if parts:
        unit.connection.execute(_PLACEMENT, [_placement(asked, name, part) for name, part in parts.items()])
    unit.changed.add(f"cluster:{asked.key}")
    transport = None if cluster.transport is None else topology.transport(cluster.transport)
    return ClusterView(
        key=cluster.key,
        id=asked.id,
        attempt=asked.attempt,
        version=asked.version,
        state=State.CONFIGURING,
        vlans=dict(cluster.vlans),
        joined=joined_by(transport, cluster.service),
        lease_ends=unit.now + timedelta(seconds=asked.spec.lease_s),
        spec=asked.spec,
        placements=tuple(_part_view(topology, Name(name), part) for name, part in parts.items()),
        network=None if cluster.joined is None else cluster.joined.key,
        created_by=unit.who,
    )


def _row(unit: Unit, asked: Asked, cluster: LiveCluster) -> dict[str, Any]:
    spec = asked.spec
    return {
        "id": asked.id,
        "key": asked.key,
        "turn": turn_after(asked.former, spec.owner),
        "attempt": asked.attempt,
        "owner": spec.owner,
        "spec": spec.model_dump_json(),
        "version": asked.version,
        "state": move(State.REQUESTED, State.CONFIGURING),
        "created_at": unit.now,
        "deadline": unit.now + timedelta(seconds=spec.deadline_s),
        "lease_ends": unit.now + timedelta(seconds=spec.lease_s),
        "quarantined": False,
        "transport": cluster.transport,
        "name": spec.name,
        "network": None if cluster.joined is None else cluster.joined.id,
        "created_by": unit.who,
    }


def _placement(asked: Asked, element: str, part: Grown) -> dict[str, object]:
    return {"cluster_id": asked.id, "element": element, "added_revision": part.revision}


def _part_view(topology: Topology, name: Name, part: Grown) -> PlacementView:
    """Show a part that its element has just been told of: nobody can have confirmed it yet."""
    site, kind = topology.site_of[name].name, kind_of(topology.element(name))
    return PlacementView(
        element=name,
        kind=kind,
        site=site,
        progress=Progress.ADDING,
        trouble=part.trouble,
        reachable=part.reachable,
        seen_at=part.last_seen,
    )


def _shown(chosen: Chosen) -> str:
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
