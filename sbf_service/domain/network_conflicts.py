"""Conflicts between networks about access ports and paths. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from sbf_service.domain.paths import LiveCluster, find_cluster_ports, find_path_ports
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

QUARANTINE_REMEDY: Final = (
    "wait until every element has confirmed the removal; if an element will never return, an administrator can declare "
    "the cluster's VLAN ID clean (virtcloud pool clean SITE VLAN --reason TEXT)"
)
"""The remedy for an ended cluster whose removal an element has not confirmed."""


def join_remedies(keep: str, quarantined: Iterable[bool]) -> str:
    """Return the remedy ``keep`` for running clusters, and the remedy for clusters in quarantine.

    ``quarantined`` contains for each cluster whether the cluster is in quarantine.
    """
    found = frozenset(quarantined)
    if True not in found:
        return keep
    return f"{keep}; for clusters in quarantine, {QUARANTINE_REMEDY}" if False in found else QUARANTINE_REMEDY


def find_access_ports(topology: Topology, cluster: LiveCluster) -> frozenset[PortRef]:
    """Return the switches' access ports on a cluster's path. Raise the errors of :func:`find_path_ports`."""
    ports = find_cluster_ports(topology, cluster) & topology.access_ports
    return frozenset(port for port in ports if isinstance(topology.element(port.element), Switch))


def find_used_access_ports(topology: Topology, cluster: LiveCluster) -> frozenset[PortRef]:
    """Return the access ports on a cluster's path.

    An ending cluster can lose its path in the topology before its hosts have removed the cluster. Then return the
    access ports to which the cluster's hosts and gateways are linked.
    """
    try:
        return find_access_ports(topology, cluster)
    except (Conflict, NotFound):
        return frozenset(_list_linked_access_ports(topology, (*cluster.spec.all_hosts, *cluster.gateways)))


def _list_linked_access_ports(topology: Topology, names: Iterable[Name]) -> Iterator[PortRef]:
    known = (topology.elements[name] for name in names if name in topology.elements)
    for end in (PortRef.of(element.name, port) for element in known for port in element.ports):
        peer = topology.peers.get(end)
        if peer is not None and peer in topology.access_ports and isinstance(topology.element(peer.element), Switch):
            yield peer


def check_ports_exclusive(
    topology: Topology, clusters: Iterable[LiveCluster], sees: Callable[[str], bool] = lambda _owner: True
) -> None:
    """Raise Conflict when clusters of two networks need the same access port. The error names the later cluster.

    ``sees`` returns whether the caller may see an owner's clusters. If the caller may see the earlier cluster, the
    error names the earlier cluster too.
    """
    taken: dict[PortRef, LiveCluster] = {}
    for cluster in clusters:
        for port in sorted(find_used_access_ports(topology, cluster)):
            if port in taken and taken[port].network.id != cluster.network.id:
                is_seen = sees(taken[port].spec.owner)
                holder = f"cluster {taken[port].key}" if is_seen else "another cluster"
                remedy = f"end {holder} first" if is_seen else "try again when that cluster has ended"
                if taken[port].quarantined:
                    remedy = QUARANTINE_REMEDY if is_seen else "that cluster has ended: try again later"
                raise Conflict(
                    f"cluster {cluster.key} needs access port {port}, but {holder} uses this port, and an access port "
                    f"carries only one network: {remedy}, or choose a host on a trunk"
                )
            taken.setdefault(port, cluster)


def check_ports_stay_access(former: Topology, topology: Topology, clusters: Iterable[LiveCluster]) -> None:
    """Raise Conflict when an access port of a cluster is no access port in the new ``topology``.

    Without this check, the cluster's untagged VLAN would stay on the port for ever: SBF assumes that an administrator
    configured an untagged VLAN on a trunk, and does not remove the VLAN.
    """
    for cluster in clusters:
        for port in sorted(find_used_access_ports(former, cluster)):
            if port not in topology.access_ports:
                remedy = QUARANTINE_REMEDY if cluster.quarantined else f"end cluster {cluster.key} first"
                raise Conflict(
                    f"cluster {cluster.key} uses access port {port}, which is no access port in the new topology: "
                    f"{remedy}"
                )


def check_paths_unchanged(topology: Topology, network: LiveCluster, transport: Transport | None) -> None:
    """Raise Conflict when a network of one site would need other ports at the site to reach ``transport``."""
    if transport is None:
        return
    before, after = (find_path_ports(topology, network.spec, on) for on in (None, transport.name))
    if before != after:
        lost = ", ".join(sorted(before - after))
        raise Conflict(
            f"network {network.key} would need other ports to reach transport {transport.name}, and would no "
            f"longer use {lost}: choose a host at the site of the network"
        )


def check_sites_attached(network: LiveCluster, sites: Iterable[Site]) -> None:
    """Raise Conflict for a site that is not attached to the network's transport."""
    for site in sites:
        if network.transport not in {attachment.transport for attachment in site.attachments}:
            raise Conflict(
                f"network {network.key} uses transport {network.transport}, but site {site.name} is not attached to "
                f"this transport: choose a host at another site"
            )


def describe_growth_remedy(network: LiveCluster) -> str:
    """Return the remedy, as the end of a message, if a network's VLAN ID is in use at a new site or on the transport.

    A network whose spec names its later sites gets a VLAN ID that is free at all these sites and on the transport.
    """
    return (
        f"; use hosts at {' and '.join(sorted(network.vlans))}, or create the network again with its later sites "
        "(`sites` of the spec), so that SBF chooses a VLAN ID that is free there too"
    )
