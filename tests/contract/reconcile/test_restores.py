"""Tests of a restored SBF and of clusters that changed after the backup (docs/decisions/0073).

After the restore, every element is *unchecked* until it has confirmed its wanted state, or an administrator has
declared it clean. While elements are unchecked, the clusters of the backup are *held*: elements keep the parts of these
clusters that they already carry, and set up no other parts. A *hold* is the time during which a cluster is held. A
*returned* cluster ended between the backup and the restore, so the backup contains the cluster as active.
"""

from collections.abc import Iterator
from datetime import timedelta
from math import inf
from pathlib import Path

import pytest
from sqlalchemy import update
from support.sbf_fakes.restores import CarryingHosts, back_up, restored_world
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.reconcile.deadlines import SUSPENDED_AFTER_S
from sbf_service.store.clusters.guest_power import set_guest_power
from sbf_service.store.elements.confirmations import confirm_revision
from sbf_service.store.elements.elements import make_element_view
from sbf_service.store.elements.leases import acquire_lease
from sbf_service.store.elements.revisions import increment_revisions, require_element
from sbf_service.store.elements.unchecked_elements import DECLARED_CLEAN, declare_element_clean
from sbf_service.store.maintenance.metric_counts import count_installation
from sbf_service.store.tables.tables import ElementRow, PortRow
from sbf_service.store.vlans.ports import add_port_row, parse_removed_switch, release_ports
from virtcloud.agent.difference import compute_difference, digest
from virtcloud.agent.held_steps import split_held_steps
from virtcloud.agent.observed_host import ObservedGuest, ObservedHost, ObservedSegment
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, NoVlanFree
from virtcloud.model.guests import GuestPower, GuestPowerRequest, GuestView
from virtcloud.model.port_use import PortRelease, PortUse
from virtcloud.model.switch_state import SwitchWanted
from virtcloud.model.topology import Topology
from virtcloud.model.values import PortName
from virtcloud.model.wanted import UNCHECKED_NETWORK, HostWanted

SWITCH, SPARE = "brno-sw1", "brno-sw2"
POOL_OF_TWO = "100-101"


class Machines:
    """A world and its hosts. ``restored`` is the restored world on another machine, or None before the restore."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder, self.hosts = world, folder, CarryingHosts()
        self.restored: World | None = None

    def settle(self, *absent: str) -> None:
        self.hosts.settle(self.restored or self.world, *absent)

    def back_up(self) -> None:
        self.settle()
        self.backup = back_up(self.world, self.folder)

    def restore(self) -> World:
        self.restored = restored_world(self.world, self.backup, f"sqlite:///{self.folder / 'restored.db'}")
        return self.restored

    def carries(self, host: str) -> list[int]:
        return sorted(vlan for _, vlan in self.hosts.carried[host])


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(make_world(tmp_path), tmp_path)
    made.world.furnish()
    yield made
    for world in filter(None, (made.restored, made.world)):
        world.close()


@pytest.fixture
def reused(machines: Machines) -> Machines:
    """Cluster ``old`` had VLAN 100 during the backup. Then ``old`` ended, and cluster ``new`` got VLAN 100."""
    machines.world.put_pool("brno", POOL_OF_TWO)
    machines.world.put("old", spec("brno-h1", vlan=100))
    machines.back_up()
    machines.world.delete("old")
    machines.settle()
    machines.world.put("new", spec("brno-h2", vlan=100))
    machines.settle()
    return machines


def test_a_cluster_of_the_backup_stays_active_and_unchanged(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1", "praha-h1"))
    machines.back_up()
    switch = machines.world.switches[SWITCH]
    before, applied = dict(switch.ports), len(switch.applied)
    restored = machines.restore()
    machines.settle()
    assert restored.view("demo").state is ClusterState.ACTIVE
    assert (switch.ports, len(switch.applied)) == (before, applied)


def test_no_cluster_is_active_before_its_elements_are_read(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    view = machines.restore().view("demo")
    assert (view.state, (view.reason or "").partition(" of ")[0]) == (
        ClusterState.DEGRADED,
        "being restored: its elements were not read since the database was restored from a backup",
    )


def test_a_cluster_is_degraded_since_the_restore(machines: Machines) -> None:
    """The metric of the longest-degraded cluster must not include the time since the cluster's creation."""
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    machines.world.clock.advance(900)
    restored = machines.restore()
    degraded, restore = restored.audit()[-2:]
    cluster = restored.view("demo")
    assert (degraded.what, degraded.why, degraded.cluster_id) == ("cluster_degraded", cluster.reason, cluster.id)
    assert (restore.what, restore.cluster_id, restore.id) == ("database_restored", None, degraded.id + 1)
    machines.world.clock.advance(60)
    with restored.store.read() as unit:
        assert count_installation(unit, restored.service.reserved).oldest_degraded_s == 60


