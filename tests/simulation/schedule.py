"""One schedule: what a seed makes happen, what must hold after each step, and that all is well in the end."""

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
"""One schedule of so many goes over provider edges."""
STRIDES = (1, 1, 2, 4, 8)
"""How many calls somebody makes before somebody else may go on."""
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
"""Nearly half of them join another's network; a third is another owner's; some end soon by themselves."""


@dataclass
class Schedule:
    """Everything that happens for one seed; ``told`` is the story so far."""

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
        """Run the schedule, then heal everything. Raise BrokenError."""
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
        """Create two clusters before anything fails."""
        self.stage.each_time = self.hold_at
        for _ in range(2):
            self.tell(self.somebody_asks())
        self.everybody_acts()
        self.everybody_acts()
        self.tell("now things begin to go wrong")

    def everybody_acts(self) -> None:
        """Run one round of each replica and of each agent."""
        for replica in (*self.replicas, *self.replicas):
            replica.scheduler.run_once()
        must(not self.store.is_overdue(), "7.3: a deadline has passed, and no cluster moved")
        for host in self.hosts.values():
            Agent(self.database, host).run()
        self.invariants.hold()

    def tell(self, what: str) -> None:
        self.told.append(f"{self.store.now:%H:%M:%S} {what}")

    # what may happen

    def a_step(self) -> str:
        awake = [one for one in self.stage.actors if not one.paused]
        if not awake:
            return self.a_replica_looks_around()
        one = self.random.choice(awake)
        for _ in range(self.random.choice(STRIDES) - 1):
            if not one.ended:
                self.tell(self.advance(one))
                self.invariants.hold()
        return self.advance(one) if not one.ended else "nobody else is in the way"

    def advance(self, one: Actor) -> str:
        at = one.at
        self.stage.advance(one)
        return f"{one.holder} ({one.element}): {at}{', and is done' if one.ended else ''}"

    def a_replica_looks_around(self) -> str:
        up = [one for one in self.replicas if one not in self.down]
        if not up:
            return "no replica is there"
        one = self.random.choice(up)
        if any((actor.holder, actor.element) == (one.holder, "") for actor in self.stage.actors):
            return f"{one.holder} is looking around"
        self.stage.enter(one.scheduler.run_once, one.holder, "")
        if self.coin():
            return f"{one.holder} begins to look around"
        actor = self.stage.actors[-1]
        while not actor.ended:
            self.stage.advance(actor)
        return f"{one.holder} looks around"

    def an_agent_starts(self) -> str:
        host = self.random.choice(list(self.hosts.values()))
        if any(one.element == host.name for one in self.stage.actors):
            return f"the agent of {host.name} is under way"
        self.stage.enter(Agent(self.database, host).run, "its agent", host.name)
        return f"the agent of {host.name} starts"

    def somebody_asks(self) -> str:
        key, request = self.random.choice("abc"), self.random.choice(REQUESTS)
        what = f"{key} is asked for (attempt {request.attempt}, {', '.join(request.spec.all_hosts)})"
        known = len(self.store.clusters)
        before = {(one.id, at) for one in self.store.clusters for at in one.claims}
        try:
            row = self.store.put(key, request)
        except (Conflict, NotFound, Gone) as error:
            return f"{what}: {type(error).__name__}"
        if len(self.store.clusters) > known:
            changes = self.store.changes
            must(self.store.put(key, request) is row and self.store.changes == changes, "7.7: asked again")
            own = row.network
            for at, vlan in own.claims.items():
                used = (own.id, at) not in before and vlan in self.invariants.sure(at)
                must(not used, f"7.2: {vlan} at {at} was handed out while something carries it")
            used = row is own and own.service in self.invariants.sure_services()
            must(not used, f"7.2: service {own.service} was handed out, and is carried")
        return f"{what}: {row.state}, {dict(row.network.claims)}"

    def somebody_ends(self) -> str:
        """End the newest cluster under a key, or one that was the newest once: then it is too late."""
        newest = [one for one in self.store.clusters if one is self.store.latest(one.key)]
        if not newest:
            return "nothing to end"
        meant = self.random.choice(self.random.choice((newest, newest, newest, self.store.clusters)))
        changes = self.store.changes
        try:
            self.store.end(meant.key, meant.attempt, meant.spec.owner)
        except Gone:
            must(meant not in newest and changes == self.store.changes, f"a call about {meant.id} came too late")
            return f"{meant.id} is ended, too late"
        must(meant in newest, f"a call about {meant.id} ended another cluster")
        return f"{meant.id} is ended"

    def one_is_paused(self) -> str:
        for one in self.stage.actors:
            if not one.paused and one.holder in REPLICAS:
                one.paused = True
                return f"{one.holder} is stopped in the middle of {one.element}, before: {one.at}"
        return "nobody to stop"

    def one_is_woken(self) -> str:
        for one in self.stage.actors:
            if one.paused:
                one.paused = False
                return f"{one.holder} wakes in the middle of {one.element}"
        return "nobody to wake"

    def a_replica_is_killed_or_starts(self) -> str:
        one = self.random.choice(self.replicas)
        if one in self.down:
            self.down.remove(one)
            one.start()
            return f"{one.holder} starts anew"
        self.down.append(one)
        return f"{one.holder} is killed, in the middle of {self.stage.kill(one.holder)} things"

    def an_agent_is_killed(self) -> str:
        return f"all agents are killed, {self.stage.kill('its agent')} in the middle of something"

    def a_fault_comes_or_goes(self) -> str:
        device = self.random.choice(list(self.devices.values()))
        device.fault = None if device.fault else self.random.choice(FAULTS)
        return f"{device.name}: {device.fault or 'well'}"

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
        """§7.3: heal and wake everybody; every element comes to carry exactly what is wanted, clusters to rest."""
        self.database.fault = None
        for device in self.devices.values():
            device.fault = None
        for replica in self.down:
            replica.start()
        self.tell("everybody is well and left alone")
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
