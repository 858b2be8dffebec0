"""One schedule: the events that a seed determines, the checks after each step, and the final check."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from random import Random

from support.sbf_fakes.world import edge_site, site, spec

from sbf_service.settings import ServiceSettings
from simulation.actors import Agent, Replica
from simulation.devices import FAULTS, OTHERS_IN_POOL, Edge, Host, Switch
from simulation.invariants import Invariants, require
from simulation.stage import Actor, Stage
from simulation.store import MemoryStore
from simulation.transactions import ANSWERS_ARE_LOST, UNREACHABLE, Database
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.element import Edge as EdgeElement
from virtcloud.model.element import Switch as SwitchElement
from virtcloud.model.errors import Conflict, Gone, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

SITES = ("brno", "praha")
HOSTS = ("brno-h1", "praha-h1")
REPLICAS = ("r1", "r2")
DRIFT = timedelta(seconds=ServiceSettings().timing.drift_interval)
TOPOLOGY = Topology.model_validate(
    {
        "name": "two",
        "transports": [{"name": "core", "kind": "qinq", "s_tag": 2000}],
        "sites": [site(name, hosts=1) for name in SITES],
        "links": [{"a": f"{name}-h1:eth0", "b": f"{name}-sw1:p1"} for name in SITES],
    }
)
WITH_EDGES = Topology.model_validate(
    {
        "name": "edges",
        "transports": [{"name": "evpn", "kind": "evpn", "vnis": "10100-10101", "asn": 65000}],
        "sites": [edge_site(name, "evpn") for name in SITES],
        "links": [{"a": f"{name}-h1:eth0", "b": f"{name}-sw1:p1"} for name in SITES]
        + [{"a": f"{name}-sw1:uplink", "b": f"{name}-pe1:ac"} for name in SITES],
    }
)
EDGE_INTERVAL = 5
"""Every fifth schedule uses a topology with provider edges."""
STRIDES = (1, 1, 2, 4, 8)
"""The possible numbers of calls that an actor makes before another actor may run."""
POOL = VlanSet.parse("100-102")
OWNERS = ("alice", "bob")
REQUESTS = [
    ClusterRequest(
        spec=spec(*hosts, owner=owner, shares_with=OWNERS, lease_s=400 if attempt == 1 else 1500), attempt=attempt
    )
    for hosts in (("brno-h1",), HOSTS)
    for owner, attempt in (("alice", None), ("alice", 1), ("alice", 2), ("bob", None), ("bob", 1))
] + [
    ClusterRequest(spec=spec(hosts=hosts, joins=key, lease_s=1500), attempt=attempt)
    for hosts in (("praha-h1",), HOSTS)
    for key in "ab"
    for attempt in (None, 2)
]
"""The 18 possible requests. 8 join another cluster's network, 4 have the owner bob, and 4 have leases of 400 s."""


