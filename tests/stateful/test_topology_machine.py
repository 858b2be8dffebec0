"""Tests of random sequences of changes of the topology, requests, faults, restarts and pauses."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from exploration import list_seeds
from pydantic import ValidationError
from sbf_fakes.busy_world import WorldWithHosts, make_busy_store
from sbf_fakes.edges import FakeEdge
from sbf_fakes.ethernet_segments import find_networks, list_carried_vlans
from sbf_fakes.recomputed_state import RecomputedState
from sbf_fakes.switches import FakeSwitch
from sbf_fakes.topology_changes import SITES, Choice, edit_topology, make_topology, parse_part
from sbf_fakes.world import spec
from simulation.planting import plant
from sqlalchemy import inspect

from sbf_service.drivers.contract import SwitchCapabilities
from sbf_service.http.routes.topology import check_device_support
from sbf_service.reconcile import transactions
from sbf_service.store.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.current_topology import read_topology
from sbf_service.store.leases import release_leases_of
from sbf_service.store.quarantine import declare_clean
from sbf_service.store.tables import ElementRow
from sbf_service.store.topology import FormerTopology, change_topology
from sbf_service.store.transport_vlans import list_collisions
from sbf_service.store.vlan_tables import ClaimRow
from virtcloud.model.cluster import ENDED_STATES, WANTED_STATES, ClusterState
from virtcloud.model.element import Edge, Switch
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import VlanId
from virtcloud.model.views import ClusterView

KEYS = "stuvwxyz"
HOSTS = [f"{site}-h{number}" for site in SITES for number in (1, 2, 3)]
NAMES = [f"{site}-{end}" for site in SITES for end in ("sw1", "sw2", "pe1")]
POOLS = ("100-102", "100-102", "100", "101-103", "", "102-105")
STEPS = 60


class Machine:
    """SBF, its devices and its users. Each action takes random choices, and checks what it changed itself."""

    def __init__(self, folder: Path) -> None:
        self.world = WorldWithHosts(f"sqlite:///{folder / 'sbf.db'}")
        self.world.switches.facts = SwitchCapabilities(access=True)
        self.recomputed = RecomputedState()
        self.earlier = [make_topology()]
        self.world.furnish(POOLS[0], self.earlier[0])
        for name in NAMES:
            self.world.switches[name].table = {1: "default"}

    # Administrators.

    def change_topology(self, choose: Choice) -> None:
        """Replace the topology or one site's part, or return to an earlier topology. Most changes are valid."""
        topology, local = self.world.topology(), choose.random() < 0.4
        wanted = choose.choice((self.earlier[0], *self.earlier[-3:]))
        for _ in range(0 if choose.random() < 0.15 else 6):
            name, document = edit_topology(topology, choose, local=local)
            try:
                wanted = parse_part(topology, name, document) if local else Topology.model_validate(document)
                check_device_support(wanted, wanted.sites, self.world.service.platforms, ())
            except (ValidationError, VirtcloudError):
                continue
            break

        def make(former: FormerTopology) -> Topology:
            return former.share_parts(wanted)

        store = make_busy_store(self.world.store)
        if choose.random() < 0.1:
            store.actions.append(lambda: choose.choice((self.request, self.end, self.settle, self.converge))(choose))
        self.try_change(lambda: change_topology(store, make, who="operator"), exactly=not store.actions)
        self.earlier.append(self.world.topology())

    def try_change(self, change: Callable[[], object], *, exactly: bool = True) -> None:
        before = self.read_database() if exactly else None
        try:
            change()
        except VirtcloudError:
            assert not exactly or self.read_database() == before, "a refused change has changed the database"

    def change_a_pool(self, choose: Choice) -> None:
        self.try_change(lambda: self.world.put_pool(choose.choice(SITES), choose.choice(POOLS)))

    def clean_a_vlan(self, choose: Choice) -> None:
        """Remove a VLAN in quarantine by hand from all elements of a site, and declare the VLAN ID clean."""
        topology = self.world.topology()
        found = [(one.name, held.vlan) for one in topology.sites for held in self.world.site(one.name).quarantine]
        if (chosen := choose(found)) is None:
            return
        site, vlan = chosen
        with self.world.store.read() as unit:
            at = {row.name for row in unit.session.query(ElementRow) if row.site == site}
        for name in at:
            for vlans in self.world.switches[name].ports.values():
                vlans.discard(vlan)
            edge = self.world.edges[name]
            edge.circuits = {circuit for circuit in edge.circuits if circuit.vlan != vlan}
            self.world.segments[name] = tuple(one for one in self.world.segments.get(name, ()) if one.vlan != vlan)
        with self.world.store.change(who="operator") as unit:
            declare_clean(unit, site, VlanId(vlan), "removed by hand", self.world.service.settings.timing.drain)

    # Users.

    def request(self, choose: Choice) -> None:
        views, known = self.views(), list(self.world.topology().hosts)
        key = choose(sorted(set(KEYS) - {view.key for view in views if view.vlans}))
        running = [view.key for view in views if view.network is None and view.state in WANTED_STATES]
        joins = choose(running) if choose.random() < 0.3 else None
        pool = known if known and choose.random() < 0.95 else HOSTS
        hosts = choose.sample(pool, min(len(pool), choose.choice((1, 2, 2, 3))))
        sites = choose.sample(SITES, 1) if choose.random() < 0.1 and joins is None else []
        wanted = spec(hosts=hosts, joins=joins, lease_s=3000, sites=sites)
        self.try_change(lambda: self.world.put(key or choose.choice(KEYS), wanted))

    def end(self, choose: Choice) -> None:
        if (view := choose([view for view in self.views() if view.state in WANTED_STATES])) is not None:
            self.world.delete(view.key)

    # Workers and agents.

    def converge(self, choose: Choice) -> None:
        if (name := choose(self.list_devices())) is not None:
            self.world.converge(name)

    def converge_during_another_action(self, choose: Choice) -> None:
        """Reconcile a device. Another caller changes the topology or a cluster before the reading or the change."""
        if (name := choose(self.list_devices())) is None:
            return
        hook = choose.choice(("before_read", "before_apply"))
        action = choose.choice((self.change_topology, self.change_topology, self.request, self.end))

        def act() -> None:
            for device in self.find_devices(name):
                setattr(device, hook, lambda: None)
            action(choose)

        for device in self.find_devices(name):
            setattr(device, hook, act)
        self.world.converge(name)
        for device in self.find_devices(name):
            setattr(device, hook, lambda: None)

    def settle(self, _choose: Choice) -> None:
        self.world.settle()

    def run_an_agent(self, choose: Choice) -> None:
        if (host := choose(list(self.world.topology().hosts))) is not None:
            revision = self.world.reconcile_host(host)
            if choose.random() < 0.5:
                self.world.confirm(host, revision)

    # Faults.

    def begin_or_end_a_fault(self, choose: Choice) -> None:
        name, fault = choose.choice(NAMES), choose.choice(("cut_off", "cut_off", "refuses", "lies", "unsafe"))
        for device in self.find_devices(name):
            device.cut_off_after = None
            setattr(device, fault, not getattr(device, fault))

    def cut_off_in_the_middle(self, choose: Choice) -> None:
        after = choose.randint(1, 3)
        for device in self.find_devices(choose.choice(NAMES)):
            device.cut_off_after = len(device.calls) + after

    def restart_a_device(self, choose: Choice) -> None:
        name = choose.choice(NAMES)
        self.world.switches[name].reboot()
        self.world.edges[name].circuits = set(self.world.edges[name].startup)

    def stop_or_start_an_agent(self, choose: Choice) -> None:
        self.world.dead_hosts ^= {choose.choice(HOSTS)}

    def restart_the_service(self, _choose: Choice) -> None:
        self.world.close()
        self.world.service = self.world.restarted()
        with self.world.store.change_row() as unit:
            release_leases_of(unit, "sbf@one")

    def let_time_pass(self, choose: Choice) -> None:
        self.world.clock.advance(choose.choice((1.0, 61.0, 301.0, 3001.0)))
        self.world.sweep()

    # Invariants.

    def all_invariants_hold(self) -> None:
        with self.world.store.read() as unit:
            self.recomputed.check(unit)
            assert not list_collisions(unit.connection)
            owners = {(claim.site, claim.vlan): claim.cluster_id for claim in unit.session.query(ClaimRow)}
            site_of = {row.name: row.site for row in unit.session.query(ElementRow)}
            topology = read_topology(unit)
        for name, vlans in list_carried_vlans(self.world, self.world.segments):
            assert all((site_of[name], vlan) in owners for vlan in vlans), f"{name} carries a VLAN without a network"
        for segment, networks in find_networks(self.world, topology, owners, self.world.segments).items():
            assert len(networks) < 2, f"two networks share the Ethernet segment {segment}"

    def without_faults_everything_is_reached_and_ends(self) -> None:
        for name in NAMES:
            for device in self.find_devices(name):
                device.cut_off = device.refuses = device.lies = device.unsafe = False
                device.cut_off_after = None
        self.world.dead_hosts.clear()
        self.settle_without_faults()
        assert all(view.state in {ClusterState.ACTIVE, *ENDED_STATES} for view in self.views())
        for view in self.views():
            if view.state not in ENDED_STATES:
                self.world.delete(view.key)
        self.settle_without_faults()
        assert all(view.state in ENDED_STATES and not view.vlans for view in self.views())
        assert not any(vlans for _, vlans in list_carried_vlans(self.world, self.world.segments))
        assert all(self.world.switches[name].table == {1: "default"} for name in NAMES)

    def settle_without_faults(self) -> None:
        self.world.clock.advance(301)
        for _ in range(3):
            self.settle(Choice(0))
            self.all_invariants_hold()

    # Queries.

    def views(self) -> list[ClusterView]:
        with self.world.store.read() as unit:
            return list_newest(unit, ClusterFilter(ended=True), 1000)

    def list_devices(self) -> list[str]:
        return [one.name for one in self.world.topology().elements.values() if isinstance(one, Switch | Edge)]

    def find_devices(self, name: str) -> tuple[FakeSwitch, FakeEdge]:
        return self.world.switches[name], self.world.edges[name]

    def read_database(self) -> dict[str, Sequence[Any]]:
        with self.world.store.read() as unit:
            names = inspect(unit.connection).get_table_names()
            return {name: unit.connection.exec_driver_sql(f"SELECT * FROM {name}").all() for name in names}  # noqa: S608


