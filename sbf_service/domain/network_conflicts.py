"""Conflicts between networks about access ports and paths. Pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from sbf_service.domain.paths import LiveCluster, find_cluster_ports, find_path_ports
from virtcloud.model.element import Switch
from virtcloud.model.errors import Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.transport import Transport
from virtcloud.model.values import Name, PortRef

QUARANTINE_REMEDY: Final = (
    "wait until every element has confirmed the removal; if an element will never return, an administrator can declare "
    "the cluster's VLAN ID clean (virtcloud pool clean SITE VLAN --cluster KEY --reason TEXT)"
)
"""The remedy for an ended cluster whose removal an element has not confirmed."""


def join_remedies(keep: str, quarantined: Iterable[bool]) -> str:
    """Return ``keep`` for clusters outside quarantine, `QUARANTINE_REMEDY` for clusters in quarantine, or both.

    ``quarantined`` contains a value for each cluster: whether the cluster is in quarantine.
    """
    found = frozenset(quarantined)
    if True not in found:
        return keep
    return f"{keep}; for clusters in quarantine, {QUARANTINE_REMEDY}" if False in found else QUARANTINE_REMEDY


def find_access_ports(topology: Topology, cluster: LiveCluster) -> frozenset[PortRef]:
    """Return the switches' access ports on a cluster's path. Raise the errors of :func:`find_path_ports`."""
    ports = find_cluster_ports(topology, cluster) & topology.access_ports
    return frozenset(port for port in ports if isinstance(topology.element(port.element), Switch))


class _PortUser(NamedTuple):
    """A cluster and its used access ports. Each running cluster has a path; an ending cluster can lose its path."""

    cluster: LiveCluster
    ports: frozenset[PortRef]
    has_path: bool

    def excludes(self, other: "_PortUser") -> bool:
        """Return whether the clusters cannot both use an access port. A cluster without a path needs no port."""
        return self.cluster.network.id != other.cluster.network.id and (self.has_path or other.has_path)


def _make_port_user(topology: Topology, cluster: LiveCluster) -> _PortUser:
    try:
        return _PortUser(cluster, find_access_ports(topology, cluster), has_path=True)
    except (Conflict, NotFound):
        linked = _list_linked_access_ports(topology, (*cluster.spec.all_hosts, *cluster.gateways))
        return _PortUser(cluster, frozenset(linked), has_path=False)


def find_used_access_ports(topology: Topology, cluster: LiveCluster) -> frozenset[PortRef]:
    """Return the access ports on a cluster's path.

    An ending cluster can lose its path before its hosts have removed the cluster. Then return all access ports that are
    linked to the cluster's hosts and gateways.
    """
    return _make_port_user(topology, cluster).ports


def _list_linked_access_ports(topology: Topology, names: Iterable[Name]) -> Iterator[PortRef]:
    known = (topology.elements[name] for name in names if name in topology.elements)
    for end in (PortRef.of(element.name, port) for element in known for port in element.ports):
        peer = topology.peers.get(end)
        if peer is not None and peer in topology.access_ports and isinstance(topology.element(peer.element), Switch):
            yield peer


class _PortUsers:
    """The users of access ports. A port has at most two users of each network: one with and one without a path."""

    def __init__(self) -> None:
        self.found: dict[PortRef, dict[tuple[str, bool], _PortUser]] = {}

    def add(self, user: _PortUser) -> None:
        for port in user.ports:
            self.found.setdefault(port, {}).setdefault((user.cluster.network.id, user.has_path), user)

    def check_free(self, user: _PortUser, sees: Callable[[str], bool] = lambda _owner: True) -> None:
        """Raise Conflict when a cluster and an earlier user exclude each other from a port."""
        for port in sorted(user.ports):
            other = next(filter(user.excludes, self.found.get(port, {}).values()), None)
            if other is not None:
                needs, holds = (user, other) if user.has_path else (other, user)
                raise Conflict(_describe_conflict(port, needs.cluster, holds, is_seen=sees(holds.cluster.spec.owner)))


def _describe_conflict(port: PortRef, cluster: LiveCluster, user: _PortUser, *, is_seen: bool) -> str:
    uses = "uses" if user.has_path else "may still use"
    holder, remedy = "another cluster", "try again when that cluster has ended"
    if is_seen:
        holder, remedy = f"cluster {user.cluster.key}", _choose_remedy(user)
    elif user.cluster.quarantined:
        remedy = "that cluster has ended: try again later"
    return (
        f"cluster {cluster.key} needs access port {port}, but {holder} {uses} this port, and an access port carries "
        f"only one network: {remedy}, or choose a host on a trunk"
    )


def _choose_remedy(user: _PortUser) -> str:
    if user.cluster.quarantined:
        return QUARANTINE_REMEDY
    key = user.cluster.key
    end = f"end cluster {key} if it still runs, and " if user.has_path else ""
    return f"{end}wait until cluster {key} has ended"


def check_ports_exclusive(topology: Topology, clusters: Iterable[LiveCluster]) -> None:
    """Raise Conflict when clusters of two networks need the same access port.

    A cluster without a path needs no port, but its hosts may still use their access ports.
    """
    users = _PortUsers()
    for user in (_make_port_user(topology, cluster) for cluster in clusters):
        users.check_free(user)
        users.add(user)


def check_ports_free(
    topology: Topology, cluster: LiveCluster, others: Iterable[LiveCluster], sees: Callable[[str], bool]
) -> None:
    """Raise Conflict when ``cluster`` needs an access port that one of the other clusters uses for another network.

    The error names the other cluster only if the caller may see clusters of its owner (``sees``). Ignore conflicts of
    the other clusters with each other.
    """
    users = _PortUsers()
    for other in others:
        users.add(_make_port_user(topology, other))
    users.check_free(_make_port_user(topology, cluster), sees)


def check_ports_stay_access(former: Topology, topology: Topology, clusters: Iterable[LiveCluster]) -> None:
    """Raise Conflict when an access port of a cluster is not an access port in the new ``topology``.

    Otherwise, the cluster's untagged VLAN would stay on the port for ever, because SBF does not remove an untagged VLAN
    of a trunk.
    """
    for user in (_make_port_user(former, cluster) for cluster in clusters):
        if lost := sorted(user.ports - topology.access_ports):
            raise Conflict(
                f"cluster {user.cluster.key} uses access port {lost[0]}, which is no access port in the new topology: "
                f"{_choose_remedy(user)}"
            )


def check_paths_unchanged(topology: Topology, network: LiveCluster, transport: Transport | None) -> None:
    """Raise Conflict when a network of one site would need other ports at the site to reach ``transport``."""
    if transport is None:
        return
    before, after = (find_path_ports(topology, network.spec, on) for on in (None, transport.name))
    if before != after:
        gained, lost = ", ".join(sorted(after - before)), ", ".join(sorted(before - after))
        raise Conflict(
            f"network {network.key} would need other ports to reach transport {transport.name}, and would "
            f"{f'no longer use {lost}' if lost else f'also use {gained}'}: choose a host at the site of the network"
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
    """Return the remedy, as the end of a message, if a network's VLAN ID is not free at a new site or transport."""
    return (
        f"; use hosts at {' and '.join(sorted(network.vlans))}, or create the network again with its later sites "
        "(`sites` of the spec), so that SBF chooses a VLAN ID that is free there too"
    )