def test_a_cluster_created_after_the_backup_is_removed_everywhere(machines: Machines) -> None:
    machines.back_up()
    machines.world.put("new", spec("brno-h1"))
    machines.settle()
    assert machines.carries("brno-h1") == [100]
    machines.restore()
    machines.settle()
    assert machines.carries("brno-h1") == []
    assert set().union(*machines.world.switches[SWITCH].ports.values()) == set()


def test_no_cluster_starts_before_its_sites_elements_are_read(machines: Machines) -> None:
    """Hosts and switch still carry cluster ``new``, which the backup does not contain.

    If SBF did not wait, the next cluster would get the VLAN ID of ``new``.
    """
    machines.back_up()
    machines.world.put("new", spec("brno-h1"))
    machines.settle()
    restored = machines.restore()
    with pytest.raises(NoVlanFree, match=r"restored from a backup.*: brno-h1, brno-h2, brno-sw1: wait until"):
        restored.put("other", spec("brno-h2"))


def test_a_silent_host_blocks_new_clusters_of_its_site_only(machines: Machines) -> None:
    machines.back_up()
    restored = machines.restore()
    machines.settle("brno-h2")
    with pytest.raises(NoVlanFree, match=r"does not contain: brno-h2: wait"):
        restored.put("here", spec("brno-h1"))
    assert restored.put("there", spec("praha-h1", "plzen-h1")).view.vlans == {"praha": 100, "plzen": 100}


def test_a_silent_switch_blocks_clusters_over_its_transports(machines: Machines) -> None:
    machines.back_up()
    restored = machines.restore()
    machines.world.switches[SWITCH].cut_off = True
    machines.settle()
    restored.put("local", spec("praha-h1"))
    with pytest.raises(NoVlanFree, match=r"does not contain: brno-sw1: wait"):
        restored.put("wide", spec("praha-h1", "plzen-h1"))


def test_a_new_cluster_starts_when_all_elements_were_read(machines: Machines) -> None:
    machines.back_up()
    restored = machines.restore()
    machines.settle()
    restored.put("other", spec("brno-h1"))
    machines.settle()
    assert restored.view("other").state is ClusterState.ACTIVE


def test_an_element_declared_clean_blocks_no_cluster(machines: Machines) -> None:
    machines.back_up()
    restored = machines.restore()
    machines.settle("brno-h2")
    with restored.store.change(who="eva") as unit:
        declare_element_clean(unit, "brno-h2", "scrapped")
    restored.put("here", spec("brno-h1"))
    assert [(row.who, row.element, row.why) for row in restored.audit("element_said_clean")] == [
        ("eva", "brno-h2", "scrapped")
    ]


