"""What a new topology may not take away of a transport: what clusters are on, or edges may still carry."""

from collections.abc import Iterable, Iterator, Mapping

from sqlalchemy import select

from sbf_service.store.carried import circuits_carried
from sbf_service.store.session import Unit
from sbf_service.store.standing import UNSETTLED, clusters_where, networks_of, services_of
from sbf_service.store.tables import ClusterRow, ElementRow
from sbf_service.wanted import LiveCluster
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name


def transport_faults(unit: Unit, former: Topology, topology: Topology) -> Iterator[str]:
    """Say which transports would no longer be what they are used for."""
    known = {one.name: one for one in topology.transports}
    for before in former.transports:
        used = [(user, number) for user, number in _transport_users(unit, before) if not _gives(known, before, number)]
        if used:
            users = ", ".join(f"{_number(before, number)}{user}" for user, number in used)
            what = "change its kind or its numbers" if before.name in known else "vanish"
            yield f"transport {before.name} would {what}, and is in use: {users}; keep it until these have ended"


def _transport_users(unit: Unit, transport: Transport) -> Iterator[tuple[str, int | None]]:
    """Give clusters, with their own numbers or the shared one, and circuits that were last seen."""
    rows = clusters_where(unit, UNSETTLED, ClusterRow.transport == transport.name)
    services = services_of(unit, networks_of(unit, rows))
    held = {row.id: services.get(row.network or row.id, transport.shared) for row in rows}
    yield from ((f"cluster {row.key} ({row.state})", held[row.id]) for row in rows)
    for edge in unit.session.scalars(select(ElementRow).where(ElementRow.present).order_by(ElementRow.name)):
        for one in circuits_carried(edge) or ():
            if one.transport == transport.name and one.service not in held.values():
                yield f"VLAN {one.vlan}, last seen on {edge.name}", one.service


def _gives(known: Mapping[Name, Transport], before: Transport, number: int | None) -> bool:
    after = known.get(before.name)
    if not before.on_edges:
        return after is None or not after.on_edges
    if after is None or after.kind is not before.kind:
        return False
    return number in after.numbers and bool(before.services) is bool(after.services)


def _number(transport: Transport, number: int | None) -> str:
    return f"{number} by " if transport.services else ""


def detached(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Say which running clusters would lose their transport at a site."""
    for cluster in live:
        for site in topology.sites if cluster.transport is not None else ():
            if site.name in cluster.vlans and cluster.transport not in {one.transport for one in site.attachments}:
                yield f"cluster {cluster.key} needs {site.name} on transport {cluster.transport}: end the cluster first"
