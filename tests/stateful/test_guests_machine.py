"""Tests of a host's guests under any sequence of requests, faults of the host, and kills of the agent."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from simulation.planting import plant
from support.exploration import list_seeds
from support.guest_machine.clusters import describe_guest
from support.guest_machine.host import GuestHost
from support.guest_machine.hypervisors import is_guest

from virtcloud.agent.guests import guests, host_hypervisors, image_folder
from virtcloud.agent.guests.domains import GuestDomain
from virtcloud.agent.network import names
from virtcloud.model.element import Hypervisor

IMAGES = ("busybox", "kernel", "golden", "disk1", "disk2", "disk3", "root1")
CATALOGUE = IMAGES[3:]
ROUNDS, STEPS = 15, 60
Action = tuple[object, ...]


def draw_actions(seed: int, steps: int = STEPS) -> list[Action]:
    """Return a random sequence of actions. The first word of an action is the name of a method of `GuestRules`."""
    random = Random(seed)
    weights = {name: weight for name, (weight, _) in RULES.items()}
    drawn = random.choices(list(weights), list(weights.values()), k=steps)
    return [(name, *(random.choice(choices) for choices in RULES[name][1])) for name in drawn]


INDEX, YES_OR_NO, KINDS = range(6), (True, False), (Hypervisor.LXC, Hypervisor.QEMU)
RULES = {
    "create": (8, ("abc", YES_OR_NO, INDEX, IMAGES + CATALOGUE)),
    "put_guest": (8, (INDEX, "12", IMAGES + CATALOGUE, (None, 16, 32), (None, 16, 32))),
    "remove_guest": (2, (INDEX,)),
    "end": (3, (INDEX,)),
    "request_power": (5, (INDEX, ("stop", "start", "reset"))),
    "reconcile": (14, ()),
    "kill_the_agent": (12, (range(1, 60),)),
    "fill_the_disk": (4, (range(1, 40), YES_OR_NO)),
    "change_a_hypervisor": (5, (KINDS, ("hang", "refuse", "late", "damaged", "", "", ""))),
    "end_all_guests": (1, (KINDS,)),
    "make_guests_stubborn": (1, (KINDS, YES_OR_NO)),
    "fill_the_cache": (1, (((64 << 20) + 5000, 1 << 40, 1 << 40),)),
    "end_a_guest": (3, (INDEX, YES_OR_NO)),
    "reboot": (2, ()),
    "pass_time": (3, ((1.0, 30.0, 400.0),)),
    "change_the_server": (4, (CATALOGUE, ("ok", "ok", "slow", "cut", "wrong", "long", "gone", "down"))),
    "define_a_foreign_domain": (2, (INDEX, KINDS)),
    "remove_foreign_domains": (2, ()),
    "change_an_image": (2, (IMAGES[:3], ("replace", "remove", "restore", "restore"))),
    "clone": (2, (INDEX, YES_OR_NO)),
    "delete_a_file": (2, (range(20),)),
    "copy_a_domain": (1, (INDEX,)),
}
"""The weight of each rule, and the choices for its arguments."""


class GuestRules:
    """The actions of users, administrators, other programs and the host."""

    def __init__(self, host: GuestHost) -> None:
        self.host, self.sbf, self.number = host, host.sbf, 0
        self.foreign: set[tuple[Hypervisor, str]] = set()

    def run(self, actions: Iterable[Action]) -> None:
        for name, *arguments in actions:
            getattr(self, str(name))(*arguments)
            self.check()
        self.recover()

    def check(self) -> None:
        self.host.check_images()
        assert not self.host.violations, self.host.violations[0]
        assert all(name in self.host.hypervisors[kind].by_name for kind, name in self.foreign)

    # Requests.

    def create(self, key: str, joins: bool, index: int, image: str) -> None:
        networks = [one.id for one in self.sbf.clusters.values() if one.network is None]
        cluster = self.sbf.add(key, networks[index % len(networks)] if joins and networks else None)
        if cluster is not None:
            self._put(cluster.id, "1", image)

    def put_guest(self, index: int, name: str, image: str, size: int | None, disk: int | None) -> None:
        if self.sbf.clusters:
            limits = {"disk_mb": size} if size and image != "kernel" else None
            disks = [{"name": "data", "size_mb": disk}] if disk else None
            self._put(list(self.sbf.clusters)[index % len(self.sbf.clusters)], name, image, limits=limits, disks=disks)

    def _put(self, cluster: str, name: str, image: str, **changes: object) -> None:
        self.number += 1
        own = f"g{name}" if self.sbf.clusters[cluster].network is None else f"{cluster}-{name}"
        source = self.host.server.source(image) if image in CATALOGUE else None
        guests = self.sbf.clusters[cluster].guests
        former = guests.get(own, {})
        kept = {key: former[key] for key in ("power", "starts") if key in former}
        guests[own] = describe_guest(own, self.number % 200 + 1, image, source, **changes, **kept)
        self.sbf.publish()

    def remove_guest(self, index: int) -> None:
        if guests := self.sbf.list_guests():
            cluster, name = guests[index % len(guests)]
            del self.sbf.clusters[cluster].guests[name]
            self.sbf.publish()

    def end(self, index: int) -> None:
        if self.sbf.clusters:
            self.sbf.remove(list(self.sbf.clusters)[index % len(self.sbf.clusters)])
            self.sbf.publish()

    def request_power(self, index: int, action: str) -> None:
        if guests := self.sbf.list_guests():
            cluster, name = guests[index % len(guests)]
            guest = self.sbf.clusters[cluster].guests[name]
            if action == "reset":
                guest["starts"] = (guest.get("starts") or 0) + 1
            else:
                guest["power"] = "off" if action == "stop" else None
            self.sbf.publish()

    # The agent and the host.

    def reconcile(self) -> None:
        ready, foreign = self.host.list_ready(), {name for _, name in self.foreign}
        self.host.reconcile()
        self.host.check_reports()
        self.host.check_isolation(ready, foreign)

    def kill_the_agent(self, change: int) -> None:
        self.host.interruptions.plan(change)
        self.host.reconcile()

    def fill_the_disk(self, change: int, stays: bool) -> None:
        self.host.interruptions.plan(change, full=True, stays_full=stays)
        self.host.reconcile()

    def change_a_hypervisor(self, kind: Hypervisor, fault: str) -> None:
        self.host.hypervisors[kind].fault = fault

    def end_all_guests(self, kind: Hypervisor) -> None:
        """End all guests of a hypervisor, as if an administrator had killed them with libvirtd."""
        for domain in list(self.host.hypervisors[kind].by_name.values()):
            if is_guest(domain):
                self.host.late[domain.name] = False
                self.host.hypervisors[kind].end(domain.name)

    def make_guests_stubborn(self, kind: Hypervisor, stubborn: bool) -> None:
        """Set whether running guests ignore requests to shut down, as a paused guest or a guest without ACPI does."""
        hypervisor = self.host.hypervisors[kind]
        hypervisor.stubborn = set(hypervisor.by_name) if stubborn else set()

    def fill_the_cache(self, free: int) -> None:
        self.host.free = free

    def end_a_guest(self, index: int, complete: bool) -> None:
        if running := list(self.host.list_running()):
            hypervisor, domain = running[index % len(running)]
            self.host.late[domain.name] = False
            if complete:
                hypervisor.end(domain.name)
            else:
                hypervisor.ending.add(domain.name)

    def reboot(self) -> None:
        self.host.reboot()

    def pass_time(self, seconds: float) -> None:
        self.host.now += seconds
        self.host.late = {name: False for name, is_known in self.host.late.items() if not is_known}
        self.host.proceed("pause")

    def change_the_server(self, image: str, mode: str) -> None:
        self.host.server.modes[image] = mode
        self.host.proceed("server")

    def change_an_image(self, name: str, change: str) -> None:
        """Replace an image in the host's folder, remove its description, or write the description again."""
        folder = self.host.images / name
        description = folder / "image.yaml"
        if change == "replace":
            for path in folder.glob("disk.raw"):
                path.unlink()
                path.write_bytes(bytes(2000 + self.number))
        elif change == "remove" and description.exists():
            description.rename(folder / "removed")
        elif change == "restore" and not description.exists():
            (folder / "removed").rename(description)

    def clone(self, index: int, complete: bool) -> None:
        if complete:
            self.host.end_clones()
        elif wanted := self.host.list_wanted():
            self.host.begin_clone(*wanted[index % len(wanted)])

    # Other programs.

    def delete_a_file(self, number: int) -> None:
        self.host.delete_file(number)

    def copy_a_domain(self, index: int) -> None:
        """Copy the domain of a guest with its metadata, as virt-clone does."""
        if running := list(self.host.list_running()):
            hypervisor, domain = running[index % len(running)]
            name = f"{domain.name}-copy"
            hypervisor.by_name[name] = replace(domain, name=name)
            self.foreign.add((hypervisor.kind, name))

    def define_a_foreign_domain(self, index: int, kind: Hypervisor) -> None:
        if guests := self.sbf.list_guests():
            cluster, guest = guests[index % len(guests)]
            name = names.domain_name(self.sbf.clusters[cluster].network or cluster, guest)
            if all(name not in one.by_name for one in self.host.hypervisors.values()):
                self.host.hypervisors[kind].by_name[name] = GuestDomain(name, running=True)
                self.foreign.add((kind, name))

    def remove_foreign_domains(self) -> None:
        for kind, name in self.foreign:
            del self.host.hypervisors[kind].by_name[name]
        self.foreign = set()

    # The end.

    def recover(self) -> None:
        """The host reaches the wanted state after all faults end. No trace of removed clusters remains."""
        host = self.host
        self.remove_foreign_domains()
        host.end_clones()
        self.fill_the_cache(1 << 40)
        for name in IMAGES[:3]:
            self.change_an_image(name, "restore")
        for hypervisor in host.hypervisors.values():
            hypervisor.fault = ""
        host.server.modes = dict.fromkeys(CATALOGUE, "ok")
        self._settle()
        assert host.sbf.document.confirmed_revision == host.sbf.document.revision
        assert host.sbf.document.incomplete == () or not host.fits_cache(), host.sbf.incomplete[-1]
        for cluster in list(host.sbf.clusters):
            host.sbf.remove(cluster)
        host.sbf.publish()
        self._settle()
        assert host.sbf.document.incomplete == ()
        assert host.sbf.document.confirmed_revision == host.sbf.document.revision
        host.check_empty()

    def _settle(self) -> None:
        for _ in range(ROUNDS):
            self.host.proceed("server", "pause")
            self.host.now += 400
            self.host.reconcile()
            self.check()


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owners of files")


