"""Tests of several replicas on PostgreSQL under any random sequence of simultaneous calls."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from time import sleep

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from sqlalchemy.orm import Session
from stateful.test_sbf_machine import DEVICES, HOSTS, KEYS, SPECS, Machine
from support.exploration import make_settings
from support.programs.postgres import PostgresServer

from sbf_service.store.clusters import clusters
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.elements.confirmations import confirm_revision
from sbf_service.store.elements.elements import read_wanted_revision
from sbf_service.store.store import Store
from sbf_service.store.transactions.network_scopes import find_cluster_scope, find_confirmation_scope
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.errors import Conflict, Gone, NotFound, NoVlanFree

REPLICAS = 3
CALLS = st.lists(st.tuples(KEYS, SPECS), min_size=2, max_size=5)
REPEATED = "another call changed the same rows"


class ReplicasMachine(Machine):
    """A state machine whose users, workers and agents call three replicas, in any order and at the same time."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        stores = [self.world.store, *(self.world.restarted().store for _ in range(REPLICAS - 1))]
        self.stores: list[Store] = [replace(store, clock=self.read_clock_slowly) for store in stores]

    @rule(calls=CALLS)
    def several_replicas_create_clusters(self, calls: list[tuple[str, ClusterSpec]]) -> None:
        self.run_together([partial(self.put_at, *call) for call in calls])

    @rule(calls=CALLS, ended=KEYS, confirms=st.booleans())
    def creations_deletions_and_confirmations_overlap(
        self, calls: list[tuple[str, ClusterSpec]], ended: str, *, confirms: bool
    ) -> None:
        actions: list[Callable[[Store], object]] = [partial(self.put_at, *call) for call in calls]
        actions.append(partial(self.delete_at, ended))
        if confirms:
            actions += [partial(self.act_as_agent, host) for host in HOSTS]
            actions += [partial(self.converge_at, name) for name in DEVICES]
        self.run_together(actions)

    def read_clock_slowly(self, session: Session) -> datetime:
        """Pause, then return the time. During the pause, transactions overlap unless a lock prevents this."""
        sleep(0.005)
        return self.world.clock(session)

    def run_together(self, actions: list[Callable[[Store], object]]) -> None:
        """Run actions at the same time, each at one of the replicas. Fail if two actions changed the same rows."""
        with ThreadPoolExecutor(len(actions)) as threads:
            futures = [threads.submit(action, self.stores[n % REPLICAS]) for n, action in enumerate(actions)]
        refusals = [str(error) for future in futures if (error := future.exception()) is not None]
        assert [error for error in refusals if REPEATED in error] == []
        for future in futures:
            with suppress(Conflict, NotFound, NoVlanFree, Gone):
                future.result()

    def put_at(self, key: str, wanted: ClusterSpec, store: Store) -> None:
        put_cluster(store, key, ClusterRequest(spec=wanted), self.world.service.reserved, wanted.owner)

    def delete_at(self, key: str, store: Store) -> None:
        store.change_scope(
            partial(find_cluster_scope, key=key), lambda unit: clusters.delete_cluster(unit, key, "ended by its user")
        )

    def converge_at(self, name: str, _store: Store) -> None:
        self.world.converge(name)

    def act_as_agent(self, host: str, store: Store) -> None:
        with store.read() as unit:
            target = read_wanted_revision(unit, host)
        self.hosts[host] = {one.id: int(one.vlan) for one in target.wanted.segments}
        drain = self.world.service.settings.timing.drain
        store.change_scope(
            partial(find_confirmation_scope, name=host, revision=target.revision),
            lambda unit: confirm_revision(unit, host, target.revision, drain),
            who=host,
        )
        self.forgot.discard(host)


@pytest.mark.postgresql
def test_the_invariants_hold_with_three_replicas(postgres_server: PostgresServer, postgres_template: str) -> None:
    def machine() -> ReplicasMachine:
        return ReplicasMachine(lambda _folder: postgres_server.url(postgres_server.new_database(postgres_template)))

    run_state_machine_as_test(machine, settings=make_settings(3, steps=20))  # type: ignore[arg-type] # a function can create the machine