ACTIONS = {
    Machine.change_topology: 8,
    Machine.request: 5,
    Machine.end: 3,
    Machine.settle: 3,
    Machine.converge: 3,
    Machine.converge_during_another_action: 3,
    Machine.run_an_agent: 1,
    Machine.change_a_pool: 1,
    Machine.clean_a_vlan: 1,
    Machine.begin_or_end_a_fault: 3,
    Machine.cut_off_in_the_middle: 1,
    Machine.restart_a_device: 1,
    Machine.stop_or_start_an_agent: 1,
    Machine.restart_the_service: 1,
    Machine.let_time_pass: 1,
}


def run(folder: Path, seed: int, steps: Iterable[int]) -> None:
    """Take random steps, and check the invariants after each step. Each number of a step determines its choices."""
    machine = Machine(folder)
    try:
        for number in steps:
            choose = Choice(f"{seed} {number}")
            (action,) = choose.choices(list(ACTIONS), list(ACTIONS.values()))
            action(machine, choose)
            machine.all_invariants_hold()
        machine.without_faults_everything_is_reached_and_ends()
    finally:
        machine.world.close()


@pytest.mark.parametrize("seed", list_seeds(6))
def test_the_invariants_hold_during_changes_of_the_topology(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed, range(STEPS))


def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker adds a VLAN to a port that has become a port of a transport since the worker read its task."""
    plant(monkeypatch, transactions, " or _is_outdated(unit, reading)", "")
    machine = Machine(tmp_path)
    machine.world.put("x", spec(hosts=["b-h1", "c-h1"]))
    machine.world.settle()
    machine.world.put("y", spec(hosts=["a-h1", "a-h2"]))
    document = make_topology().model_dump(mode="json")
    next(link for link in document["links"] if link["a"] == "a-sw1:p4")["a"] = "a-sw1:p2"
    document["sites"][0]["attachments"][0]["port"] = "a-sw1:p4"
    moved = Topology.model_validate(document)
    machine.world.switches["a-sw1"].before_read = lambda: machine.world.put_topology(moved)
    machine.all_invariants_hold()
    machine.world.converge("a-sw1")
    with pytest.raises(AssertionError, match="two networks share the Ethernet segment"):
        machine.all_invariants_hold()
    machine.world.close()
