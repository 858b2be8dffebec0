"""One schedule: the events that follow from a seed, the checks after each step, and the final check."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from sbf_fakes.world import edge_site, site, spec

from sbf_service.settings import ServiceSettings
from simulation.actors import Agent, Replica
from simulation.devices import FAULTS, OTHERS_IN_POOL, Edge, Host, Switch
from simulation.invariants import Invariants, must
from simulation.stage import Actor, Stage
from simulation.store import MemoryStore
from simulation.transactions import ANSWERS_ARE_LOST, AWAY, Database
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
ONE_IN = 5
"""One of this many schedules uses a topology with provider edges."""
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
"""8 of 18 requests join another cluster's network, 4 have the owner bob, and 4 have short leases."""


@dataclass
class Schedule:
    """All events of one seed. ``told`` are the lines about the events until now."""

    seed: int
    told: list[str] = field(default_factory=list)
    stage: Stage = field(default_factory=Stage)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.topology = TOPOLOGY if self.seed % ONE_IN else WITH_EDGES
        self.store = MemoryStore(self.topology, POOL)
        self.database = Database(self.store, self.stage)
        self.store.foreign = {Name("praha"): VlanSet([OTHERS_IN_POOL])}
        self.devices = dict(self._devices())
        self.hosts = {Name(name): Host(Name(name)) for name in HOSTS}
        self.things: dict[Name, Switch | Edge | Host] = {**self.devices, **self.hosts}
        self.invariants = Invariants(self.store, self.stage, self.devices, self.hosts)
        self.replicas = [Replica(name, self.database, self.devices, self.random.random) for name in REPLICAS]
        self.down: list[Replica] = []
        self.acts: dict[Callable[[], str], int] = {
            self.a_step: 70,
            self.a_replica_looks_around: 20,
            self.an_agent_starts: 12,
            self.somebody_asks: 8,
            self.somebody_ends: 4,
            self.one_is_paused: 3,
            self.one_is_woken: 2,
            self.a_replica_is_killed_or_starts: 3,
            self.an_agent_is_killed: 1,
            self.a_fault_comes_or_goes: 4,
            self.the_database_fails_or_works: 1,
            self.an_element_restarts: 4,
            self.time_passes: 4,
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
                device.theirs |= {OTHERS_IN_POOL}
            device.furnish(factory=self.coin())
            yield name, device

    def coin(self) -> bool:
        return self.random.random() < 0.5

    def run(self, steps: int = 120) -> None:
        """Run the schedule, then remove all faults and check the final state. Raise BrokenError."""
        try:
            if self.coin():
                self.begin_with_clusters()
            for act in self.random.choices(list(self.acts), weights=list(self.acts.values()), k=steps):
                self.tell(act())
                self.invariants.hold()
            self.leave_alone()
        finally:
            for one in list(self.stage.actors):
                one.kill()

    def begin_with_clusters(self) -> None:
        """Request two clusters before anything fails."""
        self.stage.each_time = self.hold_at
        for _ in range(2):
            self.tell(self.somebody_asks())
        self.everybody_acts()
        self.everybody_acts()
        self.tell("faults begin")

    def everybody_acts(self) -> None:
        """Run two rounds of each replica and one of each agent."""
        for replica in (*self.replicas, *self.replicas):
            replica.scheduler.run_once()
        must(not self.store.is_overdue(), "7.3: a deadline has passed, and its cluster's state has not changed")
        for host in self.hosts.values():
            Agent(self.database, host).run()
        self.invariants.hold()

    def tell(self, what: str) -> None:
        self.told.append(f"{self.store.now:%H:%M:%S} {what}")

    # events

    def a_step(self) -> str:
        awake = [one for one in self.stage.actors if not one.paused]
        if not awake:
            return self.a_replica_looks_around()
        one = self.random.choice(awake)
        for _ in range(self.random.choice(STRIDES) - 1):
            if not one.ended:
                self.tell(self.advance(one))
                self.invariants.hold()
        return self.advance(one) if not one.ended else "no step: the actor has ended"

    def advance(self, one: Actor) -> str:
        at = one.at
        self.stage.advance(one)
        return f"{one.holder} ({one.element}): {at}{', and has ended' if one.ended else ''}"

    def a_replica_looks_around(self) -> str:
        up = [one for one in self.replicas if one not in self.down]
        if not up:
            return "no replica runs"
        one = self.random.choice(up)
        if any((actor.holder, actor.element) == (one.holder, "") for actor in self.stage.actors):
            return f"{one.holder} already runs a round"
        self.stage.enter(one.scheduler.run_once, one.holder, "")
        if self.coin():
            return f"{one.holder} starts a round"
        actor = self.stage.actors[-1]
        while not actor.ended:
            self.stage.advance(actor)
        return f"{one.holder} runs a round"

    def an_agent_starts(self) -> str:
        host = self.random.choice(list(self.hosts.values()))
        if any(one.element == host.name for one in self.stage.actors):
            return f"the agent of {host.name} already runs"
        self.stage.enter(Agent(self.database, host).run, "its agent", host.name)
        return f"the agent of {host.name} starts"

    def somebody_asks(self) -> str:
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
            must(
                self.store.put(key, request) is row and self.store.changes == changes,
                "7.7: a repeated request changed something",
            )
            own = row.network
            for at, vlan in own.claims.items():
                used = (own.id, at) not in before and vlan in self.invariants.sure(at)
                must(not used, f"7.2: VLAN {vlan} at {at} was allocated while an element carries it")
            used = row is own and own.service in self.invariants.sure_services()
            must(not used, f"7.2: service {own.service} was allocated while an edge carries it")
        return f"{what}: {row.state}, {dict(row.network.claims)}"

    def somebody_ends(self) -> str:
        """End the newest cluster with a key, or make a late call about an earlier cluster."""
        newest = [one for one in self.store.clusters if one is self.store.latest(one.key)]
        if not newest:
            return "no cluster to end"
        meant = self.random.choice(self.random.choice((newest, newest, newest, self.store.clusters)))
        changes = self.store.changes
        try:
            self.store.end(meant.key, meant.attempt, meant.spec.owner)
        except Gone:
            must(
                meant not in newest and changes == self.store.changes, f"a late call about {meant.id} changed something"
            )
            return f"{meant.id} is not ended: the call is late"
        must(meant in newest, f"a call about {meant.id} ended another cluster")
        return f"{meant.id} is ended"

    def one_is_paused(self) -> str:
        for one in self.stage.actors:
            if not one.paused and one.holder in REPLICAS:
                one.paused = True
                return f"{one.holder} is paused during its work on {one.element}, before: {one.at}"
        return "no actor to pause"

    def one_is_woken(self) -> str:
        for one in self.stage.actors:
            if one.paused:
                one.paused = False
                return f"{one.holder} continues its work on {one.element}"
        return "no actor to continue"

    def a_replica_is_killed_or_starts(self) -> str:
        one = self.random.choice(self.replicas)
        if one in self.down:
            self.down.remove(one)
            one.start()
            return f"{one.holder} starts again"
        self.down.append(one)
        return f"{one.holder} is killed, with {self.stage.kill(one.holder)} tasks in progress"

    def an_agent_is_killed(self) -> str:
        return f"all agents are killed, {self.stage.kill('its agent')} during their work"

    def a_fault_comes_or_goes(self) -> str:
        device = self.random.choice(list(self.devices.values()))
        device.fault = None if device.fault else self.random.choice(FAULTS)
        return f"{device.name}: {device.fault or 'no fault'}"

    def the_database_fails_or_works(self) -> str:
        self.database.fault = None if self.database.fault else self.random.choice((AWAY, ANSWERS_ARE_LOST))
        return f"the database {self.database.fault or 'works'}"

    def an_element_restarts(self) -> str:
        one = self.random.choice(list(self.things.values()))
        erased = self.random.random() < 0.3
        one.restart(erased=erased)
        if isinstance(one, Switch | Edge):
            self.invariants.others[one.name] = one.others()
        return f"{one.name} restarts{', erased' if erased else ''}"

    def time_passes(self) -> str:
        seconds = self.random.choice([1, 30, 95, 95, 130, 310, 1600])
        self.store.now += timedelta(seconds=seconds)
        return f"{seconds} s pass"

    def leave_alone(self) -> None:
        """Remove all faults, continue all actors, and check §7.3.

        Every element must carry exactly the wanted state, and every cluster must be active or have ended.
        """
        self.database.fault = None
        for device in self.devices.values():
            device.fault = None
        for replica in self.down:
            replica.start()
        self.tell("all faults are removed")
        while self.stage.actors:
            self.tell(self.advance(self.stage.actors[0]))
            self.invariants.hold()
        self.stage.each_time = self.hold_at
        for seconds in (DRIFT.total_seconds() + 1, 31, 31, 140):
            self.store.now += timedelta(seconds=seconds)
            self.everybody_acts()
        self.invariants.rests()

    def hold_at(self, at: str) -> None:
        self.tell(at)
        self.invariants.hold()
