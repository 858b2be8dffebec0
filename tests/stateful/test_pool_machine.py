"""Tests of pools, leases, quotas, quarantine, retention and restores under any random sequence of calls and faults.

``make test`` always runs the same sequences, so a new failure comes from a change of the code. ``make test-stateful``
runs further sequences. A failure prints the steps, which ``run`` can repeat.
"""

from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import pytest
from simulation.planting import plant
from stateful.pool_machine import PoolMachine
from support.exploration import list_seeds
from support.programs.postgres import PostgresServer
from support.sbf_fakes.carriers import DEVICES, ELEMENTS, HOSTS, SWITCHES, site_of
from support.sbf_fakes.topology_changes import Choice
from support.sbf_fakes.world import SITES, spec

from sbf_service.store.clusters import cluster_planning, transitions
from sbf_service.store.elements import unchecked_elements
from sbf_service.store.vlans import allocation
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView
from virtcloud.model.vlans import VlanSet

KEYS, OWNERS = ("a", "b", "c", "d"), ("alice", "alice", "bob")
LEASES = (600, 3000, 86400)
POOLS = ("100-101", "100-103", "100-105", "101-105", "103-105")
WEEK = 8 * 86400.0
"""Seconds after which SBF may archive an ended cluster."""
PAUSES = (-300.0, 61.0, 61.0, 301.0, 301.0, 3001.0, WEEK)
STEPS = 34

Arguments = dict[str, Any]
Step = tuple[str, Arguments]


def running(machine: PoolMachine) -> list[ClusterView]:
    return [view for view in machine.views() if view.state not in ENDED_STATES]


def choose_absent(choose: Choice) -> list[str]:
    return choose.sample(HOSTS, choose.choice((0, 0, 1, 2)))


def choose_call(machine: PoolMachine, choose: Choice) -> tuple[str, Any, str | None]:
    """Return a request: the key, the spec, and the cluster whose network the cluster joins."""
    views = running(machine)
    used = {view.key for view in views}
    key = choose([key for key in KEYS if key not in used]) if choose.random() < 0.8 else None
    joined = choose(views) if choose.random() < 0.3 else None
    owner = choose.choice(OWNERS) if joined is None else joined.spec.owner
    vlan = choose.choice((None, None, None, choose.randint(100, 105)))
    hosts = sorted(choose.sample(HOSTS, choose.choice((1, 2, 2))))
    wanted = spec(*hosts, owner=owner, lease_s=choose.choice(LEASES), vlan=vlan)
    return key or choose.choice(KEYS), wanted, None if joined is None else joined.key


def choose_cluster(machine: PoolMachine, choose: Choice) -> Arguments:
    """Return the key and owner of a running cluster, or any key and owner."""
    view = choose(running(machine)) if choose.random() < 0.9 else None
    if view is None:
        return {"key": choose.choice(KEYS), "owner": choose.choice(OWNERS)}
    return {"key": view.key, "owner": view.spec.owner}


def choose_active(machine: PoolMachine, choose: Choice) -> Arguments:
    """Return the key and owner of an active cluster, if possible with several sites."""
    active = [view for view in running(machine) if view.state is ClusterState.ACTIVE]
    view = choose([view for view in active if len(view.vlans) > 1] or active)
    return choose_cluster(machine, choose) if view is None else {"key": view.key, "owner": view.spec.owner}


def choose_pool(machine: PoolMachine, choose: Choice) -> Arguments:
    """Return a site and a pool. About half of the pools lack a VLAN ID of ended clusters that may still be in use."""
    site = choose.choice(SITES)
    used = VlanSet(view.vlans[Name(site)] for view in running(machine) if site in view.vlans)
    carried = VlanSet(vlan for name in ELEMENTS if site_of(name) == site for vlan in machine.carriers.carried_on(name))
    ended = sorted((carried | machine.claimed_at(site, machine.views())) - used)
    if not ended or choose.random() < 0.5:
        return {"site": site, "pool": choose.choice(POOLS)}
    return {"site": site, "pool": str(VlanSet.parse(machine.pools[site]) - VlanSet([choose.choice(ended)]))}


def choose_quarantined(machine: PoolMachine, choose: Choice) -> Arguments:
    site = choose([name for name in SITES if machine.world.site(name).quarantine]) or choose.choice(SITES)
    return {"site": site, "vlan": choose.randint(100, 105)}


