"""Capacity of hosts, and the placement of spreads.

A spread requests equal guests, for which SBF chooses hosts.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from sbf_service.domain.admission import (
    DEFAULT_LIMITS,
    RequestLimits,
    allows_open_filters,
    check_request_limits,
    find_host_fault,
)
from sbf_service.domain.network_conflicts import check_paths_unchanged, check_sites_attached, find_used_access_ports
from sbf_service.domain.paths import LiveCluster, choose_transport, find_path_ports, list_elements
from sbf_service.domain.placement import (
    DEFAULT_OVERCOMMIT,
    CandidateHost,
    ComputeResources,
    Overcommit,
    compute_total,
    place_guests,
    sum_used,
)
from sbf_service.log import get_log
from sbf_service.store.clusters.cluster_documents import parse_current_spec
from sbf_service.store.clusters.cluster_queries import find_unsettled_clusters
from sbf_service.store.clusters.cluster_statuses import read_placements
from sbf_service.store.clusters.live_clusters import make_live_clusters
from sbf_service.store.elements.revisions import require_element
from sbf_service.store.networks.networks import find_joinable_network, read_clusters_on
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.columns import split_ids
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.user_tables import ImageRow
from sbf_service.store.topology.current_topology import read_topology
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.access import ClusterOrigin
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.element import Host, Hypervisor
from virtcloud.model.errors import BeyondLimit, Conflict, NotFound
from virtcloud.model.guest_spec import GuestSpread
from virtcloud.model.image import ImageFormat
from virtcloud.model.topology import Topology
from virtcloud.model.topology_document import Site
from virtcloud.model.values import Name, PortRef, format_utc
from virtcloud.model.views import HostCapacity

log = get_log(__name__)


def record_capacity(unit: Unit, name: str, capacity: HostCapacity) -> None:
    """Record a host's capacity and image names; idempotent. Raise NotFound for an unknown element."""
    row = require_element(unit, name)
    row.cpus, row.memory_mb = capacity.cpus, capacity.memory_mb
    row.local_images = " ".join(sorted(set(capacity.images))) or None


def make_capacity(row: ElementRow) -> HostCapacity | None:
    """Return the reported capacity of an element, or None. Agents of version 0.1 report no capacity."""
    if row.cpus is None or row.memory_mb is None:
        return None
    return HostCapacity(cpus=row.cpus, memory_mb=row.memory_mb)


