"""Tests of a host's network on the real kernel, under random documents, kills, and changes by other programs.

The seeds are fixed: ``make test`` always runs the same sequences, ``make test-stateful`` runs these and further ones.
"""

import logging
import os
from collections.abc import Iterable
from itertools import product
from random import Random
from types import ModuleType
from typing import Any

import pytest
from simulation.planting import plant
from support.exploration import list_seeds
from support.hosts.host_network_programs import BOTH, INDEX, PORT, RULES, VLAN, OtherPrograms, rule

from virtcloud.agent.network import names, observed_segments, segment_checks, segments
from virtcloud.model.wanted import Segment

LEFT = range(70)
OPTIONS = tuple(product((None, None, 1400, 4000), (None, None, "addresses", "open"), range(3)))
"""All combinations of a network's MTU, filters and number of guests."""
STEPS = 40


class HostNetworkMachine(OtherPrograms):
    """A state machine whose rules are the events on a host, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        logging.disable()

    # Wanted documents.

    @rule(weight=5, vlan=VLAN, port=PORT, untagged=BOTH, options=OPTIONS, new=BOTH)
    def a_network_is_wanted(
        self, vlan: int, port: str, options: tuple[int | None, str | None, int], *, untagged: bool, new: bool
    ) -> None:
        former = next((one for one in self.wanted.values() if one.vlan == vlan), None)
        if former is None or new:
            self.count += 1
        cluster = former.id if former and not new else f"c{self.count}"
        mtu, filters, guests = options
        self.put(
            cluster, vlan, port, {"mtu": mtu, "filters": filters, "guests": make_guests(guests)}, untagged=untagged
        )

    @rule(index=INDEX, vlan=VLAN)
    def a_network_gets_another_vlan_id(self, index: int, vlan: int) -> None:
        if self.wanted:
            moved = list(self.wanted.values())[index % len(self.wanted)]
            del self.wanted[moved.id]
            rest = moved.model_dump(exclude={"id", "key", "vlan", "port", "untagged"})
            self.put(moved.id, vlan, moved.port, rest, untagged=moved.untagged)

    def put(self, cluster: str, vlan: int, port: str, rest: dict[str, Any], *, untagged: bool) -> None:
        """Add or replace a wanted network, and remove the wanted networks that conflict with this network."""
        segment = Segment.model_validate(
            {"id": cluster, "key": f"key-{cluster}", "vlan": vlan, "port": port, "untagged": untagged, **rest}
        )
        for other in list(self.wanted.values()):
            if other.id == cluster or other.vlan == vlan or (other.port == port and (untagged or other.untagged)):
                del self.wanted[other.id]
        self.wanted[cluster] = segment
        if untagged:
            self.attached.add(port)
        if segment.filters == "open":
            self.was_open.add(cluster)
        for guest in segment.guests:
            self.owners[names.guest_port_name(cluster, guest.name, vlan)] = cluster
        self.world.sbf.want(*self.wanted.values())

    @rule(vlan=VLAN)
    def a_network_ends(self, vlan: int) -> None:
        self.wanted = {key: one for key, one in self.wanted.items() if one.vlan != vlan}
        self.world.sbf.want(*self.wanted.values())

    # The agent.

    @rule(weight=3, left=LEFT, index=INDEX, change=range(6))
    def a_program_interferes_while_the_agent_works(self, left: int, index: int, change: int) -> None:
        port = PORT[index % len(PORT)]

        def interfere(_request: str) -> None:
            self.world.meter.fault = None
            assert self.snapshot() == self.before
            one = self.find_own(index, with_guests=change > 1)
            if one and change < 2:
                self.world.link("del", one.name)
            elif one and change == 2:
                self.world.link("set", one.name, master=0)
            elif change == 3:
                self.is_filter_intact = False
                self.try_nft("flush ruleset")
            elif port in self.world.list_links() and change == 4:
                self.world.link("del", port)
                self.world.add_uplink(port)
            elif port in self.world.list_links():
                self.world.link("set", port, state="down")
            self.before = self.snapshot()

        self.call(lambda: self.watch(left, interfere))

    @rule(weight=6)
    def the_agent_reconciles(self) -> None:
        self.call(self.reconcile_and_check)

    @rule(weight=4, left=LEFT)
    def the_agent_is_killed(self, left: int) -> None:
        self.call(lambda: self.watch(left, self.world.die))

    @rule(weight=4, left=LEFT)
    def the_kernel_refuses_a_request(self, left: int) -> None:
        self.call(lambda: self.watch(left, self.world.refuse))

    @rule()
    def the_host_reboots(self) -> None:
        self.call(self.world.boot)
        self.is_mixed, self.is_filter_intact = False, True

    # The guests.

    @rule(index=INDEX, ends=BOTH)
    def a_guest_ends_or_restarts(self, index: int, ends: bool) -> None:
        def work() -> None:
            hypervisor = self.world.hypervisor
            if hypervisor.by_name:
                name = sorted(hypervisor.by_name)[index % len(hypervisor.by_name)]
                if ends:
                    hypervisor.end(name)
                elif name not in hypervisor.immortal and hypervisor.ports[name][1] in self.world.list_links():
                    hypervisor.unplug(name)
                    hypervisor.plug(name, 1500)

        self.call(work)

    @rule(index=INDEX)
    def a_guest_cannot_be_stopped(self, index: int) -> None:
        hypervisor = self.world.hypervisor
        if hypervisor.by_name:
            name = sorted(hypervisor.by_name)[index % len(hypervisor.by_name)]
            hypervisor.stubborn.add(name)
            hypervisor.immortal.add(name)


def make_guests(count: int) -> list[dict[str, Any]]:
    keys = {"image": "busybox", "memory_mb": 64, "cpus": 1}
    return [
        {"name": f"g{n}", "mac": f"02:00:00:00:00:0{n}", "addresses": [f"10.0.0.{n}/24"], **keys}
        for n in range(1, count + 1)
    ]


Step = tuple[str, dict[str, Any]]


def choose(random: Random) -> Step:
    (name,) = random.choices(list(RULES), [weight for weight, _ in RULES.values()])
    return name, {key: random.choice(choices) for key, choices in RULES[name][1].items()}


def run(steps: Iterable[Step]) -> None:
    machine = HostNetworkMachine()
    try:
        for name, arguments in steps:
            getattr(machine, name)(**arguments)
        machine.everything_ends()
    finally:
        logging.disable(logging.NOTSET)
        machine.world.close()


def list_steps(seed: int) -> list[Step]:
    random = Random(seed)
    return [choose(random) for _ in range(STEPS)]


@pytest.fixture(autouse=True)
def _as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the real kernel's bridges need root")


@pytest.mark.parametrize("seed", list_seeds(4))
def test_a_hosts_network_reaches_the_wanted_state(seed: int) -> None:
    run(list_steps(seed))


WANTED: Step = (
    "a_network_is_wanted",
    {"vlan": 100, "port": "eth0", "untagged": True, "options": (None, None, 0), "new": True},
)
MOVED: Step = "an_uplink_gets_a_foreign_bridge", {"port": "eth0"}
KILLED = 6
"""The number of requests after which a bridge has no alias yet."""
RECONCILED: Step = "the_agent_reconciles", {}


@pytest.mark.parametrize(
    ("module", "old", "new", "steps"),
    [
        (segment_checks, "cluster_of_alias(master.alias) != segment.id", "cluster_of_alias(master.alias) == 0", [
            MOVED, WANTED, RECONCILED,
        ]),
        (segments, "if interface.master in owned:", "if interface.master:", [
            WANTED, RECONCILED, MOVED, ("a_network_ends", {"vlan": 100}), RECONCILED,
        ]),
        (observed_segments, "vlan_of_incomplete(interface) or 0", "names.vlan_of_job_port(interface.name) or 0", [
            WANTED, ("the_agent_is_killed", {"left": KILLED}), ("a_network_ends", {"vlan": 100}), RECONCILED,
        ]),
    ],
    ids=["a foreign bridge loses a port", "a foreign bridge loses a restored port", "a killed agent leaves a bridge"],
)  # fmt: skip
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str, steps: list[Step]
) -> None:
    plant(monkeypatch, module, old, new)
    if module is observed_segments:
        monkeypatch.setattr(segments, "find_segments", observed_segments.find_segments)
    if module is segment_checks:
        monkeypatch.setattr(segments, "check_free", segment_checks.check_free)
    with pytest.raises(AssertionError):
        run(steps)
