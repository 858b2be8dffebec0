"""SBF and its devices, with the actions of users, administrators, workers, agents and faults that change topologies."""

from collections.abc import Callable

from pydantic import ValidationError
from sqlalchemy import select
from stateful.device_changes import NAMES, DeviceChanges
from support.sbf_fakes.busy_world import WorldWithHosts, make_busy_store
from support.sbf_fakes.element_changes import edit_topology, parse_part
from support.sbf_fakes.recomputed_state import RecomputedState
from support.sbf_fakes.topology_changes import SITES, Choice, list_links_of_hosts, make_topology, remove_site
from support.sbf_fakes.world import spec

from sbf_service.drivers.contract import SwitchCapabilities
from sbf_service.http.routes.topology import check_device_support
from sbf_service.store.elements.leases import acquire_lease, release_lease, release_leases_of
from sbf_service.store.tables.cluster_tables import PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.topology.topology import FormerTopology, change_topology
from sbf_service.store.vlans.quarantine import declare_clean
from virtcloud.model.cluster import WANTED_STATES
from virtcloud.model.element import Edge, Switch
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, VlanId
from virtcloud.model.views import ClusterView, PlacementProgress

KEYS = "stuvwxyz"
HOSTS = [f"{site}-{end}" for site in SITES for end in ("h1", "h2", "h3")]
AGENTS = [*HOSTS, *(f"{site}-{end}" for site in SITES for end in ("gw1", "gw2"))]
POOLS = ("100-102", "100-102", "100", "101-103", "", "102-105")