def run_seeds(folder: Path, count: int) -> None:
    for seed in range(count):
        (of_seed := folder / str(seed)).mkdir()
        run(of_seed, draw_actions(seed))


def run(folder: Path, actions: Iterable[Action]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        host = GuestHost(folder, patch)
        try:
            GuestRules(host).run(actions)
        finally:
            host.restart_agent()


@pytest.mark.parametrize("seed", list_seeds(40))
def test_guests_reach_the_wanted_state_after_any_faults(tmp_path: Path, seed: int) -> None:
    run(tmp_path, draw_actions(seed))


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ((guests, "            if name not in kept:\n", "            if name:\n"), "lost what the guest wrote"),
        ((image_folder, 'in self.guests.glob(f"*/{CHECKSUM}")}', "in ()}"), "was evicted"),
        ((host_hypervisors, "return replace(domain, owner=None)", "return domain"), "foreign domain .* is stopped"),
        ((guests, "            return False\n        self", "            pass\n        self"), "while its guest runs"),
    ],
    ids=["a stop removes files", "used images are evicted", "a copy is stopped", "hidden guests lose files"],
)
def test_a_planted_bug_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: tuple[ModuleType, str, str], message: str
) -> None:
    plant(monkeypatch, *planted)
    with pytest.raises(AssertionError, match=message):
        run_seeds(tmp_path, 60)
