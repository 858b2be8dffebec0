"""The choice of a cluster's gateways: by role, site, heartbeat and links. Pure."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from sbf_service.domain.gateway_access import VPN_SERVER, GatewayRole
from sbf_service.domain.paths import LiveCluster, find_cluster_ports
from virtcloud.model.errors import Conflict, NoGateway
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name

MAX_GATEWAYS: Final = 2
"""The number of gateways that SBF chooses for a cluster, so that one gateway may fail."""


def choose_gateways(
    topology: Topology, cluster: LiveCluster, alive: Collection[Name], role: GatewayRole = VPN_SERVER
) -> tuple[Name, ...]:
    """Return the gateways that a cluster should have in a role. Its current gateways with this role come first.

    Add gateways at the cluster's sites, in the topology's order, until :data:`MAX_GATEWAYS` of the chosen gateways are
    in ``alive``. Raise NoGateway if no gateway was chosen.
    """
    kept = tuple(name for name in cluster.gateways if role.has(topology, name))
    free = MAX_GATEWAYS - len(set(kept) & set(alive))
    reachable = [name for name in list_reachable_gateways(topology, cluster, alive, role) if name not in kept]
    chosen = (*kept, *reachable[: max(0, free)])
    if not chosen:
        raise make_no_gateway_error(topology, cluster, role)
    return chosen


def list_reachable_gateways(
    topology: Topology, cluster: LiveCluster, alive: Collection[Name], role: GatewayRole
) -> Iterator[Name]:
    """Yield each gateway in ``alive`` that has ``role`` and is connected to the cluster's hosts through switches.

    Yield only gateways at the cluster's sites, in the topology's order.
    """
    for name in _list_candidates(topology, cluster, role):
        if name in alive and _is_linked(topology, cluster, name):
            yield name


def _list_candidates(topology: Topology, cluster: LiveCluster, role: GatewayRole) -> Iterator[Name]:
    for name in topology.gateways:
        if role.has(topology, name) and topology.site_of[name].name in cluster.vlans:
            yield name


def _is_linked(topology: Topology, cluster: LiveCluster, gateway: Name) -> bool:
    try:
        find_cluster_ports(topology, replace(cluster, gateways=(gateway,)))
    except Conflict:
        return False
    return True


def make_no_gateway_error(topology: Topology, cluster: LiveCluster, role: GatewayRole) -> NoGateway:
    """Return the error for a cluster that needs a gateway with a role while no such gateway is reachable."""
    sites = ", ".join(site.name for site in topology.sites if site.name in cluster.vlans)
    wanted = f"cluster {cluster.key}: expected a gateway with {role.description} at {sites}"
    here = ", ".join(_list_candidates(topology, cluster, role))
    if here:
        return NoGateway(
            f"{wanted}, got only gateways that do not answer or that no switch links to the cluster ({here}): ask the "
            "site's administrator"
        )
    known = [name for name in topology.gateways if role.has(topology, name)]
    others = ", ".join(f"{name} at {topology.site_of[name].name}" for name in known) or "none"
    site = topology.site_of[known[0]].name if known else "SITE"
    return NoGateway(f"{wanted}, got none; known gateways: {others}. {role.remedy.format(site=site)}")