def test_an_element_declared_clean_does_not_count_as_unread(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1", "brno-h2"))
    machines.back_up()
    restored = machines.restore()
    former = restored.view("demo").version
    with restored.store.change(who="eva") as unit:
        declare_element_clean(unit, "brno-h2", "scrapped")
        view = make_element_view(unit, "brno-h2")
    assert view.trouble == "declared clean; it has not confirmed its wanted state since"
    assert restored.view("demo").version > former
    machines.settle()
    with restored.store.read() as unit:
        assert make_element_view(unit, "brno-h2").trouble is None


def test_an_element_declared_clean_earlier_can_lose_its_error(machines: Machines) -> None:
    """Earlier versions of SBF kept the error of an element that was declared clean."""
    machines.world.put("demo", spec("brno-h1", "brno-h2"))
    machines.back_up()
    restored = machines.restore()
    with restored.store.change(who="eva") as unit:
        unit.session.execute(update(ElementRow).where(ElementRow.name == "brno-h2").values(unchecked=False))
    with restored.store.change(who="eva") as unit:
        declare_element_clean(unit, "brno-h2", "scrapped")
        assert make_element_view(unit, "brno-h2").trouble == DECLARED_CLEAN


def test_an_ended_cluster_returns_until_its_lease_ends(machines: Machines) -> None:
    """The cluster ended after the backup, so the restored database contains the cluster as active."""
    machines.world.put("old", spec("brno-h1", lease_s=7200))
    machines.back_up()
    machines.world.delete("old")
    machines.settle()
    restored = machines.restore()
    machines.settle()
    assert restored.view("old").state is ClusterState.ACTIVE
    restored.clock.advance(7200)
    machines.settle()
    assert restored.view("old").state is ClusterState.RELEASED


def test_the_time_since_the_backup_is_no_outage(machines: Machines) -> None:
    machines.world.dead_hosts.add("brno-h1")
    machines.settle("brno-h1")
    machines.world.put("slow", spec("brno-h1", lease_s=2_000_000))
    machines.world.sweep()
    backup = back_up(machines.world, machines.folder)
    machines.world.clock.advance(864000)
    database = f"sqlite:///{machines.folder / 'restored.db'}"
    machines.restored = restored = restored_world(machines.world, backup, database)
    restored.service.scheduler.sweep.suspended_after_s = SUSPENDED_AFTER_S
    restored.sweep()
    assert restored.audit("deadline_extended") == []
    restored.clock.advance(3600)
    restored.service.scheduler.sweep.suspended_after_s = inf
    restored.sweep()
    assert restored.view("slow").state is ClusterState.FAILING


def test_extending_a_pool_again_removes_unknown_clusters(machines: Machines) -> None:
    machines.back_up()
    machines.world.put_pool("brno", "100-149")
    machines.world.put("new", spec("brno-h1", vlan=145))
    machines.settle()
    restored, switch = machines.restore(), machines.world.switches[SWITCH]
    machines.settle()
    assert (machines.carries("brno-h1"), switch.ports["p1"]) == ([], {145})
    restored.put_pool("brno", "100-149")
    machines.settle()
    assert switch.ports["p1"] == set()


def test_a_pool_keeps_its_vlans_until_the_devices_are_read(machines: Machines) -> None:
    """Without VLAN 139 in the pool, SBF would not remove cluster ``new`` from the switch."""
    machines.back_up()
    machines.world.put("new", spec("brno-h1", vlan=139))
    machines.settle()
    restored, switch = machines.restore(), machines.world.switches[SWITCH]
    with pytest.raises(Conflict, match=r"lacks VLAN IDs 139\. The database was restored.*: brno-sw1: wait until"):
        restored.put_pool("brno", "100-138")
    restored.put_pool("brno", "100-149")
    machines.settle()
    assert switch.ports["p1"] == set()
    restored.put_pool("brno", "100-138")


def test_a_returned_cluster_waits_until_its_vlan_is_unused(reused: Machines) -> None:
    """Host brno-h2 still carries VLAN 100 for ``new``. So brno-h1 and the switch do not set up ``old`` yet."""
    restored, switch = reused.restore(), reused.world.switches[SWITCH]
    reused.settle("brno-h2")
    assert (reused.carries("brno-h1"), reused.carries("brno-h2")) == ([], [100])
    assert {port: set(vlans) for port, vlans in switch.ports.items() if vlans} == {}
    assert restored.view("old").state is ClusterState.DEGRADED


def test_a_returned_cluster_is_set_up_on_an_unused_vlan(reused: Machines) -> None:
    restored = reused.restore()
    reused.settle("brno-h2")
    reused.settle()
    assert (reused.carries("brno-h1"), reused.carries("brno-h2")) == ([100], [])
    assert restored.view("old").state is ClusterState.ACTIVE


def test_a_host_gets_a_new_revision_when_a_hold_ends(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    restored = machines.restore()
    machines.settle("brno-h2")
    (held,) = restored.wanted_of_host("brno-h1").segments
    revision = restored.element("brno-h1").wanted_revision
    assert UNCHECKED_NETWORK in held.requires
    machines.settle()
    (free,) = restored.wanted_of_host("brno-h1").segments
    assert UNCHECKED_NETWORK not in free.requires
    assert restored.element("brno-h1").wanted_revision > revision


def test_a_confirmation_that_was_rolled_back_ends_no_hold(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    restored = machines.restore()
    machines.settle("brno-h2")
    unchecked, held = restored.element("brno-h2"), restored.element("brno-h1").wanted_revision

    def confirm_and_fail() -> None:
        with restored.store.change() as unit:
            confirm_revision(unit, "brno-h2", unchecked.wanted_revision, timedelta(minutes=5))
            raise ConnectionError

    with pytest.raises(ConnectionError):
        confirm_and_fail()
    with pytest.raises(NoVlanFree, match="the database was restored from a backup"):
        restored.put("new", spec("brno-h1"))
    machines.settle()
    assert restored.element("brno-h1").wanted_revision > held
    assert restored.put("new", spec("brno-h1")).created


def reset(world: World, resets: int) -> GuestView:
    with world.store.change() as unit:
        return set_guest_power(unit, "demo", "g1", GuestPowerRequest(power=GuestPower.ON, resets=resets))


def started(wanted: HostWanted) -> ObservedHost:
    """Return the state of a host whose agent has applied ``wanted``."""
    segments = tuple(ObservedSegment(one.id, one.vlan, one.port) for one in wanted.segments)
    guests = tuple(
        ObservedGuest(segment.id, guest.name, digest(segment, guest), starts=guest.starts or 0)
        for segment in wanted.segments
        for guest in segment.guests
    )
    return ObservedHost(segments, guests)


def test_a_guest_that_was_reset_after_the_backup_runs_on(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    reset(machines.world, 1)
    before = started(machines.world.wanted_of_host("brno-h1"))
    restored = machines.restore()
    machines.settle("brno-h2")
    assert compute_difference(restored.wanted_of_host("brno-h1"), before) == []
    machines.settle()
    assert compute_difference(restored.wanted_of_host("brno-h1"), before) == []


def test_a_reset_after_a_restore_restarts_the_guest_once(machines: Machines) -> None:
    """The guest was reset after the backup. The host must distinguish this reset from the reset after the restore."""
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    reset(machines.world, 1)
    before = started(machines.world.wanted_of_host("brno-h1"))
    restored = machines.restore()
    machines.settle()
    assert (reset(restored, 1).resets, reset(restored, 1).resets) == (1, 1)
    wanted = restored.wanted_of_host("brno-h1")
    assert [str(step) for step in compute_difference(wanted, before)] == ["stop g1", "start g1"]
    assert compute_difference(wanted, started(wanted)) == []


def test_a_reset_during_a_hold_waits_and_stops_no_guest(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    before = started(machines.world.wanted_of_host("brno-h1"))
    restored = machines.restore()
    machines.settle("brno-h2")
    reset(restored, 1)
    held = restored.wanted_of_host("brno-h1")
    permitted, reasons = split_held_steps(compute_difference(held, before))
    assert (permitted, set(reasons)) == ([], {held.segments[0].id})


def test_the_removal_of_an_unchecked_host_ends_the_hold(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    restored = machines.restore()
    machines.settle("brno-h2")
    revision = restored.element("brno-h1").wanted_revision
    restored.put_topology(without_host(restored.topology(), "brno-h2"))
    (free,) = restored.wanted_of_host("brno-h1").segments
    assert UNCHECKED_NETWORK not in free.requires
    assert restored.element("brno-h1").wanted_revision > revision


def without_host(topology: Topology, host: str) -> Topology:
    document = topology.model_dump(mode="json")
    for site in document["sites"]:
        site["hosts"] = [one for one in site["hosts"] if one["name"] != host]
    document["links"] = [link for link in document["links"] if not link["a"].startswith(f"{host}:")]
    return Topology.model_validate(document)


def test_forgetting_the_port_of_an_unchecked_switch_ends_the_hold(machines: Machines) -> None:
    """The removed switch does not answer, so SBF cannot restore the original use of the switch's port.

    Therefore, the switch stays unchecked. An administrator then makes SBF forget the port's use.
    """
    topology = machines.world.topology()
    machines.world.put_topology(with_spare_switch(topology))
    machines.world.put("demo", spec("brno-h1"))
    machines.settle()
    with machines.world.store.change() as unit:
        add_port_row(unit, SPARE, PortName("p1")).use_before = PortUse(mode="access", access=20).model_dump_json()
        unit.session.execute(update(PortRow).values(taken=True))
    machines.back_up()
    restored = machines.restore()
    restored.switches[SPARE].cut_off = True
    machines.settle()
    restored.put_topology(topology)
    (held,) = restored.wanted_of_host("brno-h1").segments
    revision = restored.element("brno-h1").wanted_revision
    assert UNCHECKED_NETWORK in held.requires
    with restored.store.change() as unit:
        removed = parse_removed_switch(require_element(unit, SPARE))
        assert removed is not None
        release_ports(unit, removed, SwitchWanted(ports={}), PortRelease(ports=("p1",), forget=True))
    (free,) = restored.wanted_of_host("brno-h1").segments
    assert UNCHECKED_NETWORK not in free.requires
    assert restored.element("brno-h1").wanted_revision > revision


def with_spare_switch(topology: Topology) -> Topology:
    document = topology.model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": SPARE, "platform": "fake", "ports": ["p1"]})
    return Topology.model_validate(document)


def test_a_switch_that_cannot_be_read_holds_returned_clusters(reused: Machines) -> None:
    restored, switch = reused.restore(), reused.world.switches[SWITCH]
    switch.cut_off = True
    reused.settle()
    assert (reused.carries("brno-h1"), restored.view("old").state) == ([], ClusterState.DEGRADED)
    switch.cut_off = False
    reused.settle()
    assert (reused.carries("brno-h1"), restored.view("old").state) == ([100], ClusterState.ACTIVE)


def test_an_unknown_remaining_cluster_blocks_its_site(machines: Machines) -> None:
    machines.back_up()
    machines.world.put("new", spec("brno-h1"))
    machines.settle()
    restored = machines.restore()
    ((unknown, _),) = machines.hosts.carried["brno-h1"]
    machines.hosts.stuck["brno-h1"] = {unknown}
    machines.settle()
    with pytest.raises(NoVlanFree, match=r"does not contain: brno-h1: wait"):
        restored.put("other", spec("brno-h2"))
    assert restored.element("brno-h1").trouble == f"cluster {unknown}: busy"
    machines.hosts.stuck.clear()
    machines.settle()
    restored.put("other", spec("brno-h2"))


def test_late_confirmations_of_former_revisions_are_refused(machines: Machines) -> None:
    """After the backup, the host confirmed revisions that the restored database does not contain."""
    machines.world.put("old", spec("brno-h1"))
    machines.back_up()
    machines.world.delete("old")
    machines.settle()
    former = machines.world.element("brno-h1").confirmed_revision
    restored = machines.restore()
    with pytest.raises(Conflict, match=r"before the database was restored: expected revision 1\d{7} or later"):
        restored.confirm("brno-h1", former)
    assert restored.element("brno-h1").confirmed_revision == 0


def test_revisions_exceed_all_revisions_before_the_restore(machines: Machines) -> None:
    """Each agent waits for a revision that is higher than the last revision that the agent received.

    The backup may lack the agent's last revision. Nevertheless, the restored SBF must assign only higher revisions.
    """
    machines.back_up()
    with machines.world.store.change() as unit:
        for _ in range(100):
            increment_revisions(unit, ["brno-h1"])
    assert machines.restore().element("brno-h1").wanted_revision > machines.world.element("brno-h1").wanted_revision


def test_fencing_tokens_exceed_all_tokens_before_the_restore(machines: Machines) -> None:
    machines.back_up()
    with machines.world.store.change_row() as unit:
        former = [acquire_lease(unit, SWITCH, "one", machines.world.service.settings.timing.lease) for _ in range(9)]
    restored = machines.restore()
    with restored.store.change_row() as unit:
        token = acquire_lease(unit, SWITCH, "two", restored.service.settings.timing.lease)
    assert token is not None
    assert token > max(filter(None, former))


def test_a_lost_lease_extension_ends_no_cluster_immediately(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1", lease_s=600))
    machines.back_up()
    machines.world.clock.advance(700)
    restored = machines.restore()
    machines.settle()
    assert restored.view("demo").state is ClusterState.ACTIVE


def test_every_device_is_saved_again_after_a_restore(machines: Machines) -> None:
    """After the backup, a save may have stored a wrong startup configuration.

    This is possible even if the running configuration is correct, so SBF saves every device again.
    """
    machines.world.put("demo", spec("brno-h1"))
    machines.back_up()
    switch = machines.world.switches[SWITCH]
    switch.startup = ({"p1": {139}}, set())
    machines.restore()
    machines.settle()
    assert switch.startup[0]["p1"] == {100}


def test_quarantined_vlans_stay_in_quarantine(machines: Machines) -> None:
    machines.world.put("demo", spec("brno-h1"))
    machines.settle()
    machines.world.delete("demo")
    machines.hosts.settle(machines.world, "brno-h1")
    machines.world.clock.advance(61)
    machines.hosts.settle(machines.world, "brno-h1")
    machines.backup = back_up(machines.world, machines.folder)
    restored = machines.restore()
    machines.settle("brno-h1")
    assert str(restored.site("brno").quarantined) == "100"
    machines.settle()
    assert str(restored.site("brno").quarantined) == ""


def test_the_reason_of_a_held_network_is_shown(reused: Machines) -> None:
    restored = reused.restore()
    reused.settle("brno-h2")
    assert "restored from a backup" in str(restored.element(SWITCH).trouble)
    (segment,) = restored.wanted_of_host("brno-h1").segments
    assert UNCHECKED_NETWORK in segment.requires


def test_a_second_restore_also_exceeds_the_revisions_of_the_first(machines: Machines, tmp_path: Path) -> None:
    machines.back_up()
    first = machines.restore()
    (folder := tmp_path / "second").mkdir()
    second = Machines(first, folder)
    second.backup = back_up(first, folder)
    assert second.restore().element("brno-h1").wanted_revision > first.element("brno-h1").wanted_revision
    second.restored.close()


def test_a_restore_is_refused_when_revisions_are_exhausted(machines: Machines) -> None:
    machines.back_up()
    with machines.world.store.change() as unit:
        unit.session.execute(update(ElementRow).values(wanted_revision=2**31 - 2))
    machines.backup = back_up(machines.world, machines.folder, "b.backup")
    with pytest.raises(Exception, match="permit no further restore"):
        machines.restore()
