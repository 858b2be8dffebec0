"""The store in memory. Its methods have the same effects as the transactions in ``sbf_service.store``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from sbf_service.domain.allocation import (
    ServicePool,
    SitePool,
    TransportVlans,
    allocate_service_id,
    allocate_vlan_ids,
)
from sbf_service.domain.cluster_status import ClusterStatus, PlacementStatus
from sbf_service.domain.due_elements import DeviceStatus
from sbf_service.domain.idempotency import (
    CreateAttempt,
    LatestAttempt,
    NoChange,
    check_attempt,
    check_owner,
    resolve_request,
)
from sbf_service.domain.lifecycle import ClusterTransition, compute_effects, find_transition, make_drain
from sbf_service.domain.paths import (
    ClusterNetwork,
    LiveCluster,
    choose_transport,
    find_cluster_ports,
    find_sites,
)
from sbf_service.domain.wanted import WantedState, compute_wanted
from sbf_service.settings import ServiceTiming
from sbf_service.store.elements.observed_state import compute_save_pause
from simulation.stage import Watched
from virtcloud.model.cluster import (
    ENDED_STATES,
    WANTED_STATES,
    ClusterRequest,
    ClusterSpec,
    ClusterState,
)
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.element import ElementKind, kind_of
from virtcloud.model.errors import Conflict, NoSuchNetwork, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.transport import Transport
from virtcloud.model.values import ClusterKey, Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

DRAIN = ServiceTiming().drain
LEASE = ServiceTiming().lease
SEEN_STEP = timedelta(seconds=5)
STARTED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Placement(Watched):
    """A cluster on an element: the revision that added the cluster, and the revision that removed it."""

    added: int
    removed: int | None = None


@dataclass(slots=True)
class Cluster(Watched):
    """A cluster's row, with its claims and placements.

    ``path`` contains the ports that must carry the cluster. In the simulation, these ports never change.
    """

    id: str
    key: str
    turn: int
    attempt: int
    spec: ClusterSpec
    deadline: datetime
    lease_ends: datetime
    state: ClusterState = ClusterState.CONFIGURING
    leaving_since: datetime | None = None
    quarantined: bool = False
    transport: Name | None = None
    service: int | None = None
    claims: Mapping[Name, VlanId] = field(default_factory=dict)
    placements: Mapping[Name, Placement] = field(default_factory=dict)
    path: tuple[tuple[Name, PortName], ...] = ()
    joined: "Cluster | None" = None

    @property
    def network(self) -> "Cluster":
        return self.joined or self

    @property
    def is_settled(self) -> bool:
        return self.state in ENDED_STATES and not self.quarantined

    def make_live(self) -> LiveCluster:
        root = self.network
        joined = None if self.joined is None else ClusterNetwork(root.id, ClusterKey(root.key), root.spec)
        return LiveCluster(self.id, ClusterKey(self.key), self.spec, root.claims, root.transport, root.service, joined)


@dataclass(slots=True)
class Element(Watched):
    """An element's row."""

    uncounted: ClassVar = frozenset(
        {
            "checked_at",
            "created",
            "failed_saves",
            "fence",
            "holder",
            "reachable",
            "save_after",
            "saved",
            "seen",
            "trouble",
            "unsaved_since",
            "until",
            "wanted",
        }
    )
    name: Name
    kind: ElementKind
    site: Name
    wanted: int = 1
    confirmed: int = 0
    reachable: bool = True
    trouble: bool = False
    checked_at: datetime | None = None
    seen: datetime | None = None
    saved: frozenset[object] = frozenset()
    created: VlanSet = VlanSet()  # noqa: RUF009 - immutable
    unsaved_since: datetime | None = None
    save_after: datetime | None = None
    failed_saves: int = 0
    holder: str | None = None
    until: datetime | None = None
    fence: int = 0


