"""Tests that the real store and the store in memory, which the fault schedules use, behave alike."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random

import pytest
from simulation.devices import Device
from simulation.planting import plant
from simulation.schedule import HOSTS, OWNERS, REPLICAS, REQUESTS, TOPOLOGY, WITH_EDGES
from simulation.stage import Stage
from simulation.store import LEASE, Cluster, MemoryStore
from simulation.transactions import Database, MemoryTransactions
from sqlalchemy import select, update
from support.exploration import list_seeds
from support.sbf_fakes.world import World

from sbf_service.domain.error_report import ErrorReport
from sbf_service.domain.ownership import ALL_VLAN_IDS, make_vlan_name
from sbf_service.reconcile import transactions
from sbf_service.reconcile.device_task import DeviceReading, ReconcileTask
from sbf_service.reconcile.transactions import LeaseLostError, StoreWorkerTransactions, WorkerTransactions
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.elements import confirmations, error_reports, leases
from sbf_service.store.elements.leases import record_agent_heartbeat
from sbf_service.store.elements.observed_state import list_saved_items
from sbf_service.store.elements.revisions import increment_revisions
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.tables import ElementRow
from sbf_service.store.tables.vlan_tables import ClaimRow, CreatedVlanRow, FreedServiceRow, FreeVlanRow, ServiceClaimRow
from sbf_service.store.vlans.claims import NEVER_USED
from virtcloud.model.edge import DeviceObserved, EdgeObserved, EdgeWanted
from virtcloud.model.errors import Conflict, Gone, NotFound
from virtcloud.model.switch_state import SwitchObserved
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

POOL = "100-102"
Outcome = object


class StorePair:
    """The store in memory, the real store, and the actions on both stores. ``random`` chooses the actions."""

    def __init__(self, folder: Path, seed: int, topology: Topology) -> None:
        self.random = Random(seed)
        self.memory = MemoryStore(topology, VlanSet.parse(POOL))
        self.real = World(f"sqlite:///{folder / f'{seed}.db'}")
        self.real.clock.now = self.memory.now
        self.real.furnish(POOL, topology)
        with self.real.store.change() as unit:  # the store in memory has no VLANs in other use
            unit.session.execute(update(ElementRow).values(known_vlans=ALL_VLAN_IDS))
        self.devices = sorted(set(topology.elements) - set(HOSTS))
        # furnish() stored the pool after the topology, so the real store incremented the revisions
        self.memory.increment_revisions(Name(name) for name in self.devices)
        self.fences: dict[str, list[int]] = {}
        database, timing = Database(self.memory, Stage()), self.real.service.settings.timing
        devices = {Name(name): self.device(Name(name)) for name in self.devices}
        self.transactions = {
            holder: (
                MemoryTransactions(database, devices, holder),
                StoreWorkerTransactions(self.real.store, timing, holder),
            )
            for holder in REPLICAS
        }
        self.actions: list[Callable[[], tuple[Outcome, Outcome]]] = [
            self.request_cluster,
            self.request_cluster,
            self.end,
            *[self.confirm] * 4,
            self.record_error,
            self.reset_confirmation,
            self.advance_time,
            self.acquire_lease,
            self.renew_lease,
            self.release_lease,
            self.release_leases,
            self.increment_revisions,
            self.record_heartbeat,
            *[self.announce] * 3,
            *[self.confirm_a_task] * 4,
            *[self.fail] * 2,
        ]

    def step(self) -> str:
        action = self.random.choice(self.actions)
        memory, real = action()
        assert memory == real, action.__name__
        self.memory.apply_transitions()
        self.real.sweep()
        return action.__name__

    # actions

    def request_cluster(self) -> tuple[Outcome, Outcome]:
        key, request = self.random.choice("abc"), self.random.choice(REQUESTS)
        reserved, owner = self.real.service.reserved, request.spec.owner
        memory = outcome(lambda: self.memory.put(key, request).attempt)
        real = outcome(lambda: put_cluster(self.real.store, key, request, reserved, owner).view.attempt)
        was_blocked = request.attempt is not None and isinstance(memory, int) and memory < request.attempt
        return "AttemptWaits" if was_blocked else memory, real

    def end(self) -> tuple[Outcome, Outcome]:
        call = self.random.choice("abc"), self.random.choice((None, 0, 1, 2)), self.random.choice((None, *OWNERS))
        return outcome(lambda: self.memory.end(*call)), outcome(lambda: self.real.delete(*call) and None)

    def confirm(self) -> tuple[Outcome, Outcome]:
        row = self.memory.elements[self.element()]
        revision = max(row.wanted - self.random.choice((0, 0, 0, 1)), 0)
        self.memory.confirm(row.name, revision)
        self.real.confirm(row.name, revision)
        return None, None

    def record_error(self) -> tuple[Outcome, Outcome]:
        name, reachable = self.element(), self.random.random() < 0.5
        self.memory.record_error(name, reachable=reachable)
        with self.real.store.change() as unit:
            drain = self.real.service.settings.timing.drain
            error_reports.record_error(unit, name, "no answer", drain, reachable=reachable)
        return None, None

    def reset_confirmation(self) -> tuple[Outcome, Outcome]:
        name = self.element()
        self.memory.reset_confirmation(name)
        with self.real.store.change() as unit:
            confirmations.reset_confirmation(unit, name, "restarted", self.real.service.settings.timing.drain)
        return None, None

    def increment_revisions(self) -> tuple[Outcome, Outcome]:
        name = self.element()
        self.memory.increment_revisions([name])
        with self.real.store.change() as unit:
            increment_revisions(unit, [name])
        return None, None

    def advance_time(self) -> tuple[Outcome, Outcome]:
        self.real.clock.advance(self.random.choice((1, 40, 61, 130, 1501)))
        self.memory.now = self.real.clock.now
        return None, None

    def acquire_lease(self) -> tuple[Outcome, Outcome]:
        name, holder = self.random.choice(self.devices), self.random.choice(REPLICAS)
        with self.real.store.change_row() as unit:
            real = leases.acquire_lease(unit, name, holder, LEASE)
        self.fences.setdefault(name, []).append(real or 0)
        return self.memory.acquire_lease(Name(name), holder), real

    def renew_lease(self) -> tuple[Outcome, Outcome]:
        name = self.random.choice(self.devices)
        fence = self.random.choice(self.fences.get(name, [0]))
        with self.real.store.change_row() as unit:
            real = leases.renew_lease(unit, name, fence, LEASE)
        return self.memory.renew_lease(Name(name), fence), real

    def release_lease(self) -> tuple[Outcome, Outcome]:
        name = self.random.choice(self.devices)
        fence = self.random.choice(self.fences.get(name, [0]))
        self.memory.release_lease(Name(name), fence)
        with self.real.store.change_row() as unit:
            leases.release_lease(unit, name, fence)
        return None, None

    def release_leases(self) -> tuple[Outcome, Outcome]:
        holder = self.random.choice(REPLICAS)
        self.memory.release_leases(holder)
        with self.real.store.change() as unit:
            leases.release_leases_of(unit, holder)
        return None, None

    def record_heartbeat(self) -> tuple[Outcome, Outcome]:
        name = Name(self.random.choice(HOSTS))
        self.memory.record_heartbeat(name)
        record_agent_heartbeat(self.real.store, name)
        return None, None

    def announce(self) -> tuple[Outcome, Outcome]:
        drifted = self.random.random() < 0.3
        return self.call_worker(
            lambda worker, task: worker.announce(empty_reading(task), "for a test", drifted=drifted)
        )

    def confirm_a_task(self) -> tuple[Outcome, Outcome]:
        changed = self.random.random() < 0.5
        return self.call_worker(lambda worker, task: worker.confirm(task.interpret(wanted_of(task)), changed=changed))

    def fail(self) -> tuple[Outcome, Outcome]:
        unsaved, reachable, saves = (self.random.random() < 0.5 for _ in range(3))
        return self.call_worker(
            lambda worker, task: worker.fail(
                task.name,
                task.fence,
                ErrorReport("no answer", reachable, unsaved=unsaved, saved=wanted_of(task) if saves else None),
                task,
            )
        )

    def call_worker(self, call: Callable[[WorkerTransactions, ReconcileTask], Outcome]) -> tuple[Outcome, Outcome]:
        """Run the same transaction of a worker in both stores, for a random device and replica.

        The fencing token is one of the device's last two tokens. Return the outcomes in the store in memory and in the
        real store.
        """
        name = Name(self.random.choice(self.devices))
        fence = self.random.choice(self.fences.get(name, [0])[-2:])
        memory, real = self.transactions[self.random.choice(REPLICAS)]
        tasks = memory.read_task(name, fence), real.read_task(name, fence)
        assert comparable(tasks[0]) == comparable(tasks[1])
        return outcome(lambda: call(memory, tasks[0])), outcome(lambda: call(real, tasks[1]))

    def device(self, name: Name) -> Device:
        return Device(name, self.memory.elements[name], Stage(), lambda: False)

    def element(self) -> Name:
        return self.random.choice(sorted(self.memory.elements))

    # rows of both stores

    def memory_rows(self) -> dict[str, object]:
        memory = self.memory
        return {
            "clusters": {
                _name(row): (row.state, row.quarantined, row.deadline, row.lease_ends, row.leaving_since)
                for row in memory.clusters
            },
            "claims": {(site, vlan, *_name(row)) for row in memory.clusters for site, vlan in row.claims.items()},
            "parts": {
                (*_name(row), name, part.added, part.removed)
                for row in memory.clusters
                for name, part in row.placements.items()
            },
            "elements": {
                (row.name, row.wanted, row.confirmed, row.reachable, row.trouble, row.holder, row.until, row.fence)
                for row in memory.elements.values()
            },
            "readings": {(row.name, row.checked_at, row.seen) for row in memory.elements.values()},
            "saves": {
                (row.name, row.unsaved_since, row.failed_saves, row.save_after, row.saved)
                for row in memory.elements.values()
            },
            "created": {(row.name, int(vlan)) for row in memory.elements.values() for vlan in row.created},
            "freed": {
                (site, vlan, at)
                for site, vlans in memory.freed.items()
                for vlan, at in vlans.items()
                if not any(row.claims.get(site) == vlan for row in memory.clusters)
            },
            "services": {
                (row.transport, row.service, *_name(row)) for row in memory.clusters if row.service is not None
            },
            "freed services": {
                (name, number, at)
                for name, freed in memory.freed_services.items()
                for number, at in freed.items()
                if not any((row.transport, row.service) == (name, number) for row in memory.clusters)
            },
            "transports": {(*_name(row), row.transport) for row in memory.clusters},
            "networks": {(*_name(row), row.joined and row.joined.key) for row in memory.clusters},
        }

    def real_rows(self) -> dict[str, object]:
        with self.real.store.read() as unit:
            scalars = unit.session.scalars
            clusters = {row.id: row for row in scalars(select(ClusterRow))}
            names = {key: _name(row) for key, row in clusters.items()}
            return {
                "clusters": {
                    names[row.id]: (row.state, row.quarantined, row.deadline, row.lease_ends, row.leaving_since)
                    for row in clusters.values()
                },
                "claims": {(row.site, row.vlan, *names[row.cluster_id]) for row in scalars(select(ClaimRow))},
                "parts": {
                    (*names[row.cluster_id], row.element, row.added_revision, row.removed_revision)
                    for row in scalars(select(PlacementRow))
                },
                "elements": {
                    (
                        row.name,
                        row.wanted_revision,
                        row.confirmed_revision,
                        row.reachable,
                        row.trouble is not None,
                        row.lease_holder,
                        row.lease_until,
                        row.fence,
                    )
                    for row in scalars(select(ElementRow))
                },
                "readings": {(row.name, row.checked_at, row.last_seen) for row in scalars(select(ElementRow))},
                "saves": {
                    (row.name, row.unsaved_since, row.failed_saves, row.save_after, list_saved_items(row))
                    for row in scalars(select(ElementRow))
                },
                "created": {(row.element, row.vlan) for row in scalars(select(CreatedVlanRow))},
                "freed": {
                    (row.site, row.vlan, row.since) for row in scalars(select(FreeVlanRow)) if row.since != NEVER_USED
                },
                "services": {
                    (row.transport, row.number, *names[row.cluster_id]) for row in scalars(select(ServiceClaimRow))
                },
                "freed services": {
                    (row.transport, row.number, row.freed_at) for row in scalars(select(FreedServiceRow))
                },
                "transports": {(*names[row.id], row.transport) for row in clusters.values()},
                "networks": {(*names[row.id], row.network and names[row.network][0]) for row in clusters.values()},
            }


def _name(row: Cluster | ClusterRow) -> tuple[str, int, int]:
    """Return a cluster's key, turn and attempt, which identify the cluster in both stores.

    The turn counts how often the owner of the key has changed.
    """
    return row.key, row.turn, row.attempt


def outcome(call: Callable[[], object]) -> Outcome:
    try:
        return call()
    except (Conflict, Gone, NotFound, LeaseLostError) as error:
        return type(error).__name__


def comparable(task: ReconcileTask) -> Outcome:
    """Return the fields of a task, except ``users`` and ``topology``, which the store in memory does not have."""
    return {part.name: getattr(task, part.name) for part in fields(task) if part.name not in {"users", "topology"}}


def wanted_of(task: ReconcileTask) -> DeviceObserved:
    if isinstance(task.wanted, EdgeWanted):
        return EdgeObserved(circuits=task.wanted.circuits)
    names = {vlan: make_vlan_name(vlan) for vlan in task.wanted.vlans}
    return SwitchObserved(vlans=task.wanted.vlans, ports=task.wanted.ports, names=names)


def empty_reading(task: ReconcileTask) -> DeviceReading:
    empty = (
        EdgeObserved() if isinstance(task.wanted, EdgeWanted) else SwitchObserved(vlans=VlanSet(), ports={}, names={})
    )
    return task.interpret(empty)


def assert_equal_rows(stores: StorePair, count: int) -> None:
    """Run ``count`` random actions in both stores. Assert after each action that both stores have equal rows."""
    log: list[str] = []
    for _ in range(count):
        log.append(stores.step())
        memory, real = stores.memory_rows(), stores.real_rows()
        for table, rows in memory.items():
            assert rows == real[table], (table, log[-8:])


@pytest.mark.parametrize("seed", list_seeds(6))
def test_both_stores_have_equal_rows_after_every_action(tmp_path: Path, seed: int) -> None:
    stores = StorePair(tmp_path, seed, WITH_EDGES if seed % 2 else TOPOLOGY)
    assert_equal_rows(stores, 100)
    stores.real.close()


BUGS = {
    "a lease is extended by an old fencing token": (
        leases,
        '"token": fence, "until": unit.now + length',
        '"token": unit.session.get_one(ElementRow, element).fence, "until": unit.now + length',
    ),
    "an old fencing token announces a change": (
        transactions,
        "if not renew_lease(unit, task.name, task.fence, self.timing.lease):",
        "if not task.fence:",
    ),
    "an old fencing token confirms the wanted state": (
        transactions,
        "if still_held:\n                self._record_confirmation",
        "if task.fence:\n                self._record_confirmation",
    ),
    "a device that was changed before the lease was lost is not read again": (
        transactions,
        "elif changed:",
        "elif not still_held and not changed:",
    ),
    "a pending save is not recorded": (transactions, "record_pending_save(unit, task.name)", "pass"),
    "created VLANs are not recorded": (
        transactions,
        "record_created_vlans(unit, task.name, difference.added_vlan_ids)",
        "pass",
    ),
    "a failed save is not recorded": (transactions, "record_failed_save(unit, row.name)", "pass"),
}
"""Bugs that the tests plant in the real store: a module, the text to replace, and the text that replaces it."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_planted_in_the_real_store_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant(monkeypatch, *BUGS[bug])
    stores = StorePair(tmp_path, 0, TOPOLOGY)
    with pytest.raises(AssertionError):
        assert_equal_rows(stores, 400)
    stores.real.close()
