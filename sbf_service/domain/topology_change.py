"""The difference between two versions of the topology: sites, elements, ports and transports. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sbf_service.domain.paths import LiveCluster, find_cluster_ports
from virtcloud.model.changes import PathChange
from virtcloud.model.element import Device, Element, Host, kind_of
from virtcloud.model.errors import Conflict, HostNotLinked
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Link, Site
from virtcloud.model.topology_parts import has_equal_paths
from virtcloud.model.values import Name, PortRef
from virtcloud.model.yield_points import MANY, pausable_property, with_yield_points

SHOWN_FAULTS = 20


@dataclass(frozen=True)
class TopologyChange:
    """The change from a former topology to a new topology, only at the sites in ``sites``."""

    former: Topology
    topology: Topology

    def compute(self) -> None:
        """Compute and cache all differences, unless the change keeps all paths: such a change needs no differences."""
        if not self.keeps_paths:
            _ = self.sites, self.elements, self.changed_elements, self.lost_elements, self.lost_device_ports

    @pausable_property
    def sites(self) -> frozenset[Name]:
        """The sites that the change concerns.

        These are all sites if a transport differs, and otherwise the sites whose descriptions or links differ. If one
        of these sites has provider edges in either topology, and its edges or attachments differ, the result also
        contains all other sites with edges.
        """
        former, topology = self.former.sites_by_name, self.topology.sites_by_name
        if self.changes_transports:
            return frozenset(former.keys() | topology.keys())
        names = with_yield_points(former.keys() | topology.keys())
        differing = {name for name in names if not _is_same(former, topology, name)}
        of_edges = (
            name for name in differing if _describe_edges(former.get(name)) != _describe_edges(topology.get(name))
        )
        if next(of_edges, None) is not None:  # drivers of edges need the loopbacks of the other edges
            differing |= {site.name for known in (former, topology) for site in known.values() if site.edges}
        return frozenset(differing | set(self._list_sites_of_links()))

    @property
    def changes_transports(self) -> bool:
        """Whether any transport differs."""
        return self.former.transports != self.topology.transports

    @pausable_property
    def keeps_paths(self) -> bool:
        """Whether no path and no wanted state can change (:func:`has_equal_paths`)."""
        return has_equal_paths(self.former, self.topology)

    @pausable_property
    def elements(self) -> frozenset[Name]:
        """The elements that the former or the new topology has at :attr:`sites`."""
        return frozenset(
            element.name
            for known in (self.former.sites_by_name, self.topology.sites_by_name)
            for name in with_yield_points(self.sites & known.keys())
            for element in known[name].elements
        )

    @pausable_property
    def changed_elements(self) -> frozenset[Name]:
        """The new topology's elements that the former topology lacks, has at another site, or describes differently.

        Different descriptions of a host do not count: the host's wanted state depends only on the paths of clusters
        (:class:`.TopologyEffects`).
        """
        before, sites = self.former.elements, self.topology.sites_by_name
        return frozenset(
            element.name
            for name in with_yield_points(self.sites & sites.keys())
            for element in sites[name].elements
            if not _is_configured_alike(before.get(element.name), element) or self._has_moved(element.name)
        )

    @property
    def common_elements(self) -> frozenset[Name]:
        """The elements of :attr:`sites` that are in both topologies."""
        return self.elements & self.former.elements.keys() & self.topology.elements.keys()

    @pausable_property
    def lost_elements(self) -> frozenset[Name]:
        """The former elements that the new topology lacks, or has with another kind or at another site."""
        if self.keeps_paths:
            return frozenset()
        known = with_yield_points(self.elements & self.former.elements.keys(), every=MANY)
        return frozenset(name for name in known if self._is_lost(name))

    @pausable_property
    def lost_ports(self) -> frozenset[PortRef]:
        """The ports of :attr:`common_elements` that the new topology lacks."""
        if self.keeps_paths:
            return frozenset()
        before, after = self.former.elements, self.topology.elements
        return frozenset(
            PortRef.of(name, port)
            for name in with_yield_points(self.common_elements, every=MANY)
            if before[name].ports != after[name].ports
            for port in set(before[name].ports) - set(after[name].ports)
        )

    @pausable_property
    def lost_device_ports(self) -> frozenset[PortRef]:
        """The ports in :attr:`lost_ports` that belong to switches and edges of the former topology.

        SBF records the observed state and pending saves only of these elements.
        """
        former = self.former.elements
        ports = with_yield_points(self.lost_ports, every=MANY)
        return frozenset(port for port in ports if isinstance(former[port.element], Device))

    def _is_lost(self, name: Name) -> bool:
        if name not in self.topology.elements:
            return True
        kinds = kind_of(self.former.elements[name]), kind_of(self.topology.elements[name])
        return self._has_moved(name) or kinds[0] is not kinds[1]

    def _has_moved(self, name: Name) -> bool:
        return self.former.site_of[name].name != self.topology.site_of[name].name

    def _list_sites_of_links(self) -> Iterator[Name]:
        """Yield the sites of the links that only one of the two topologies has."""
        before, after = self.former.links_by_site, self.topology.links_by_site
        for name in with_yield_points(before.keys() | after.keys()):
            if not _has_equal_links(before.get(name, ()), after.get(name, ())):
                yield name
        for known, other in ((self.former, self.topology), (self.topology, self.former)):
            if known.links_between is not other.links_between:
                for link in set(known.links_between).difference(other.links_between):
                    yield from (known.site_of[end.element].name for end in link.ends)


def list_broken_paths(topology: Topology, live: Iterable[LiveCluster]) -> Iterator[str]:
    """Yield an error for each cluster that a new topology cannot connect."""
    for cluster in live:
        try:
            find_cluster_ports(topology, cluster)
        except (Conflict, HostNotLinked) as error:
            yield f"the path of cluster {cluster.key} would break: {error}; or end the cluster first"


def join_faults(faults: Sequence[str]) -> str:
    """Return an error message with the faults of a change, each on its own line."""
    rest = [f"and {len(faults) - SHOWN_FAULTS} more"] if len(faults) > SHOWN_FAULTS else []
    return "\n".join([*faults[:SHOWN_FAULTS], *rest])


def list_path_changes(change: TopologyChange, live: Iterable[LiveCluster]) -> Iterator[PathChange]:
    """Yield each change of a cluster's path. Every cluster must have a path in both topologies."""
    for cluster in live:
        before, after = (find_cluster_ports(version, cluster) for version in (change.former, change.topology))
        if before != after:
            add, remove = (tuple(sorted(ports)) for ports in (after - before, before - after))
            yield PathChange(cluster=cluster.key, add=add, remove=remove)


def _has_equal_links(before: Sequence[Link], after: Sequence[Link]) -> bool:
    """Return whether two sequences contain the same links in any order. Each port has at most one link."""
    if before is after or before == after:
        return True
    known = {link.a: link for link in before}
    return len(before) == len(after) and all(known.get(link.a) == link for link in after)


def _is_same(former: Mapping[Name, object], topology: Mapping[Name, object], name: Name) -> bool:
    before, after = former.get(name), topology.get(name)
    return before is after or before == after


def _is_configured_alike(before: Element | None, after: Element) -> bool:
    both_hosts = isinstance(before, Host) and isinstance(after, Host)
    return before is after or both_hosts or before == after


def _describe_edges(site: Site | None) -> object:
    return None if site is None or not site.edges else (site.edges, site.attachments)
