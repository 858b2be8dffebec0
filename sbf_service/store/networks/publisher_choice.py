"""The choice of the gateway that publishes a guest."""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import bindparam, select

from sbf_service.domain.publications import choose_port
from sbf_service.store.networks.gateway_addresses import choose_guest_address
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.gateway_tables import NetworkRouterRow, PublicationRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.errors import BadInput, NoAddressFree
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Name

_TAKEN = select(PublicationRow.port).where(
    PublicationRow.gateway == bindparam("gateway"), PublicationRow.protocol == bindparam("protocol")
)
_ROUTER = select(NetworkRouterRow.gateway).where(NetworkRouterRow.network_id == bindparam("network"))


class Publisher(NamedTuple):
    """A gateway that can publish a guest, with a free port of the gateway and the guest's published address."""

    gateway: Name
    port: int
    guest_address: str


def find_publisher(  # noqa: PLR0913, PLR0917 - the publication's data
    unit: Unit,
    network: ClusterRow,
    guest: Guest,
    gateways: Iterable[Name],
    protocol: str,
    port: int | None = None,
) -> Publisher | None:
    """Return the first of ``gateways`` that has a free port and can publish the guest, with ``port`` if possible.

    Return None if no gateway has a free port. Raise BadInput or NoAddressFree if no gateway with a free port can
    publish the guest.
    """
    topology = read_topology(unit)
    refusal: BadInput | NoAddressFree | None = None
    for name in gateways:
        gateway = topology.gateways[name]
        free = choose_port(gateway, _read_taken_ports(unit, name, protocol), port)
        if free is None:
            continue
        try:
            return Publisher(name, free, choose_guest_address(unit, guest, network, gateway))
        except (BadInput, NoAddressFree) as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return None


def prefer_router(unit: Unit, network: str, gateways: Iterable[Name]) -> list[Name]:
    """Return the gateways, first the network's router, if it is among them.

    Guests see the clients' addresses only in packets from the network's router.
    """
    router = unit.connection.execute(_ROUTER, {"network": network}).scalar_one_or_none()
    return sorted(gateways, key=lambda one: one != router)


def _read_taken_ports(unit: Unit, gateway: Name, protocol: str) -> frozenset[int]:
    return frozenset(unit.connection.execute(_TAKEN, {"gateway": gateway, "protocol": protocol}).scalars())
