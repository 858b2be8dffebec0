"""Tests of two replicas on PostgreSQL that change the topology, pools and clusters at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import sleep

import pytest
from pydantic import ValidationError
from sqlalchemy.orm import Session
from stateful.test_replicas_machine import REPEATED
from stateful.topology_machine import KEYS, POOLS, TopologyMachine
from stateful.topology_sequences import ACTIONS, run
from support.exploration import list_seeds
from support.sbf_fakes.element_changes import edit_topology
from support.sbf_fakes.topology_changes import SITES, Choice
from support.sbf_fakes.world import spec

from sbf_service.http.routes.topology import check_device_support
from sbf_service.store.clusters import clusters
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.store import Store
from sbf_service.store.topology.topology import FormerTopology, change_topology
from sbf_service.store.transactions.network_scopes import find_cluster_scope
from sbf_service.store.vlans.pools import put_pool
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import IllegalTransition, VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet

STEPS = 30
Call = Callable[[Store], object]


class ReplicasMachine(TopologyMachine):
    """SBF with a second replica, which answers calls, and whose workers do not run."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self.second = self.world.restarted()

    def restart_the_service(self, choose: Choice) -> None:
        super().restart_the_service(choose)
        self.second = self.world.restarted()

    def replicas_act_together(self, choose: Choice) -> None:
        """Run several calls at the same time, each at one of the replicas, while a worker and an agent also act."""
        makers = (self.make_topology_change, self.make_topology_change, self.make_pool_change, self.make_request)
        calls = [call for _ in range(choose.choice((2, 3, 4))) if (call := choose.choice(makers)(choose)) is not None]
        calls += [self.make_request(choose), self.make_deletion(choose)]
        if name := choose(self.list_devices()):
            calls.append(lambda _store: self.world.converge(name))
        if host := choose(list(self.world.topology().hosts)):
            calls.append(lambda _store: self.world.confirm(host, self.world.reconcile_host(host)))
        self.run_together(calls)
        self.earlier.append(self.world.topology())

    def run_together(self, calls: list[Call]) -> None:
        stores = [replace(one, clock=self.read_clock_slowly) for one in (self.world.store, self.second.store)]
        with ThreadPoolExecutor(len(calls)) as threads:
            futures = [threads.submit(call, stores[number % 2]) for number, call in enumerate(calls)]
        refusals = [error for future in futures if (error := future.exception()) is not None]
        assert [error for error in refusals if REPEATED in str(error) or isinstance(error, IllegalTransition)] == []
        for future in futures:
            with suppress(VirtcloudError):
                future.result()

    def read_clock_slowly(self, session: Session) -> datetime:
        """Pause, then return the time. During the pause, transactions overlap unless a lock prevents this."""
        sleep(0.005)
        return self.world.clock(session)

    # Calls.

    def make_topology_change(self, choose: Choice) -> Call | None:
        for _ in range(6):
            _, document = edit_topology(self.world.topology(), choose, local=choose.random() < 0.4)
            with suppress(ValidationError, VirtcloudError):
                wanted = Topology.model_validate(document)
                check_device_support(wanted, wanted.sites, self.world.service.platforms, ())
                return partial(self.put_topology_at, wanted)
        return None

    @staticmethod
    def put_topology_at(wanted: Topology, store: Store) -> None:
        def make(former: FormerTopology) -> Topology:
            return former.share_parts(wanted)

        change_topology(store, make, who="operator")

    def make_pool_change(self, choose: Choice) -> Call:
        return partial(self.put_pool_at, choose.choice(SITES), choose.choice(POOLS))

    def put_pool_at(self, site: str, pool: str, store: Store) -> None:
        with store.change() as unit:
            put_pool(unit, site, Pool(vlans=VlanSet.parse(pool)), self.world.service.reserved)

    def make_request(self, choose: Choice) -> Call:
        hosts = choose.sample(list(self.world.topology().hosts), min(2, len(self.world.topology().hosts)))
        wanted = spec(hosts=hosts, lease_s=3000, sites=choose.sample(SITES, 0 if hosts else 1))
        return partial(self.put_at, choose.choice(KEYS), wanted)

    def put_at(self, key: str, wanted: ClusterSpec, store: Store) -> None:
        put_cluster(store, key, ClusterRequest(spec=wanted), self.world.service.reserved, wanted.owner)

    def make_deletion(self, choose: Choice) -> Call:
        return partial(self.delete_at, choose.choice(KEYS))

    @staticmethod
    def delete_at(key: str, store: Store) -> None:
        store.change_scope(
            partial(find_cluster_scope, key=key), lambda unit: clusters.delete_cluster(unit, key, "ended by its user")
        )


@pytest.mark.postgresql
@pytest.mark.parametrize("seed", list_seeds(1))
def test_two_replicas_change_topology_pools_and_clusters_consistently(postgresql: str, seed: int) -> None:
    actions = {**ACTIONS, ReplicasMachine.replicas_act_together: 12}
    run(ReplicasMachine(postgresql), seed, range(STEPS), actions)