Choose = Callable[[PoolMachine, Choice], Arguments]
ACTIONS: Mapping[str, tuple[int, Choose]] = {
    "request": (12, lambda machine, choose: {
        "calls": [choose_call(machine, choose) for _ in range(choose.choice((1, 1, 2, 3)))],
        "absent": choose_absent(choose) if choose.random() < 0.5 else None,
    }),
    "share": (1, lambda machine, choose: choose_cluster(machine, choose) | {"owner": choose.choice(OWNERS)}),
    "extend": (1, lambda machine, choose: {
        "key": choose_cluster(machine, choose)["key"], "seconds": choose.choice(LEASES),
    }),
    "end": (4, choose_cluster),
    "end_without_confirmations": (6, choose_active),
    "change_a_pool": (9, choose_pool),
    "change_a_quota": (1, lambda _, choose: {
        "owner": choose.choice(OWNERS), "clusters": choose.choice((None, None, 1, 2, 3)),
    }),
    "clean_a_vlan": (6, choose_quarantined),
    "replace_an_unchecked_element": (3, lambda machine, choose: {
        "name": choose(sorted(machine.find_unchecked())) or choose.choice(ELEMENTS),
    }),
    "make_a_backup": (2, lambda *_: {}),
    "restore_a_backup": (5, lambda _, choose: {"oldest": choose.random() < 0.5}),
    "archive_ended_clusters": (1, lambda *_: {}),
    "converge": (3, lambda _, choose: {"name": choose.choice(DEVICES)}),
    "an_agent_fetches_its_wanted_state": (2, lambda _, choose: {"host": choose.choice(HOSTS)}),
    "an_agent_applies_its_wanted_state": (4, lambda machine, choose: {
        "host": choose.choice([*HOSTS, *machine.carriers.fetched] ), "confirms": choose.random() < 0.7,
    }),
    "elements_reconcile": (6, lambda _, choose: {"absent": choose_absent(choose)}),
    "time_passes": (6, lambda _, choose: {"seconds": choose.choice(PAUSES), "suspended": choose.random() < 0.3}),
    "a_fault_of_a_device_begins_or_ends": (3, lambda _, choose: {
        "name": choose.choice(DEVICES), "fault": choose.choice(("cut_off", "refuses")),
    }),
    "a_host_cannot_remove_its_clusters": (4, lambda _, choose: {"host": choose.choice(HOSTS)}),
    "a_device_reboots": (1, lambda _, choose: {"name": choose.choice(DEVICES)}),
    "an_administrator_creates_or_deletes_a_vlan": (2, lambda _, choose: {
        "name": choose.choice(SWITCHES), "vlan": choose.randint(100, 105),
    }),
}  # fmt: skip
"""The weight of each action in the random choice, and the choice of its arguments."""


def run(machine: PoolMachine, steps: Iterable[Step], *, ends: bool = False) -> None:
    """Take steps, and check the invariants after each step. If ``ends``, end all faults and clusters afterwards."""
    taken = list[Step]()
    try:
        for name, arguments in steps:
            taken.append((name, arguments))
            getattr(machine, name)(**arguments)
            machine.all_invariants_hold()
        if ends:
            machine.without_faults_the_wanted_state_is_reached()
            machine.after_all_clusters_nothing_remains()
    except Exception as error:
        error.add_note("\n".join(map(str, taken)))
        raise
    finally:
        machine.close()


def choose_steps(machine: PoolMachine, seed: int) -> Iterable[Step]:
    for number in range(STEPS):
        choose = Choice(f"{seed} {number}")
        (name,) = choose.choices(list(ACTIONS), [weight for weight, _ in ACTIONS.values()])
        yield name, ACTIONS[name][1](machine, choose)


@pytest.mark.parametrize("seed", list_seeds(3))
def test_pools_leases_and_restores_keep_the_invariants(seed: int) -> None:
    run(machine := PoolMachine(), choose_steps(machine, seed), ends=True)


@pytest.mark.postgresql
@pytest.mark.parametrize("seed", list_seeds(1))
def test_the_invariants_hold_on_postgresql(postgres_server: PostgresServer, postgres_template: str, seed: int) -> None:
    machine = PoolMachine(lambda _: postgres_server.url(postgres_server.new_database(postgres_template)))
    run(machine, choose_steps(machine, 1000 + seed), ends=True)


RESTORED: Step = "restore_a_backup", {"oldest": True}
"""Restores the backup that ``begin`` made. Cluster ``a`` is active in this backup."""
ENDED: Step = "end", {"key": "a", "owner": "alice"}
RECONCILED: Step = "elements_reconcile", {"absent": []}
HOUR_LATER: Step = "time_passes", {"seconds": 3601.0, "suspended": False}
OTHERS = ["brno-h2", "praha-h2"]
RECONCILED_WITHOUT_OTHERS: Step = "elements_reconcile", {"absent": OTHERS}


def requested(key: str, hosts: list[str], absent: list[str] | None, vlan: int | None = None) -> Step:
    return "request", {"calls": [(key, spec(*hosts, vlan=vlan), None)], "absent": absent}


@pytest.mark.parametrize(
    ("module", "old", "new", "steps"),
    [
        (transitions, "if effects.frees:", "if effects.frees or effects.quarantined:", [
            ("a_host_cannot_remove_its_clusters", {"host": "brno-h1"}), ENDED, RECONCILED, HOUR_LATER,
        ]),
        (allocation, "check_sites_checked(unit, topology, sites, transport)", "pass", [
            requested("b", OTHERS, absent=[]), RESTORED, requested("c", ["brno-h1", "praha-h1"], absent=None),
        ]),
        (unchecked_elements, "scalars())\n\n\n_READ_VLANS", "scalars()) and frozenset()\n\n\n_READ_VLANS", [
            ENDED, RECONCILED, requested("b", OTHERS, absent=[], vlan=100), RESTORED, RECONCILED_WITHOUT_OTHERS,
        ]),
    ],
    ids=["quarantined IDs are free", "unchecked elements hold no pool", "unchecked elements hold no network"],
)  # fmt: skip
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str, steps: list[Step]
) -> None:
    run(PoolMachine(), steps)  # without the bug, the same events break no invariant
    plant(monkeypatch, module, old, new)
    monkeypatch.setattr(cluster_planning, "allocate_network_ids", allocation.allocate_network_ids)
    with pytest.raises(AssertionError):
        run(PoolMachine(), steps)
