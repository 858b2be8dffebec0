"""Tests that the store in memory of the fault schedules behaves like the real store."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random

import pytest
from sbf_fakes.world import World
from simulation.devices import Device
from simulation.planting import plant
from simulation.schedule import HOSTS, OWNERS, REPLICAS, REQUESTS, TOPOLOGY, WITH_EDGES
from simulation.stage import Stage
from simulation.store import LEASE, Cluster, MemoryStore
from simulation.transactions import Database, MemoryTransactions
from sqlalchemy import select

from sbf_service.domain.error_report import ErrorReport
from sbf_service.domain.ownership import make_vlan_name
from sbf_service.reconcile import transactions
from sbf_service.reconcile.device_task import DeviceReading, ReconcileTask
from sbf_service.reconcile.transactions import LeaseLostError, StoreWorkerTransactions, WorkerTransactions
from sbf_service.store import elements, leases
from sbf_service.store.allocation import NEVER_USED
from sbf_service.store.cluster_creation import put_cluster
from sbf_service.store.leases import record_agent_heartbeat
from sbf_service.store.observed_state import list_saved_items
from sbf_service.store.revisions import increment_revisions
from sbf_service.store.tables import (
    ClaimRow,
    ClusterRow,
    CreatedVlanRow,
    ElementRow,
    FreedServiceRow,
    FreeVlanRow,
    PlacementRow,
    ServiceClaimRow,
)
from virtcloud.model.edge import DeviceObserved, EdgeObserved, EdgeWanted
from virtcloud.model.errors import Conflict, Gone, NotFound
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchObserved

POOL = "100-102"
Outcome = object


class Both:
    """The two stores, and the actions on both; ``random`` alone chooses the actions."""

    def __init__(self, folder: Path, seed: int, topology: Topology) -> None:
        self.random = Random(seed)
        self.double = MemoryStore(topology, VlanSet.parse(POOL))
        self.real = World(f"sqlite:///{folder / f'{seed}.db'}")
        self.real.clock.now = self.double.now
        self.real.furnish(POOL, topology)
        self.devices = sorted(set(topology.elements) - set(HOSTS))
        self.double.grow(
            Name(name) for name in self.devices
        )  # the pool was put after the topology, which incremented the revisions
        self.fences: dict[str, list[int]] = {}
        database, timing = Database(self.double, Stage()), self.real.service.settings.timing
        made = {Name(name): self.device(Name(name)) for name in self.devices}
        self.transactions = {
            holder: (
                MemoryTransactions(database, made, holder),
                StoreWorkerTransactions(self.real.store, timing, holder),
            )
            for holder in REPLICAS
        }
        self.acts: list[Callable[[], tuple[Outcome, Outcome]]] = [
            self.ask,
            self.ask,
            self.end,
            *[self.confirm] * 4,
            self.trouble,
            self.set_back,
            self.time_passes,
            self.take_lease,
            self.keep_lease,
            self.give_up_lease,
            self.give_up_leases,
            self.grow,
            self.ask_as_an_agent,
            *[self.announce] * 3,
            *[self.confirm_a_task] * 4,
            *[self.fail] * 2,
        ]

    def step(self) -> str:
        act = self.random.choice(self.acts)
        double, real = act()
        assert double == real, act.__name__
        self.double.sweep()
        self.real.sweep()
        return act.__name__

    # actions

    def ask(self) -> tuple[Outcome, Outcome]:
        key, request = self.random.choice("abc"), self.random.choice(REQUESTS)
        reserved, owner = self.real.service.reserved, request.spec.owner
        double = outcome(lambda: self.double.put(key, request).attempt)
        real = outcome(lambda: put_cluster(self.real.store, key, request, reserved, owner).view.attempt)
        was_blocked = request.attempt is not None and isinstance(double, int) and double < request.attempt
        return "AttemptWaits" if was_blocked else double, real

    def end(self) -> tuple[Outcome, Outcome]:
        call = self.random.choice("abc"), self.random.choice((None, 0, 1, 2)), self.random.choice((None, *OWNERS))
        return outcome(lambda: self.double.end(*call)), outcome(lambda: self.real.delete(*call) and None)

    def confirm(self) -> tuple[Outcome, Outcome]:
        row = self.double.elements[self.element()]
        revision = max(row.wanted - self.random.choice((0, 0, 0, 1)), 0)
        self.double.confirm(row.name, revision)
        self.real.confirm(row.name, revision)
        return None, None

    def trouble(self) -> tuple[Outcome, Outcome]:
        name, reachable = self.element(), self.random.random() < 0.5
        self.double.set_trouble(name, reachable=reachable)
        with self.real.store.change() as unit:
            drain = self.real.service.settings.timing.drain
            elements.record_error(unit, name, "no answer", drain, reachable=reachable)
        return None, None

    def set_back(self) -> tuple[Outcome, Outcome]:
        name = self.element()
        self.double.set_back(name)
        with self.real.store.change() as unit:
            elements.reset_confirmation(unit, name, "restarted", self.real.service.settings.timing.drain)
        return None, None

    def grow(self) -> tuple[Outcome, Outcome]:
        name = self.element()
        self.double.grow([name])
        with self.real.store.change() as unit:
            increment_revisions(unit, [name])
        return None, None

    def time_passes(self) -> tuple[Outcome, Outcome]:
        self.real.clock.advance(self.random.choice((1, 40, 61, 130, 1501)))
        self.double.now = self.real.clock.now
        return None, None

    def take_lease(self) -> tuple[Outcome, Outcome]:
        name, holder = self.random.choice(self.devices), self.random.choice(REPLICAS)
        with self.real.store.change_row() as unit:
            real = leases.acquire_lease(unit, name, holder, LEASE)
        self.fences.setdefault(name, []).append(real or 0)
        return self.double.take_lease(Name(name), holder), real

    def keep_lease(self) -> tuple[Outcome, Outcome]:
        name = self.random.choice(self.devices)
        fence = self.random.choice(self.fences.get(name, [0]))
        with self.real.store.change_row() as unit:
            real = leases.renew_lease(unit, name, fence, LEASE)
        return self.double.keep_lease(Name(name), fence), real

    def give_up_lease(self) -> tuple[Outcome, Outcome]:
        name = self.random.choice(self.devices)
        fence = self.random.choice(self.fences.get(name, [0]))
        self.double.give_up_lease(Name(name), fence)
        with self.real.store.change_row() as unit:
            leases.release_lease(unit, name, fence)
        return None, None

    def give_up_leases(self) -> tuple[Outcome, Outcome]:
        holder = self.random.choice(REPLICAS)
        self.double.give_up_leases(holder)
        with self.real.store.change() as unit:
            leases.release_leases_of(unit, holder)
        return None, None

    def ask_as_an_agent(self) -> tuple[Outcome, Outcome]:
        name = Name(self.random.choice(HOSTS))
        self.double.heard(name)
        record_agent_heartbeat(self.real.store, name)
        return None, None

    def announce(self) -> tuple[Outcome, Outcome]:
        drifted = self.random.random() < 0.3
        return self.both(lambda one, task: one.announce(missing(task), "for a test", drifted=drifted))

    def confirm_a_task(self) -> tuple[Outcome, Outcome]:
        changed = self.random.random() < 0.5
        return self.both(lambda one, task: one.confirm(task.interpret(wanted_of(task)), changed=changed))

    def fail(self) -> tuple[Outcome, Outcome]:
        unsaved, reachable, saves = (self.random.random() < 0.5 for _ in range(3))
        return self.both(
            lambda one, task: one.fail(
                task.name,
                task.fence,
                ErrorReport("no answer", reachable, unsaved=unsaved, saved=wanted_of(task) if saves else None),
            )
        )

    def both(self, call: Callable[[WorkerTransactions, ReconcileTask], Outcome]) -> tuple[Outcome, Outcome]:
        """Make the same call of a worker about a device in both stores, with a fencing token that may be an old one."""
        name = Name(self.random.choice(self.devices))
        fence = self.random.choice(self.fences.get(name, [0])[-2:])
        double, real = self.transactions[self.random.choice(REPLICAS)]
        tasks = double.read_task(name, fence), real.read_task(name, fence)
        assert known(tasks[0]) == known(tasks[1])
        return outcome(lambda: call(double, tasks[0])), outcome(lambda: call(real, tasks[1]))

    def device(self, name: Name) -> Device:
        return Device(name, self.double.elements[name], Stage(), lambda: False)

    def element(self) -> Name:
        return self.random.choice(sorted(self.double.elements))

    # rows of both stores

    def double_rows(self) -> dict[str, object]:
        double = self.double
        return {
            "clusters": {
                _name(one): (one.state, one.quarantined, one.deadline, one.lease_ends, one.leaving_since)
                for one in double.clusters
            },
            "claims": {(site, vlan, *_name(one)) for one in double.clusters for site, vlan in one.claims.items()},
            "parts": {
                (*_name(one), name, part.added, part.removed)
                for one in double.clusters
                for name, part in one.parts.items()
            },
            "elements": {
                (one.name, one.wanted, one.confirmed, one.reachable, one.trouble, one.holder, one.until, one.fence)
                for one in double.elements.values()
            },
            "readings": {(one.name, one.checked_at, one.seen) for one in double.elements.values()},
            "saves": {
                (one.name, one.unsaved_since, one.failed_saves, one.save_after, one.saved)
                for one in double.elements.values()
            },
            "created": {(one.name, int(vlan)) for one in double.elements.values() for vlan in one.created},
            "freed": {
                (site, vlan, at)
                for site, numbers in double.freed.items()
                for vlan, at in numbers.items()
                if not any(one.claims.get(site) == vlan for one in double.clusters)
            },
            "services": {
                (one.transport, one.service, *_name(one)) for one in double.clusters if one.service is not None
            },
            "freed services": {(name, *one) for name, found in double.freed_services.items() for one in found.items()},
            "transports": {(*_name(one), one.transport) for one in double.clusters},
            "networks": {(*_name(one), one.joined and one.joined.key) for one in double.clusters},
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


def _name(one: Cluster | ClusterRow) -> tuple[str, int, int]:
    """Return the key, turn and attempt, which identify a cluster."""
    return one.key, one.turn, one.attempt


def outcome(call: Callable[[], object]) -> Outcome:
    """Return the result of a call, or the name of its error."""
    try:
        return call()
    except (Conflict, Gone, NotFound, LeaseLostError) as error:
        return type(error).__name__


def known(task: ReconcileTask) -> Outcome:
    """Return the fields of a task except ``users``, which the store in memory does not have."""
    return {one.name: getattr(task, one.name) for one in fields(task) if one.name != "users"}


def wanted_of(task: ReconcileTask) -> DeviceObserved:
    """Return the observed state of a device that carries exactly the wanted state of its task."""
    if isinstance(task.wanted, EdgeWanted):
        return EdgeObserved(circuits=task.wanted.circuits)
    names = {vlan: make_vlan_name(vlan) for vlan in task.wanted.vlans}
    return SwitchObserved(vlans=task.wanted.vlans, ports=task.wanted.ports, names=names)


def missing(task: ReconcileTask) -> DeviceReading:
    """Return a reading of a device without any VLANs or circuits."""
    empty = (
        EdgeObserved() if isinstance(task.wanted, EdgeWanted) else SwitchObserved(vlans=VlanSet(), ports={}, names={})
    )
    return task.interpret(empty)


def act_and_compare(both: Both, acts: int) -> None:
    """Do random actions in both stores. After each action, all rows must be equal."""
    story: list[str] = []
    for _ in range(acts):
        story.append(both.step())
        double, real = both.double_rows(), both.real_rows()
        for table, rows in double.items():
            assert rows == real[table], (table, story[-8:])


@pytest.mark.parametrize("seed", range(6))
def test_after_every_act_both_stores_hold_the_same(tmp_path: Path, seed: int) -> None:
    """Half of the seeds use sites that are joined at provider edges."""
    both = Both(tmp_path, seed, WITH_EDGES if seed % 2 else TOPOLOGY)
    act_and_compare(both, 100)
    both.real.close()


BUGS = {
    "a lease is extended by an old fencing token": (
        leases,
        "ElementRow.fence == fence, ElementRow.lease_until.is_not(None)",
        "ElementRow.fence >= fence, ElementRow.lease_until.is_not(None)",
    ),
    "an old fencing token announces a change": (
        transactions,
        "if not renew_lease(unit, task.name, task.fence, self.timing.lease):",
        "if not task.fence:",
    ),
    "an old fencing token confirms": (
        transactions,
        "still_held = renew_lease(unit, task.name, task.fence, self.timing.lease)\n            if still_held:",
        "still_held = renew_lease(unit, task.name, task.fence, self.timing.lease)\n            if task.fence:",
    ),
    "a change without a lease is not read again": (
        transactions,
        "elif changed:",
        "elif not still_held and not changed:",
    ),
    "a save is not expected": (transactions, "record_pending_save(unit, task.name)", "pass"),
    "what is created is not recorded": (
        transactions,
        "record_created_vlans(unit, task.name, difference.added_vlan_ids)",
        "pass",
    ),
    "a failed save is not recorded": (transactions, "record_failed_save(unit, row.name)", "pass"),
}
"""Bugs of the real store: the module, the present text and the changed text."""


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_planted_in_the_real_store_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant(monkeypatch, *BUGS[bug])
    both = Both(tmp_path, 0, TOPOLOGY)
    with pytest.raises(AssertionError):
        act_and_compare(both, 400)
    both.real.close()
