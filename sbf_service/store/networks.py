"""Networks that are joined: which one is meant, who may join it, and the numbers that it has for a member."""

from collections.abc import Iterator, Sequence

from sbf_service.joining import refuse_moves, refuse_unattached
from sbf_service.paths import sites_of, transport_of
from sbf_service.store.asked_number import Sees, reason
from sbf_service.store.longest_unused import choose
from sbf_service.store.naming import called
from sbf_service.store.numbers import Numbers
from sbf_service.store.pools import Reserved, site_pools
from sbf_service.store.services import free_service
from sbf_service.store.session import Unit
from sbf_service.store.standing import NOT_ENDED, clusters_where, networks_of, spec_of
from sbf_service.store.tables import ClusterRow
from sbf_service.wanted import LiveCluster
from virtcloud.model.cluster import WANTED, ClusterSpec, Guest
from virtcloud.model.errors import Conflict, Forbidden, GuestTaken, NoSuchNetwork, NoVlanFree
from virtcloud.model.topology import Site, Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, VlanId


def network_called(unit: Unit, word: str) -> Sequence[ClusterRow]:
    """Give a network by the name or key of one of its clusters, first its own, then members; those not ended."""
    row = called(unit, word)
    if row is None:
        return []
    network = networks_of(unit, [row])[row.network or row.id]
    return [network, *clusters_where(unit, NOT_ENDED, ClusterRow.network == network.id)]


def network_for(unit: Unit, spec: ClusterSpec) -> ClusterRow:
    """Find the cluster whose network is to be joined. Raises NoSuchNetwork, Forbidden, Conflict for one that ends."""
    found = network_called(unit, str(spec.joins))
    if not found:
        raise NoSuchNetwork(f"network {spec.joins} is not known: no cluster that has not ended has that name or key")
    row = found[0]
    if spec.owner not in {row.owner, *spec_of(row).shares_with}:
        raise Forbidden(
            f"{spec.owner} may not join network {spec.joins}: its owner does not share it with {spec.owner}"
        )
    if row.state not in WANTED:
        raise Conflict(f"network {spec.joins} cannot be joined any more: cluster {row.key} is {row.state}")
    return row


def refuse_same_guests(unit: Unit, network: ClusterRow, spec: ClusterSpec) -> None:
    """Raise GuestTaken when a guest would have the name or an address of another one of the network."""
    members = clusters_where(unit, NOT_ENDED, ClusterRow.network == network.id)
    taken = {mark: row for row in (network, *members) for guest in spec_of(row).guests for mark in _marks(guest)}
    for guest in spec.guests:
        for mark in _marks(guest):
            if mark in taken:
                raise GuestTaken(_same(guest, mark, taken[mark]))


def joined_numbers(  # noqa: PLR0913, PLR0917 - as choose_numbers
    unit: Unit, topology: Topology, network: LiveCluster, spec: ClusterSpec, reserved: Reserved, sees: Sees
) -> Numbers:
    """Give the network's numbers as they would be with a member: those that it has, and new ones at new sites.

    Nothing is written. Raises NoSuchHost, Conflict, NoVlanFree.
    """
    sites = sites_of(topology, spec.all_hosts)
    new = [site for site in sites if site.name not in network.vlans]
    if network.transport is None:
        transport = transport_of(topology, (*network.spec.all_hosts, *spec.all_hosts), network.spec.sites)
        refuse_moves(topology, network, transport)
        service = free_service(unit, transport)
    else:
        transport, service = topology.transport(network.transport), network.service
        refuse_unattached(network, new)
    vlans = dict(network.vlans) | _numbers_at(unit, new, network, transport, reserved, sees)
    return Numbers(transport, vlans, service)


def _numbers_at(  # noqa: PLR0913, PLR0917 - as joined_numbers
    unit: Unit, sites: Sequence[Site], network: LiveCluster, transport: Transport | None, reserved: Reserved, sees: Sees
) -> dict[Name, VlanId]:
    """Choose numbers at new sites: the network's own where it is free, another one only where that is translated."""
    vlan, found = next(iter(network.vlans.values())), {}
    for site, pool in zip(sites, site_pools(unit, sites, reserved), strict=True):
        if vlan in pool.free:
            found[site.name] = vlan
        elif transport is not None and transport.translates:
            found |= choose(unit, [site], reserved, translates=False)
        else:
            raise NoVlanFree(
                f"network {network.key} has VLAN {vlan}, which is not free at site {site.name}: "
                f"{reason(unit, pool, vlan, sees)}"
            )
    return found


def _marks(guest: Guest) -> Iterator[str]:
    """Give what no two guests on one Ethernet may have in common."""
    yield f"name {guest.name}"
    yield from (f"address {address.partition('/')[0]}" for address in guest.addresses)
    if guest.mac is not None:
        yield f"MAC address {guest.mac}"


def _same(guest: Guest, mark: str, row: ClusterRow) -> str:
    advice = "choose another one" if row.state in WANTED else f"that one is {row.state}: ask again when it has ended"
    return f"guest {guest.name} has the {mark}, which a guest of cluster {row.key} has in the same network: {advice}"