class TopologyMachine(DeviceChanges):
    """SBF, its devices and its users. Each action makes random choices, and checks its own changes."""

    def __init__(self, database: str) -> None:
        self.world = WorldWithHosts(database)
        self.world.switches.facts = SwitchCapabilities(access=True)
        self.recomputed = RecomputedState()
        self.earlier = [make_topology()]
        self.names = NAMES
        self.occupied, self.used, self.offices = {}, set(), {name: set() for name in NAMES}
        self.losses = {}
        self.world.furnish(POOLS[0], self.earlier[0])
        for name in NAMES:
            self.world.switches[name].replace({1: "default"})

    def choose_world(self, choose: Choice) -> None:
        """Remove a site in half of the sequences. Make some links of hosts access links."""
        document = self.earlier[0].model_dump(mode="json", exclude_none=True)
        if choose.random() < 0.5:
            remove_site(document, document["sites"][-1], choose)
        for link in list_links_of_hosts(document):
            link["access"] = choose.random() < 0.4
        self.earlier = [Topology.model_validate(document)]
        self.world.put_topology(self.earlier[0])

    # Administrators.

    def change_topology(self, choose: Choice, near: str | None = None) -> None:
        """Replace the topology or one site's part, or return to an earlier topology. Most changes are valid.

        If ``near`` is an element, edits concern only paths at its site. If ``near`` is None, all edits can occur.
        """
        topology, local = self.world.topology(), choose.random() < (0.8 if near else 0.4)
        wanted = choose.choice((self.earlier[0], *self.earlier[-3:]))
        for _ in range(0 if choose.random() < 0.15 else 6):
            name, document = edit_topology(topology, choose, local=local, near=near)
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
        for site in self.world.topology().sites:
            if not self.world.site(site.name).pool and choose.random() < 0.5:
                self.world.put_pool(site.name, POOLS[0])

    def change_paths(self, choose: Choice, near: str) -> None:
        """Try up to four changes of the paths at the site of an element, until SBF accepts a change."""
        former = self.world.topology()
        for _ in range(4):
            if self.world.topology() == former:
                self.change_topology(choose, near)

    def change_a_pool(self, choose: Choice) -> None:
        """Replace the pool of a site that the topology contains, or of a removed or renamed site."""
        site = choose.choice((*SITES, *(one.name for one in self.world.topology().sites)))
        self.try_change(lambda: self.world.put_pool(site, choose.choice(POOLS)))

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
            switch, edge = self.find_devices(name)
            for vlans in (*switch.ports.values(), *switch.startup[0].values()):
                vlans.discard(vlan)
            edge.circuits = {circuit for circuit in edge.circuits if circuit.vlan != vlan}
            edge.startup = frozenset(circuit for circuit in edge.startup if circuit.vlan != vlan)
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
        gateways, extra = self.world.topology().gateways, {}
        if gateways and choose.random() < 0.5:
            extra = {"vpn": True} if joins is not None or choose.random() < 0.2 else {"router": "gateway"}
        wanted = spec(hosts=hosts, joins=joins, lease_s=3000, sites=sites, **extra)
        self.try_change(lambda: self.world.put(key or choose.choice(KEYS), wanted))

    def end(self, choose: Choice) -> None:
        if (view := choose([view for view in self.views() if view.state in WANTED_STATES])) is not None:
            self.world.delete(view.key)

    # Workers and agents.

    def converge(self, choose: Choice) -> None:
        if (name := self.choose_device(choose)) is not None:
            self.world.converge(name)

    def choose_device(self, choose: Choice) -> str | None:
        """Return a device, usually one that has not confirmed all its clusters.

        If all devices have confirmed all their clusters, first request a cluster.
        """
        if choose.random() < 0.2:
            return choose(self.list_devices())
        if not self.list_incomplete_devices():
            self.request(choose)
        return choose(self.list_incomplete_devices() or self.list_devices())

    def converge_during_another_action(self, choose: Choice) -> None:
        """Reconcile a device. Another caller changes the topology or a cluster before the device is read or changed."""
        if (name := self.choose_device(choose)) is None:
            return
        hook, former = choose.choice(("before_read", "before_read", "before_apply")), self.world.topology()
        action = choose.choice((self.request, self.end)) if choose.random() < 0.25 else None
        applied = [0, 0]

        def act() -> None:
            action(choose) if action else self.change_paths(choose, name)
            applied[:] = (len(device.applied) for device in self.find_devices(name))  # another worker can act, too

        self.converge_during(name, hook, act)
        if hook == "before_read" and self.world.topology() != former:
            switch, edge = self.find_devices(name)
            self.only_wanted_is_added(name, switch.applied[applied[0] :], edge.applied[applied[1] :])

    def converge_during_a_takeover(self, choose: Choice) -> None:
        """Reconcile a device, but pause before the reading. Meanwhile, another replica acquires the lease.

        During the pause, a cluster that the device must add also ends, and all elements confirm the removal. The other
        replica holds the lease again when the first worker continues.
        """
        if (name := self.choose_device(choose)) is None:
            return
        fences: list[int | None] = []

        def take_over() -> None:
            keys = [view.key for view in self.views() if view.state in WANTED_STATES and is_new_on(view, name)]
            if (key := choose(keys)) is not None:
                self.world.delete(key)
            self.world.restarted().scheduler.worker.reconcile(Name(name))
            self.world.settle()
            with self.world.store.change_row() as unit:
                fences.append(acquire_lease(unit, name, "sbf@two", self.world.service.settings.timing.lease))

        self.converge_during(name, "before_read", take_over)
        with self.world.store.change_row() as unit:
            for fence in fences:
                release_lease(unit, name, fence or 0)

    def converge_during_a_replacement(self, choose: Choice) -> None:
        """Reconcile a device, and meanwhile replace its description in the topology. Then install the described device.

        If the topology changes before the worker reads the device, the worker does not change the former device.
        """
        if (name := self.choose_device(choose)) is None:
            return
        hook, applied = choose.choice(("before_read", "before_apply")), self.count_applied(name)
        former = self.world.topology().elements.get(Name(name))
        self.converge_during(name, hook, lambda: self.describe_another_device(name, choose))
        assert hook != "before_read" or self.count_applied(name) == applied, f"{name} is another device"
        if self.world.topology().elements.get(Name(name)) == former:
            self.describe_another_device(name, choose)
        self.install_another_device(name, choose)

    def converge_during(self, name: str, hook: str, action: Callable[[], None]) -> None:
        """Reconcile a device, and call ``action`` in a hook of the device. Raise an exception of ``action`` again."""
        raised = list[Exception]()

        def act() -> None:
            for device in self.find_devices(name):
                setattr(device, hook, lambda: None)
            try:
                action()
            except Exception as error:
                raised.append(error)
                raise

        for device in self.find_devices(name):
            setattr(device, hook, act)
        self.world.converge(name)
        for device in self.find_devices(name):
            setattr(device, hook, lambda: None)
        for error in raised:
            raise error

    def lose_a_device_and_change_its_site(self, choose: Choice) -> None:
        """Reconcile a device that becomes unreachable during the reconciliation.

        Then perhaps change the topology of its site.
        """
        if (name := self.choose_device(choose)) is None:
            return
        for device in self.find_devices(name):
            device.cut_off_after = len(device.calls) + choose.choice((1, 2, 2, 3, 3, 4))
        self.world.converge(name)
        for device in self.find_devices(name):
            device.cut_off_after, device.cut_off = None, device.cut_off and choose.random() < 0.3
        if choose.random() < 0.7:
            self.change_paths(choose, name)

    def settle(self, _choose: Choice) -> None:
        self.world.settle()

    def run_an_agent(self, choose: Choice) -> None:
        if (host := choose([*self.world.topology().hosts, *self.world.topology().gateways])) is not None:
            revision = self.world.reconcile_host(host)
            if choose.random() < 0.5:
                self.world.confirm(host, revision)

    # Faults.

    def stop_or_start_an_agent(self, choose: Choice) -> None:
        self.world.dead_hosts ^= {choose(sorted(self.world.dead_hosts)) or choose.choice(AGENTS)}

    def restart_the_service(self, _choose: Choice) -> None:
        self.world.close()
        self.world.service = self.world.restarted()
        with self.world.store.change_row() as unit:
            release_leases_of(unit, "sbf@one")

    def let_time_pass(self, choose: Choice) -> None:
        self.world.clock.advance(choose.choice((1.0, 61.0, 301.0, 3001.0)))
        self.world.sweep()

    # Queries.

    def list_incomplete_devices(self) -> list[str]:
        incomplete = select(PlacementRow.element).join(ElementRow, ElementRow.name == PlacementRow.element)
        incomplete = incomplete.where(PlacementRow.added_revision > ElementRow.confirmed_revision)
        with self.world.store.read() as unit:
            found = set(unit.session.scalars(incomplete.where(PlacementRow.removed_revision.is_(None))))
        return [name for name in self.list_devices() if name in found]

    def list_devices(self) -> list[str]:
        return [one.name for one in self.world.topology().elements.values() if isinstance(one, Switch | Edge)]


def is_new_on(view: ClusterView, element: str) -> bool:
    """Return whether an element must add a cluster, and has not confirmed the addition."""
    parts = [part for part in view.placements if part.element == element]
    return any(part.progress is PlacementProgress.ADDING for part in parts)
