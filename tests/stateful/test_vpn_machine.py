"""Tests of VPN profiles under any sequence of calls, confirmations, topology changes, and ends of leases.

After each step, the grants in the gateways' wanted state are compared with the clusters and the profiles.
"""

import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select
from support.exploration import make_settings
from support.sbf_fakes.vpn_world import CSR, furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.vpn_authority import parse_device_key
from sbf_service.store.access import vpn_profile_views, vpn_profiles, vpn_users
from sbf_service.store.access.vpn_profiles import NewDevice
from sbf_service.store.clusters import clusters
from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.tables.vpn_tables import VpnAddressRow, VpnProfileRow
from virtcloud.model.cluster import WANTED_STATES, ClusterSpec
from virtcloud.model.errors import BadInput, Conflict, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import ClusterKey, Name, UserName
from virtcloud.model.views import ClusterView
from virtcloud.model.vpn import VpnConnections

GATEWAYS = ("brno-gw", "praha-gw")
HOSTS = ("brno-h1", "brno-h2", "praha-h1", "plzen-h1")
KEYS = st.sampled_from(["a", "b"])
INDEX = st.integers(0, 5)
USERS = st.sampled_from([UserName("alice"), UserName("bob")])
DEVICES = st.sampled_from([Name("laptop"), Name("phone"), Name("tablet")])
SPECS = st.builds(
    lambda hosts, *, vpn: spec(*sorted(hosts), lease_s=600, subnets=["10.0.0.0/29"], vpn=vpn),
    st.sets(st.sampled_from(HOSTS), min_size=1, max_size=2),
    vpn=st.booleans(),
)
"""The subnet has only six addresses, so that some calls find no free address."""
KEY = parse_device_key(CSR)


class VpnMachine(RuleBasedStateMachine):
    """A state machine whose rules run in any order. The rules are actions of users, agents and administrators."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.offering = dict.fromkeys(GATEWAYS, True)
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.world: World = furnish(make_world(self.folder), self.make_topology())
        self.world.put("a", spec("brno-h1", lease_s=600, subnets=["10.0.0.0/29"]))

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.close()
        shutil.rmtree(self.folder)

    def make_topology(self) -> Topology:
        plain: dict[str, dict[str, object]] = {name: {"name": name, "ports": ["eth0"]} for name in GATEWAYS}
        made = {name: gateway(name) if self.offering[name] else plain[name] for name in GATEWAYS}
        return topology_with_gateways(brno=(made["brno-gw"],), praha=(made["praha-gw"],))

    # Calls.

    @rule(key=KEYS, wanted=SPECS)
    def create(self, key: str, wanted: ClusterSpec) -> None:
        with suppress(Conflict):
            self.world.put(key, wanted)

    @rule(index=INDEX, host=st.sampled_from(HOSTS))
    def join(self, index: int, host: str) -> None:
        self.count += 1
        guest = {"name": f"m{self.count}", "host": host, "image": "debian"}
        with suppress(Conflict, NotFound):
            self.world.put(f"m{self.count}", spec(guests=[guest], joins=ClusterKey(self.pick(index)), lease_s=600))

    @rule(index=INDEX)
    def end(self, index: int) -> None:
        self.world.delete(self.pick(index))

    @rule(index=INDEX)
    def extend(self, index: int) -> None:
        with suppress(Conflict), self.world.store.change() as unit:
            clusters.extend_lease(unit, self.pick(index), 900)

    @rule(index=INDEX, user=USERS, name=DEVICES)
    def make_profile(self, index: int, user: UserName, name: Name) -> None:
        self.count += 1
        key = self.pick(index)
        device = NewDevice(f"{self.count:08x}", user, name, KEY)
        with suppress(NotFound, Conflict, BadInput), self.world.store.change(who=user) as unit:
            vpn_profiles.create_profile(unit, key, device, RequestLimits(profiles=3))

    @rule(index=INDEX, first=st.booleans())
    def revoke(self, index: int, *, first: bool) -> None:
        key = self.pick(index)
        with self.world.store.change() as unit:
            views = vpn_profile_views.list_profiles(unit, key)
            if views:
                vpn_profiles.revoke_profile(unit, key, views[0 if first else -1].id)

    @rule(name=st.sampled_from(GATEWAYS))
    def report(self, name: str) -> None:
        connections = [
            {"profile": f"{n:08x}", "protocol": "udp", "remote": "192.0.2.1:1", "connected_at": self.world.clock.now}
            for n in range(1, self.count + 1)
        ]
        with self.world.store.change(who=name) as unit:
            vpn_users.record_connections(unit, name, VpnConnections.model_validate({"connections": connections}))

    # Agents, administrators and time.

    @rule()
    def all_elements_reconcile(self) -> None:
        self.world.settle()

    @rule(name=st.sampled_from(GATEWAYS))
    def an_administrator_changes_a_gateway(self, name: str) -> None:
        self.offering[name] = not self.offering[name]
        self.world.put_topology(self.make_topology())

    @rule()
    def the_authority_is_renewed(self) -> None:
        with self.world.store.change() as unit:
            vpn_profiles.renew_authority(unit, b"x" * 32)

    @rule(seconds=st.sampled_from([1.0, 121.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.world.sweep()

    # Invariants after every step.

    @invariant()
    def grants_are_the_valid_profiles_of_running_clusters(self) -> None:
        views = {view.id: view for view in self.views()}
        with self.world.store.read() as unit:
            rows = unit.session.scalars(select(VpnProfileRow)).all()
            valid = {row.id: row for row in rows if row.revoked_at is None}
            unit.session.expunge_all()
        assert all(views[row.cluster_id].state in WANTED_STATES for row in valid.values())
        for name in GATEWAYS:
            wanted = self.world.wanted_of_host(name)
            assert (wanted.vpn is not None) is self.offering[name]
            granted = {grant.profile: segment.id for segment in wanted.segments for grant in segment.grants}
            expected = {row.id: row.network_id for row in valid.values() if self.is_on(views[row.cluster_id], name)}
            assert granted == expected

    @invariant()
    def no_address_of_a_network_is_used_twice(self) -> None:
        used = Counter(
            (view.network or view.key, address.partition("/")[0])
            for view in self.views()
            if view.state in WANTED_STATES
            for guest in view.spec.guests
            for address in guest.addresses
        )
        keys = {view.id: view.key for view in self.views()}
        with self.world.store.read() as unit:
            used.update((keys[row.network_id], row.address) for row in unit.session.scalars(select(VpnAddressRow)))
        assert all(times == 1 for times in used.values())

    @invariant()
    def ended_clusters_have_no_connections(self) -> None:
        for view in self.views():
            if not view.vlans:
                with self.world.store.read() as unit:
                    assert vpn_users.list_connections(unit, view.key, None, view.id) == []

    def pick(self, index: int) -> str:
        views = self.views()
        running = [view for view in views if view.state in WANTED_STATES] or views[-1:]
        return running[index % len(running)].key

    def views(self) -> list[ClusterView]:
        with self.world.store.read() as unit:
            return list_newest(unit, ClusterFilter(ended=True), 1000)

    def is_on(self, view: ClusterView, gateway: str) -> bool:
        return self.offering[gateway] and any(
            part.element == gateway and part.progress in {"adding", "confirmed"} for part in view.placements
        )


VpnMachine.TestCase.settings = make_settings(12, steps=30)
test_vpn_machine = VpnMachine.TestCase