@dataclass
class Schedule:
    """All events of one seed. ``history`` contains the time and the description of each past event."""

    seed: int
    history: list[tuple[datetime, str]] = field(default_factory=list)
    stage: Stage = field(default_factory=Stage)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.topology = TOPOLOGY if self.seed % EDGE_INTERVAL else WITH_EDGES
        self.store = MemoryStore(self.topology, POOL)
        self.database = Database(self.store, self.stage)
        self.store.foreign = {Name("praha"): VlanSet([OTHERS_IN_POOL])}
        self.devices = dict(self._devices())
        self.hosts = {Name(name): Host(Name(name)) for name in HOSTS}
        self.things: dict[Name, Switch | Edge | Host] = {**self.devices, **self.hosts}
        self.invariants = Invariants(self.store, self.stage, self.devices, self.hosts)
        self.replicas = [Replica(name, self.database, self.devices, self.random.random) for name in REPLICAS]
        self.down: list[Replica] = []
        self.events: dict[Callable[[], str], int] = {
            self.run_actor: 70,
            self.start_replica_round: 20,
            self.start_agent: 12,
            self.request_cluster: 8,
            self.end_cluster: 4,
            self.pause_actor: 3,
            self.continue_actor: 2,
            self.kill_or_start_replica: 3,
            self.kill_agents: 1,
            self.toggle_device_fault: 4,
            self.toggle_database_fault: 1,
            self.restart_element: 4,
            self.advance_time: 4,
        }

    def _devices(self) -> Iterator[tuple[Name, Switch | Edge]]:
        for name, element in self.topology.elements.items():
            row, coin = self.store.elements[name], self.coin
            if isinstance(element, SwitchElement):
                device: Switch | Edge = Switch(name, row, self.stage, coin, managed=element.ports)
            elif isinstance(element, EdgeElement):
                device = Edge(name, row, self.stage, coin)
            else:
                continue
            if isinstance(device, Switch) and row.site in self.store.foreign:
                device.foreign_vlans |= {OTHERS_IN_POOL}
            device.furnish(factory=self.coin())
            yield name, device

    def coin(self) -> bool:
        return self.random.random() < 0.5

    def run(self, steps: int = 120) -> None:
        try:
            if self.coin():
                self.request_initial_clusters()
            for event in self.random.choices(list(self.events), weights=list(self.events.values()), k=steps):
                self.record(event())
                self.invariants.check()
            self.check_convergence()
        finally:
            for one in list(self.stage.actors):
                one.kill()

    def request_initial_clusters(self) -> None:
        self.stage.each_time = self.check_at
        for _ in range(2):
            self.record(self.request_cluster())
        self.run_all_actors()
        self.run_all_actors()
        self.record("faults begin")

    def run_all_actors(self) -> None:
        for replica in (*self.replicas, *self.replicas):
            replica.scheduler.run_once()
        require(not self.store.is_overdue(), "invariant 3: a deadline has passed, and its cluster has not changed")
        for host in self.hosts.values():
            Agent(self.database, host).run()
        self.invariants.check()

    def record(self, what: str) -> None:
        self.history.append((self.store.now, what))

    @property
    def log(self) -> list[str]:
        return [f"{at:%H:%M:%S} {what}" for at, what in self.history]

    # events

    def run_actor(self) -> str:
        awake = [one for one in self.stage.actors if not one.paused]
        if not awake:
            return self.start_replica_round()
        one = self.random.choice(awake)
        for _ in range(self.random.choice(STRIDES) - 1):
            if not one.ended:
                self.record(self.advance(one))
                self.invariants.check()
        return self.advance(one) if not one.ended else "no step: the actor has ended"

    def advance(self, one: Actor) -> str:
        at = one.at
        self.stage.advance(one)
        return f"{one.holder} ({one.element}): {at}{', and has ended' if one.ended else ''}"

    def start_replica_round(self) -> str:
        up = [one for one in self.replicas if one not in self.down]
        if not up:
            return "no replica runs"
        one = self.random.choice(up)
        if any((actor.holder, actor.element) == (one.holder, "") for actor in self.stage.actors):
            return f"{one.holder} already runs a round"
        self.stage.enter(partial(one.scheduler.run_once, reads_all=self.coin()), one.holder, "")
        if self.coin():
            return f"{one.holder} starts a round"
        actor = self.stage.actors[-1]
        while not actor.ended:
            self.stage.advance(actor)
        return f"{one.holder} runs a round"

    def start_agent(self) -> str:
        host = self.random.choice(list(self.hosts.values()))
        if any(one.element == host.name for one in self.stage.actors):
            return f"the agent of {host.name} already runs"
        self.stage.enter(Agent(self.database, host).run, "its agent", host.name)
        return f"the agent of {host.name} starts"

    def request_cluster(self) -> str:
        key, request = self.random.choice("abc"), self.random.choice(REQUESTS)
        what = f"{key} is requested (attempt {request.attempt}, {', '.join(request.spec.all_hosts)})"
        known = len(self.store.clusters)
        before = {(one.id, at) for one in self.store.clusters for at in one.claims}
        try:
            row = self.store.put(key, request)
        except (Conflict, NotFound, Gone) as error:
            return f"{what}: {type(error).__name__}"
        if len(self.store.clusters) > known:
            changes = self.store.changes
            require(
                self.store.put(key, request) is row and self.store.changes == changes,
                "invariant 7: a repeated request changed something",
            )
            own = row.network
            for at, vlan in own.claims.items():
                used = (own.id, at) not in before and vlan in self.invariants.list_carried_vlans(at)
                require(not used, f"invariant 2: VLAN {vlan} at {at} was allocated while an element carries it")
            used = row is own and own.service in self.invariants.list_carried_services()
            require(not used, f"invariant 2: service {own.service} was allocated while an edge carries it")
        return f"{what}: {row.state}, {dict(row.network.claims)}"

    def end_cluster(self) -> str:
        newest = [one for one in self.store.clusters if one is self.store.find_newest(one.key)]
        if not newest:
            return "no cluster to end"
        meant = self.random.choice(self.random.choice((newest, newest, newest, self.store.clusters)))
        changes = self.store.changes
        try:
            self.store.end(meant.key, meant.attempt, meant.spec.owner)
        except Gone:
            require(
                meant not in newest and changes == self.store.changes, f"a late call about {meant.id} changed something"
            )
            return f"{meant.id} is not ended: the call is late"
        require(meant in newest, f"a call about {meant.id} ended another cluster")
        return f"{meant.id} is ended"

    def pause_actor(self) -> str:
        for one in self.stage.actors:
            if not one.paused and one.holder in REPLICAS:
                one.paused = True
                return f"{one.holder} is paused during its work on {one.element}, before: {one.at}"
        return "no actor to pause"

    def continue_actor(self) -> str:
        for one in self.stage.actors:
            if one.paused:
                one.paused = False
                return f"{one.holder} continues its work on {one.element}"
        return "no actor to continue"

    def kill_or_start_replica(self) -> str:
        one = self.random.choice(self.replicas)
        if one in self.down:
            self.down.remove(one)
            one.start()
            return f"{one.holder} starts again"
        self.down.append(one)
        return f"{one.holder} is killed, with {self.stage.kill(one.holder)} tasks in progress"

    def kill_agents(self) -> str:
        return f"all agents are killed, {self.stage.kill('its agent')} during their work"

    def toggle_device_fault(self) -> str:
        device = self.random.choice(list(self.devices.values()))
        device.fault = None if device.fault else self.random.choice(FAULTS)
        return f"{device.name}: {device.fault or 'no fault'}"

    def toggle_database_fault(self) -> str:
        self.database.fault = None if self.database.fault else self.random.choice((UNREACHABLE, ANSWERS_ARE_LOST))
        return f"the database {self.database.fault or 'works'}"

    def restart_element(self) -> str:
        one = self.random.choice(list(self.things.values()))
        erased = self.random.random() < 0.3
        one.restart(erased=erased)
        if isinstance(one, Switch | Edge):
            self.invariants.foreign[one.name] = one.read_foreign()
        return f"{one.name} restarts{', erased' if erased else ''}"

    def advance_time(self) -> str:
        seconds = self.random.choice([1, 30, 95, 95, 130, 310, 1600])
        self.store.now += timedelta(seconds=seconds)
        return f"{seconds} s pass"

    def check_convergence(self) -> None:
        """Remove all faults, resume all actors, and check invariant 3."""
        self.database.fault = None
        for device in self.devices.values():
            device.fault = None
        for replica in self.down:
            replica.start()
        self.record("all faults are removed")
        while self.stage.actors:
            self.record(self.advance(self.stage.actors[0]))
            self.invariants.check()
        self.stage.each_time = self.check_at
        for seconds in (DRIFT.total_seconds() + 1, 31, 31, 140):
            self.store.now += timedelta(seconds=seconds)
            self.run_all_actors()
        self.invariants.check_converged()

    def check_at(self, at: str) -> None:
        self.record(at)
        self.invariants.check()
