"""One schedule: what a seed lets happen, what must hold after each step, and that all is well in the end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from sbf_fakes.world import edge_site, site, spec

from sbf_service.converge.choose import choose
from sbf_service.settle import Move, Standing, settle
from sbf_service.wanted import ports_for
from simulation.actors import Agent, Steps, Worker
from simulation.devices import FAULTS, Edge, Host, Switch
from simulation.store import Cluster, MemoryStore
from virtcloud.model.cluster import ENDED, ClusterRequest, State
from virtcloud.model.element import ElementKind, kind_of
from virtcloud.model.errors import Conflict, Gone, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchWanted

SITES = ("brno", "praha")
HOSTS = ("brno-h1", "praha-h1")
REPLICAS = ("r1", "r2")
DRIFT = timedelta(seconds=300)
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
OWNERS = ("alice", "bob")
REQUESTS = [
    ClusterRequest(spec=spec(*hosts, owner=owner, shares_with=OWNERS, lease_s=1500), attempt=attempt)
    for hosts in (("brno-h1",), HOSTS)
    for owner, attempt in (("alice", None), ("alice", 1), ("alice", 2), ("bob", None), ("bob", 1))
] + [
    ClusterRequest(spec=spec(hosts=hosts, joins=key, lease_s=1500), attempt=attempt)
    for hosts in (("praha-h1",), HOSTS)
    for key in "ab"
    for attempt in (None, 2)
]
"""Nearly half of them join another's network; a third is another owner's."""

MADE = {ElementKind.SWITCH: Switch, ElementKind.EDGE: Edge, ElementKind.HOST: Host}


class BrokenError(AssertionError):
    """What must always hold does not."""


@dataclass(frozen=True)
class Planted:
    """Bugs that a test plants, to see them found."""

    settle: Callable[[Standing, object, timedelta], Move | None] = settle
    reads_back: bool = True
    keeps_fence: bool = True


@dataclass
class Running:
    """A worker or an agent under way; ``paused`` is stopped, and may be woken long after."""

    steps: Steps
    element: Name
    holder: str
    paused: bool = False


@dataclass
class Schedule:
    """Everything that happens for one seed; ``told`` is the story so far."""

    seed: int
    planted: Planted = field(default_factory=Planted)
    told: list[str] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.topology = TOPOLOGY if self.seed % ONE_IN else WITH_EDGES
        self.store = MemoryStore(
            self.topology, VlanSet.parse("100-102"), settle=self.planted.settle, keeps_fence=self.planted.keeps_fence
        )
        self.things: dict[Name, Switch | Edge | Host] = {
            name: MADE[kind_of(one)](name) for name, one in self.topology.elements.items()
        }
        self.acts: dict[Callable[[], str], int] = {
            self.a_step: 60,
            self.a_worker_starts: 14,
            self.an_agent_starts: 12,
            self.somebody_asks: 8,
            self.somebody_ends: 4,
            self.one_is_paused: 3,
            self.one_is_woken: 2,
            self.one_crashes: 2,
            self.a_fault_comes_or_goes: 4,
            self.an_element_restarts: 3,
            self.time_passes: 3,
        }

    def run(self, steps: int = 80) -> None:
        """Let it all happen, then leave everybody alone. Raises BrokenError."""
        acts = self.random.choices(list(self.acts), weights=list(self.acts.values()), k=steps)
        for act in acts:
            self.tell(act())
            self.hold()
        self.leave_alone()

    def tell(self, what: str) -> None:
        self.told.append(f"{self.store.now:%H:%M:%S} {what}")

    # what may happen

    def a_step(self) -> str:
        awake = [one for one in self.running if not one.paused]
        if not awake:
            return "nobody is under way"
        return self.advance(self.random.choice(awake))

    def advance(self, one: Running) -> str:
        try:
            next(one.steps)
        except StopIteration:
            self.running.remove(one)
            return f"{one.holder} is done with {one.element}"
        return f"{one.holder} goes on with {one.element}"

    def a_worker_starts(self) -> str:
        holder = self.random.choice(REPLICAS)
        busy = {one.element for one in self.running if one.holder == holder}
        names = choose(
            self.store.candidates(holder),
            now=self.store.now,
            clock=0,
            drift_interval=DRIFT,
            busy=busy,
            retries={},
            room=8,
        )
        if not names:
            return f"{holder} has nothing to do"
        name = self.random.choice(names)
        self.running.append(Running(self.worker(name, holder), name, holder))
        return f"{holder} starts with {name}"

    def worker(self, name: Name, holder: str) -> Steps:
        device = self.things[name]
        assert isinstance(device, Switch | Edge)
        return Worker(self.store, device, holder, self.planted.reads_back).run()

    def an_agent_starts(self) -> str:
        name = Name(self.random.choice(HOSTS))
        if any(one.element == name for one in self.running):
            return f"the agent of {name} is under way"
        self.running.append(Running(self.agent(name), name, "its agent"))
        return f"the agent of {name} starts"

    def agent(self, name: Name) -> Steps:
        host = self.things[name]
        assert isinstance(host, Host)
        return Agent(self.store, host).run()

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
            self.must(self.store.put(key, request) is row and self.store.changes == changes, "7.7: asked again")
            own = row.network
            for at, vlan in own.claims.items():
                used = (own.id, at) not in before and vlan in self.sure(at)
                self.must(not used, f"7.2: {vlan} at {at} was handed out while something carries it")
            used = row is own and own.service in self.sure_services()
            self.must(not used, f"7.2: service {own.service} was handed out, and is carried")
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
            self.must(meant not in newest and changes == self.store.changes, f"a call about {meant.id} came too late")
            return f"{meant.id} is ended, too late"
        self.must(meant in newest, f"a call about {meant.id} ended another cluster")
        return f"{meant.id} is ended"

    def one_is_paused(self) -> str:
        for one in self.running:
            if not one.paused and one.holder in REPLICAS:
                one.paused = True
                return f"{one.holder} is stopped in the middle of {one.element}"
        return "nobody to stop"

    def one_is_woken(self) -> str:
        for one in self.running:
            if one.paused:
                one.paused = False
                return f"{one.holder} wakes in the middle of {one.element}"
        return "nobody to wake"

    def one_crashes(self) -> str:
        if not self.running:
            return "nobody to crash"
        one = self.running.pop(self.random.randrange(len(self.running)))
        return f"{one.holder} dies in the middle of {one.element}"

    def a_fault_comes_or_goes(self) -> str:
        device = self.random.choice([one for name, one in self.things.items() if name not in HOSTS])
        device.fault = None if device.fault else self.random.choice(FAULTS)
        return f"{device.name}: {device.fault or 'well'}"

    def an_element_restarts(self) -> str:
        one = self.random.choice(list(self.things.values()))
        erased = self.random.random() < 0.5
        one.restart(erased=erased)
        return f"{one.name} restarts{', erased' if erased else ''}"

    def time_passes(self) -> str:
        seconds = self.random.choice([1, 30, 90, 90, 130, 310, 1600])
        self.store.now += timedelta(seconds=seconds)
        self.store.sweep()
        return f"{seconds} s pass"

    # what must hold

    def hold(self) -> None:
        """Check DESIGN.md §7.1, 2 and 5."""
        held = [(at, vlan) for one in self.store.clusters for at, vlan in one.claims.items()]
        self.must(len(held) == len(set(held)), f"7.1: a number is held twice: {held}")
        for at in SITES:
            claimed = {int(vlan) for site_name, vlan in held if site_name == at}
            stray = self.sure(Name(at)) - claimed
            self.must(not stray, f"7.2: {stray} is carried at {at} and claimed by nobody")
        services = [one.service for one in self.store.clusters if one.service is not None]
        self.must(len(services) == len(set(services)), f"7.1: a service is held twice: {services}")
        stray = self.sure_services() - set(services)
        self.must(not stray, f"7.2: service {stray} is carried and claimed by nobody")
        for row in self.store.clusters:
            holds = row.joined is None and not row.settled
            self.must(bool(row.claims) == holds, f"{row.id} is {row.state} and holds {row.claims}")
            lost = row.joined is not None and not row.settled and not row.joined.claims
            self.must(not lost, f"7.2: {row.id} is {row.state}, and its network's numbers were given back")
            if row.state is State.ACTIVE:
                missing = [name for name, part in row.parts.items() if part.removed is None and not self.has(row, name)]
                self.must(not missing, f"7.5: {row.id} is active, and not carried by {missing}")

    def sure(self, at: Name) -> set[int]:
        """Give the numbers at a site that elements carry of which somebody knows what they carry."""
        here = (one for name, one in self.things.items() if name.startswith(at) and not one.doubtful)
        return {vlan for one in here for vlan in one.carried()}

    def sure_services(self) -> set[int]:
        """Likewise the services of edges."""
        edges = [one for one in self.things.values() if isinstance(one, Edge) and not one.doubtful]
        return {service for edge in edges for service in edge.services()}

    def has(self, row: Cluster, name: Name) -> bool:
        """Say whether an element carries a cluster: a switch on each port of its way, whoever else came and went."""
        thing, live = self.things[name], row.live()
        vlan = live.vlans[self.store.elements[name].site]
        if thing.unread:
            return True
        if isinstance(thing, Host):
            return thing.segments.get(live.network.id) == vlan
        if isinstance(thing, Edge):
            return vlan in thing.carried()
        ways = [end.port for end in ports_for(self.topology, live) if end.element == name]
        return all(vlan in thing.ports.get(port, ()) for port in ways)

    def must(self, holds: bool, what: str) -> None:
        if not holds:
            raise BrokenError(what)

    def leave_alone(self) -> None:
        """§7.3: heal and wake everybody; every element comes to carry exactly what is wanted, clusters to rest."""
        for one in self.things.values():
            one.fault = None
        for one in self.running:
            one.paused = False
        self.tell("everybody is well and left alone")
        for _ in range(2):
            while self.running:
                self.tell(self.advance(self.running[0]))
                self.hold()
            self.store.now += DRIFT + timedelta(seconds=1)
            self.store.sweep()
            for name in self.things:
                steps = self.worker(name, "r1") if name not in HOSTS else self.agent(name)
                self.running.append(Running(steps, name, "r1"))
        while self.running:
            self.tell(self.advance(self.running[0]))
            self.hold()
        self.rests()

    def rests(self) -> None:
        for name, thing in self.things.items():
            revision, confirmed, wanted = self.store.target(name)
            self.must(confirmed == revision, f"7.3: {name} confirmed {confirmed}, wanted is {revision}")
            if isinstance(thing, Switch) and isinstance(wanted, SwitchWanted):
                carried = {port: vlans for port, vlans in thing.ports.items() if vlans}
                right = {port: frozenset(vlans) for port, vlans in wanted.ports.items() if vlans}
                self.must(carried == right, f"7.3: {name} carries {carried}, wanted is {right}")
            elif isinstance(thing, Edge):
                self.must(not thing.parts, f"7.3: {name} has parts: {thing.parts}")
                self.must(thing.circuits == set(wanted.circuits), f"7.3: {name} carries {thing.circuits}")
            elif isinstance(thing, Host):
                right_segments = {one.id: int(one.vlan) for one in wanted.segments}
                self.must(thing.segments == right_segments, f"7.3: {name} carries {thing.segments}")
        for row in self.store.clusters:
            rests = row.state in {State.ACTIVE, *ENDED} and not row.quarantined
            self.must(rests, f"7.3: {row.id} does not come to rest: {row.state}")