@dataclass
class MemoryStore:
    """The tables, and the units of work on them. The real code of ``sbf_service.domain`` makes the decisions."""

    topology: Topology
    pool: VlanSet
    now: datetime = STARTED
    changes: int = 0
    clusters: list[Cluster] = field(default_factory=list)
    foreign: dict[Name, VlanSet] = field(default_factory=dict)
    freed: dict[Name, dict[VlanId, datetime]] = field(default_factory=dict)
    freed_services: dict[Name, dict[int, datetime]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sites = self.topology.site_of
        self.elements = {
            name: Element(name, kind_of(element), sites[name].name) for name, element in self.topology.elements.items()
        }

    # clusters

    def put(self, key: str, request: ClusterRequest) -> Cluster:
        """Request a cluster. Raise the same errors as the real store.

        If the former attempt's cluster blocks the new attempt, drain and return the former cluster.
        """
        row = self.find_newest(key)
        former = None if row is None else LatestAttempt(row.attempt, row.state, row.spec)
        decision = resolve_request(key, request, former, self.find_highest_attempt(key, request.spec.owner))
        if isinstance(decision, NoChange) and row is not None:
            return row
        if isinstance(decision, CreateAttempt):
            return self._create(key, decision.attempt, request.spec)
        assert row is not None
        self.drain(row)
        return row

    def find_newest(self, key: str) -> Cluster | None:
        found = [cluster for cluster in self.clusters if cluster.key == key]
        return max(found, key=lambda cluster: (cluster.turn, cluster.attempt), default=None)

    def find_highest_attempt(self, key: str, owner: str) -> int | None:
        return max(
            (cluster.attempt for cluster in self.clusters if (cluster.key, cluster.spec.owner) == (key, owner)),
            default=None,
        )

    def end(self, key: str, attempt: int | None, owner: str | None) -> None:
        """Drain a cluster. Raise NotFound for an unknown key.

        Raise Gone for an earlier attempt or for another owner's cluster.
        """
        row = self.find_newest(key)
        if row is None:
            raise NotFound(key)
        check_owner(key, owner, row.spec.owner)
        check_attempt(key, attempt, row.attempt)
        self.drain(row)

    def drain(self, row: Cluster) -> None:
        if (transition := make_drain(row.state, "the cluster was ended")) is not None:
            self._apply_transition(row, transition)

    def apply_transitions(self) -> None:
        self._apply_transitions(self.clusters, with_deadlines=True)

    # elements

    def read_wanted(self, name: Name) -> tuple[int, int, WantedState]:
        row = self.elements[name]
        return row.wanted, row.confirmed, self._compute_wanted(name, self.make_live(name))

    def make_live(self, name: Name) -> list[LiveCluster]:
        return [
            cluster.make_live()
            for cluster in self.clusters
            if cluster.state in WANTED_STATES
            and name in cluster.placements
            and cluster.placements[name].removed is None
        ]

    def read_confirmed(self, name: Name) -> WantedState:
        confirmed = self.elements[name].confirmed
        ids = {
            cluster.id
            for cluster in self.clusters
            if name in cluster.placements and cluster.placements[name].added <= confirmed
        }
        return self._compute_wanted(name, [cluster for cluster in self.make_live(name) if cluster.id in ids])

    def _compute_wanted(self, name: Name, clusters: Iterable[LiveCluster]) -> WantedState:
        return compute_wanted(name, self.topology, clusters)

    def confirm(self, name: Name, revision: int, saved: frozenset[object] | None = None) -> None:
        row = self.elements[name]
        assert revision <= row.wanted
        row.checked_at = row.seen = self.now
        if saved is not None:
            self.record_saved(name, saved)
        if revision < row.confirmed:
            return
        row.confirmed, row.trouble, row.reachable = revision, False, True
        self._apply_transitions_on(name)

    def record_error(self, name: Name, *, reachable: bool) -> None:
        row = self.elements[name]
        row.trouble, row.reachable = True, reachable
        self._apply_transitions_on(name)

    def reset_confirmation(self, name: Name) -> None:
        self.elements[name].confirmed = 0
        self._apply_transitions_on(name)

    def record_pending_save(self, name: Name) -> None:
        row = self.elements[name]
        row.unsaved_since = row.unsaved_since or self.now

    def record_saved(self, name: Name, saved: frozenset[object]) -> None:
        row = self.elements[name]
        row.saved, row.unsaved_since, row.save_after, row.failed_saves = saved, None, None, 0

    def record_failed_save(self, name: Name) -> None:
        self.record_pending_save(name)
        row = self.elements[name]
        row.failed_saves += 1
        row.save_after = self.now + compute_save_pause(row.failed_saves)

    def record_heartbeat(self, name: Name) -> None:
        """Record a heartbeat of an agent. A stale agent stays unreachable until it confirms a revision."""
        row = self.elements[name]
        if row.seen is None or self.now - row.seen >= SEEN_STEP:
            row.seen = self.now

    def find_stale_agents(self, silence: timedelta) -> list[Name]:
        agents = [row for row in self.elements.values() if row.kind not in DEVICE_KINDS and row.reachable]
        return sorted(row.name for row in agents if row.seen is None or row.seen < self.now - silence)

    def is_overdue(self) -> bool:
        return any(
            find_transition(self._make_status(row), self.now, DRAIN) for row in self.clusters if not row.is_settled
        )

    # leases

    def acquire_lease(self, name: Name, holder: str) -> int | None:
        row = self.elements[name]
        if row.until is not None and row.until >= self.now and row.holder != holder:
            return None
        row.holder, row.until, row.fence = holder, self.now + LEASE, row.fence + 1
        return row.fence

    def renew_lease(self, name: Name, fence: int) -> bool:
        row = self.elements[name]
        if row.fence != fence or row.until is None:
            return False
        row.until = self.now + LEASE
        return True

    def release_lease(self, name: Name, fence: int) -> None:
        row = self.elements[name]
        if row.fence == fence:
            row.until = None

    def release_leases(self, holder: str) -> None:
        for row in self.elements.values():
            if row.holder == holder:
                row.until, row.fence = None, row.fence + 1

    def read_device_statuses(self, holder: str) -> list[DeviceStatus]:
        return [
            DeviceStatus(
                row.name,
                row.wanted,
                row.confirmed,
                row.checked_at,
                row.until is not None and row.until >= self.now and row.holder != holder,
                reachable=row.reachable,
            )
            for row in self.elements.values()
            if row.kind in DEVICE_KINDS
        ]

    # parts of transactions

    def _create(self, key: str, attempt: int, spec: ClusterSpec) -> Cluster:
        joined = None if spec.joins is None else self._network(spec.joins)
        former = self.find_newest(key)
        turn = 0 if former is None else former.turn + (former.spec.owner != spec.owner)
        row = Cluster(
            f"{key}-{turn}-{attempt}",
            key,
            turn,
            attempt,
            spec,
            self.now + timedelta(seconds=spec.deadline_s),
            self.now + timedelta(seconds=spec.lease_s),
            joined=joined,
        )
        root = row.network
        hosts = sorted({*root.spec.all_hosts, *spec.all_hosts})
        transport = (
            self.topology.transport(root.transport) if root.transport else choose_transport(self.topology, hosts)
        )
        translating = transport if transport is not None and transport.translates else None
        vlans = self._allocate_vlans(root, spec, transport)
        if root.service is None and translating is not None:
            root.service = allocate_service_id(self._make_service_pool(translating))
        root.claims = {**root.claims, **vlans}
        row.transport = root.transport = None if transport is None else transport.name
        row.path = tuple((end.element, end.port) for end in find_cluster_ports(self.topology, row.make_live()))
        elements = sorted({name for name, _ in row.path})
        self.increment_revisions(elements)
        row.placements = {name: Placement(self.elements[name].wanted) for name in elements}
        self.clusters.append(row)
        self.changes += 1
        return row

    def _network(self, key: str) -> Cluster:
        found = self.find_newest(key)
        if found is None or found.state in ENDED_STATES:
            raise NoSuchNetwork(f"network {key} is not known")
        if found.network.state not in WANTED_STATES:
            raise Conflict(f"network {key} is {found.network.state}")
        return found.network

    def _allocate_vlans(self, root: Cluster, spec: ClusterSpec, transport: Transport | None) -> dict[Name, VlanId]:
        pools = [self._make_site_pool(site.name) for site in find_sites(self.topology, spec.all_hosts)]
        translates, on_transport = transport is not None and transport.translates, self._find_taken(root, transport)
        if not root.claims:
            return allocate_vlan_ids(pools, translates=translates, on_transport=on_transport)
        vlan = root.claims[min(root.claims)]
        found: dict[Name, VlanId] = {}
        for pool in pools:
            if pool.site not in root.claims and vlan in pool.free and vlan not in on_transport.taken:
                found[pool.site] = vlan
            elif pool.site not in root.claims:
                found |= allocate_vlan_ids([pool]) if translates else allocate_vlan_ids([])
        return found

    def _find_taken(self, root: Cluster, transport: Transport | None) -> TransportVlans:
        """Return the VLAN IDs of other networks on a transport without a service for each network."""
        if transport is None or transport.translates:
            return TransportVlans(Name("none"), VlanSet())
        others = [one for one in self.clusters if one is not root and one.transport == transport.name]
        return TransportVlans(transport.name, VlanSet(vlan for one in others for vlan in one.claims.values()))

    def members(self, row: Cluster) -> list[Cluster]:
        return [cluster for cluster in self.clusters if cluster.joined is row]

    def _make_site_pool(self, site: Name) -> SitePool:
        held: dict[bool, list[VlanId]] = {False: [], True: []}
        for cluster in self.clusters:
            if site in cluster.claims:
                held[cluster.quarantined].append(cluster.claims[site])
        return SitePool(
            site,
            self.pool,
            VlanSet(held[False]),
            VlanSet(held[True]),
            freed=self.freed.get(site, {}),
            foreign=self.foreign.get(site, VlanSet()),
        )

    def _make_service_pool(self, transport: Transport) -> ServicePool:
        held = [
            cluster.service
            for cluster in self.clusters
            if cluster.transport == transport.name and cluster.service is not None
        ]
        freed = self.freed_services.get(transport.name, {})
        return ServicePool(transport.name, transport.services, frozenset(held), freed=freed)

    def increment_revisions(self, names: Iterable[Name]) -> None:
        for name in names:
            self.elements[name].wanted += 1

    def _apply_transitions_on(self, name: Name) -> None:
        self._apply_transitions([cluster for cluster in self.clusters if name in cluster.placements])

    def _apply_transitions(self, rows: Iterable[Cluster], *, with_deadlines: bool = False) -> None:
        networks: dict[str, Cluster] = {}
        for row in sorted(rows, key=lambda cluster: (cluster.deadline, cluster.key)):
            while row.state not in ENDED_STATES or row.quarantined:
                transition = find_transition(self._make_status(row), self.now, DRAIN, with_deadlines=with_deadlines)
                if transition is None:
                    break
                self._apply_transition(row, transition)
                if row.joined is not None:
                    networks[row.joined.id] = row.joined
        if networks:
            self._apply_transitions(networks.values(), with_deadlines=with_deadlines)

    def _apply_transition(self, row: Cluster, transition: ClusterTransition) -> None:
        effects = compute_effects(row.state, None, transition)
        row.state, row.quarantined = effects.state, effects.quarantined
        self.changes += 1
        if effects.leaves:
            row.leaving_since = self.now
            carrying = [name for name, part in row.placements.items() if part.removed is None]
            self.increment_revisions(carrying)
            for name in carrying:
                row.placements[name].removed = self.elements[name].wanted
            for member in sorted(self.members(row), key=lambda cluster: (cluster.deadline, cluster.key)):
                self.drain(member)
        if effects.frees:
            for site, vlan in row.claims.items():
                self.freed.setdefault(site, {})[vlan] = self.now
            if row.service is not None and row.transport is not None:
                self.freed_services.setdefault(row.transport, {})[row.service] = self.now
            row.claims, row.service = {}, None

    def _make_status(self, row: Cluster) -> ClusterStatus:
        return ClusterStatus(
            row.id,
            row.state,
            tuple(self._make_placement_status(name, part) for name, part in row.placements.items()),
            row.deadline,
            row.lease_ends,
            row.leaving_since,
            row.quarantined,
            tuple(self._make_status(cluster) for cluster in self.members(row) if not cluster.is_settled),
        )

    def _make_placement_status(self, name: Name, part: Placement) -> PlacementStatus:
        element = self.elements[name]
        return PlacementStatus(
            name, element.kind, element.site, part.added, part.removed, element.confirmed, element.reachable
        )
