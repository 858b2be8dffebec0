"""Making a cluster: its numbers, its row, its parts, in the unit's transaction.

It is what is done most often while everybody else waits, so it is a handful of prepared statements, and its view is
made of what was just written instead of being read again.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import insert

from sbf_service.access_ports import User
from sbf_service.paths import ports_of
from sbf_service.store.audit import record
from sbf_service.store.free_numbers import claim
from sbf_service.store.numbers import Numbers, choose_numbers
from sbf_service.store.pools import Reserved
from sbf_service.store.reading import read_topology
from sbf_service.store.revisions import Grown, grow
from sbf_service.store.services import claim_service
from sbf_service.store.session import Unit
from sbf_service.store.sharing import refuse_second
from sbf_service.store.standing import joined_by
from sbf_service.store.tables import Base, ClusterRow, PlacementRow
from sbf_service.wanted import elements_of
from virtcloud.model.cluster import ClusterSpec, State, move
from virtcloud.model.element import kind_of
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import ClusterView, PlacementView, Progress

_TABLES = Base.metadata.tables
_CLUSTER = insert(_TABLES[ClusterRow.__tablename__])
_PLACEMENT = insert(_TABLES[PlacementRow.__tablename__])


@dataclass(frozen=True, slots=True)
class Asked:
    """A cluster that is to be made."""

    id: str
    key: str
    attempt: int
    version: int
    spec: ClusterSpec


def create(unit: Unit, asked: Asked, reserved: Reserved) -> ClusterView:
    """Claim a number at every site, give every element on the way its part. Raises NotFound, Conflict, NoVlanFree."""
    topology = read_topology(unit)
    chosen = choose_numbers(unit, topology, asked.spec, reserved)
    elements = elements_of(ports_of(topology, asked.spec, chosen.on))
    refuse_second(unit, topology, User(asked.key, asked.spec, chosen.on))
    row = _row(unit, asked, chosen.on)
    unit.connection.execute(_CLUSTER, row)
    claim(unit, asked.id, chosen.vlans)
    claim_service(unit, chosen.on, chosen.service, asked.id)
    parts = grow(unit, elements)
    unit.connection.execute(_PLACEMENT, [_placement(asked, name, part) for name, part in parts.items()])
    unit.changed.add(f"cluster:{asked.key}")
    record(unit, "cluster_created", why=f"asked for by {asked.spec.owner}: {_shown(chosen)}", cluster_id=asked.id)
    return ClusterView(
        key=ClusterKey(asked.key),
        id=asked.id,
        attempt=asked.attempt,
        version=asked.version,
        state=row["state"],
        vlans=dict(chosen.vlans),
        joined=joined_by(chosen.transport, chosen.service),
        lease_ends=row["lease_ends"],
        spec=asked.spec,
        placements=tuple(_part_view(topology, Name(name), part) for name, part in parts.items()),
    )


def _row(unit: Unit, asked: Asked, transport: Name | None) -> dict[str, Any]:
    spec = asked.spec
    return {
        "id": asked.id,
        "key": asked.key,
        "attempt": asked.attempt,
        "owner": spec.owner,
        "spec": spec.model_dump_json(),
        "version": asked.version,
        "state": move(State.REQUESTED, State.CONFIGURING),
        "created_at": unit.now,
        "deadline": unit.now + timedelta(seconds=spec.deadline_s),
        "lease_ends": unit.now + timedelta(seconds=spec.lease_s),
        "quarantined": False,
        "transport": transport,
    }


def _placement(asked: Asked, element: str, part: Grown) -> dict[str, object]:
    return {"cluster_id": asked.id, "element": element, "added_revision": part.revision}


def _part_view(topology: Topology, name: Name, part: Grown) -> PlacementView:
    """Show a part that its element has just been told of: nobody can have confirmed it yet."""
    site, kind = topology.site_of[name].name, kind_of(topology.element(name))
    return PlacementView(element=name, kind=kind, site=site, progress=Progress.ADDING, trouble=part.trouble)


def _shown(chosen: Numbers) -> str:
    """Say the number, and the sites only where they differ; and its own service, where it has one."""
    shown = [f"VLAN {vlan} at {site}" for site, vlan in chosen.vlans.items()]
    if len(set(chosen.vlans.values())) == 1:
        shown = [f"VLAN {next(iter(chosen.vlans.values()))}"]
    return ", ".join(shown if chosen.service is None else [*shown, f"service {chosen.service}"])