def place_spread(
    unit: Unit,
    spec: ClusterSpec,
    origin: ClusterOrigin,
    overcommit: Overcommit = DEFAULT_OVERCOMMIT,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> ClusterSpec:
    """Return the spec with the guests of its spread, if it has one, each with a chosen host.

    Call this in the transaction that inserts the cluster, so that the free capacity does not change (decision 10).
    Raise NoCapacity if the hosts have too little free capacity. Raise NotFound for an unknown site. Raise Conflict if
    no transport connects the chosen sites. Raise BeyondLimit if the chosen hosts exceed ``limits``. Raise the errors of
    :func:`find_joinable_network` if the spec joins a network.
    """
    if (spread := spec.spread) is None:
        return spec
    topology = read_topology(unit)
    sites = [topology.site(name) for name in spread.sites] or list(topology.sites)
    network = None if spec.joins is None else make_live_clusters(unit, [find_joinable_network(unit, spec)])[0]
    hosts = _HostReader(unit, topology, spec, spread, origin, overcommit, network)
    guests = place_guests(spread, list(hosts.read(sites)))
    placed = spec.model_copy(update={"guests": (*spec.guests, *guests), "spread": None})
    try:
        check_request_limits(limits, placed)
    except BeyondLimit as error:
        raise BeyondLimit(f"{error}; SBF chose hosts for the guests of spec.spread: request fewer guests") from error
    try:
        choose_transport(topology, placed.all_hosts, placed.sites)
    except Conflict as error:
        advice = "SBF chose the sites of the guests: name connected sites (--sites, spread.sites)"
        raise Conflict(f"{error}; {advice}") from error
    return placed


@dataclass(frozen=True, slots=True)
class _HostReader:
    unit: Unit
    topology: Topology
    spec: ClusterSpec
    spread: GuestSpread
    origin: ClusterOrigin
    overcommit: Overcommit
    network: LiveCluster | None
    """The cluster whose network the spec joins, or None for a new network."""

    @property
    def opens_filters(self) -> bool:
        """Whether the cluster has open filters: its guests may use any MAC address."""
        return (self.network or self).spec.filters == "open"

    def read(self, sites: Collection[Site]) -> Iterator[CandidateHost]:
        names = {site.name for site in sites}
        rows = {
            row.name: row
            for group in split_ids(names)
            for row in self.unit.session.scalars(select(ElementRow).where(ElementRow.site.in_(group)))
        }
        specs, unknown = self._read_specs(find_unsettled_clusters(self.unit, rows))
        used = sum_used([*specs, self.spec])
        taken, silent = self._find_taken_ports(), {row.name for row in rows.values() if not row.reachable}
        for site in self.topology.sites:
            for host in site.hosts if site.name in names else ():
                obstacle = (
                    "SBF cannot read a cluster on the host (log: cluster_unreadable)" if host.name in unknown else None
                )
                obstacle = obstacle or self._find_obstacle(host, rows[host.name], taken, silent)
                yield self._make_candidate(site, host, rows[host.name], used, obstacle)

    def _read_specs(self, rows: Sequence[ClusterRow]) -> tuple[list[ClusterSpec], frozenset[str]]:
        specs, unreadable = [], []
        for row in rows:
            try:
                specs.append(parse_current_spec(row))
            except ValueError as error:
                log.fault("cluster_unreadable", error, cluster=row.id)
                unreadable.append(row.id)
        placed = (read_placements(self.unit, unreadable) if unreadable else {}).values()
        return specs, frozenset(placement.element for placements in placed for placement in placements)

    def _make_candidate(
        self, site: Site, host: Host, row: ElementRow, used: Mapping[Name, ComputeResources], obstacle: str | None
    ) -> CandidateHost:
        capacity = make_capacity(row)
        total = ComputeResources() if capacity is None else compute_total(capacity, self.overcommit)
        return CandidateHost(host.name, site.name, total, used.get(host.name, ComputeResources()), obstacle)

    def _find_obstacle(
        self, host: Host, row: ElementRow, taken: Collection[PortRef], silent: Collection[str]
    ) -> str | None:
        if not row.reachable or row.last_seen is None:
            since = "never sent a heartbeat" if row.last_seen is None else f"last seen {format_utc(row.last_seen)}"
            return f"its agent is unreachable ({since})"
        if row.cpus is None:
            return "its capacity is unknown: upgrade its agent, or name the host"
        kind = self._find_image_kind()
        if kind is not None and kind not in host.hypervisors:
            return f"it runs {' and '.join(host.hypervisors)} guests, and image {self.spread.image} is for {kind}"
        if self.opens_filters and not allows_open_filters(self.topology, host.name):
            return "it allows no guests with open filters"
        fault = find_host_fault(self.topology, host.name, self.spread.image, self.origin)
        return fault or self._find_path_fault(host.name, taken, silent)

    def _find_image_kind(self) -> Hypervisor | None:
        row = self.unit.session.get(ImageRow, self.spread.image)
        return None if row is None else ImageFormat(row.format).kind

    def _find_path_fault(self, host: Name, taken: Collection[PortRef], silent: Collection[str]) -> str | None:
        try:
            ports = find_path_ports(self.topology, ClusterSpec(owner=self.spec.owner, hosts=(host,)))
            self._check_transport(host)
        except (Conflict, NotFound) as error:
            return str(error)
        if used := sorted(ports & set(taken)):
            return f"access port {used[0]} carries another network"
        if unanswering := sorted(list_elements(ports).intersection(silent)):
            return f"switch {unanswering[0]} does not answer"
        return None

    def _check_transport(self, host: Name) -> None:
        choose_transport(self.topology, (host, *self.spec.all_hosts), self.spec.sites)
        network, site = self.network, self.topology.site_of[host]
        if network is None or site.name in network.vlans:
            return
        if network.transport is not None:
            check_sites_attached(network, [site])
            return
        joined = network.spec
        check_paths_unchanged(
            self.topology, network, choose_transport(self.topology, (host, *joined.all_hosts), joined.sites)
        )

    def _find_taken_ports(self) -> frozenset[PortRef]:
        if not self.topology.access_ports:
            return frozenset()
        network = None if self.network is None else self.network.id
        switches = list_elements(self.topology.access_ports)
        others = (one for one in read_clusters_on(self.unit, switches) if one.network.id != network)
        return frozenset(port for cluster in others for port in find_used_access_ports(self.topology, cluster))
