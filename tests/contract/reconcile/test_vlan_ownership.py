"""Tests that SBF neither changes nor allocates foreign VLANs (invariant 4 in docs/explanation/invariants.md)."""

from typing import Any

import pytest
from sqlalchemy import delete
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.switches import FakeSwitch
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.store.tables.vlan_tables import CreatedVlanRow, FreeVlanRow
from sbf_service.store.vlans.ports import add_port_row
from sbf_service.store.vlans.vlan_ownership import read_created_vlans
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.port_use import PortUse
from virtcloud.model.topology import Topology
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

SWITCH = "brno-sw1"


@pytest.fixture
def switch(world: World) -> FakeSwitch:
    switch = world.switches[SWITCH]
    switch.table = {1: "default"}
    world.settle()
    switch.calls.clear()
    return switch


def created_vlans(world: World) -> str:
    with world.store.read() as unit:
        return str(read_created_vlans(unit, SWITCH))


def free_vlans(world: World) -> str:
    with world.store.read() as unit:
        return str(VlanSet(row.vlan for row in unit.session.query(FreeVlanRow).where(FreeVlanRow.site == "brno")))


def read_again(world: World) -> None:
    world.clock.advance(world.service.settings.timing.drift_interval)
    world.settle()


def other_uses(world: World) -> list[tuple[int, str, str | None, tuple[str, ...], str | None]]:
    return [(use.vlan, use.element, use.name, use.ports, use.cluster) for use in world.site("brno").other_use]


def with_second_switch(site: int) -> Topology:
    document = three_sites().model_dump(mode="json")
    document["sites"][site]["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["q1"]})
    return Topology.model_validate(document)


def test_setting_a_pool_deletes_no_foreign_vlan(world: World, switch: FakeSwitch) -> None:
    switch.table |= {150: "offices"}
    switch.ports["p9"] = {150, 151}
    world.put_pool("brno", "100-199")
    world.settle()
    assert (switch.table, switch.ports["p9"], switch.applied) == ({1: "default", 150: "offices"}, {150, 151}, [])


def test_a_vlan_in_other_use_is_shown_and_not_free(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    switch.ports["p9"] = {101}
    read_again(world)
    assert other_uses(world) == [(100, SWITCH, "offices", (), None), (101, SWITCH, None, ("p9",), None)]
    assert str(world.site("brno").free) == free_vlans(world) == "102-139"


def test_other_use_has_the_times_of_two_readings(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    read_again(world)
    first = world.clock.now
    read_again(world)
    (use,) = world.site("brno").other_use
    assert (use.since, use.read_at) == (first, world.clock.now)


def test_a_new_cluster_gets_a_vlan_without_other_use(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    read_again(world)
    assert world.put("demo", spec("brno-h1", "praha-h1")).view.vlans == {"brno": 101, "praha": 101}


def test_a_requested_vlan_in_other_use_is_refused(world: World, switch: FakeSwitch) -> None:
    switch.table |= {105: "offices"}
    read_again(world)
    with pytest.raises(
        NoVlanFree,
        match=r"VLAN 105 is not free at site brno: the VLAN is in other use on brno-sw1.*'offices'.*; choose a free",
    ):
        world.put("demo", spec("brno-h1", vlan=105))


def test_a_pool_wholly_in_other_use_is_reported(world: World, switch: FakeSwitch) -> None:
    switch.table |= dict.fromkeys(range(100, 140), "offices")
    read_again(world)
    with pytest.raises(NoVlanFree, match="brno has 40 VLAN IDs, 0 in use, 40 in other use on its devices"):
        world.put("demo", spec("brno-h1"))


def test_a_vlan_is_free_again_when_its_other_use_ends(world: World, switch: FakeSwitch) -> None:
    switch.ports["p9"] = {100}
    read_again(world)
    switch.ports["p9"] = set()
    read_again(world)
    assert (other_uses(world), free_vlans(world)) == ([], "100-139")


def test_a_vlan_stays_excluded_while_another_switch_uses_it(world: World, switch: FakeSwitch) -> None:
    world.put_topology(with_second_switch(0))
    switch.ports["p9"] = world.switches["brno-sw2"].ports["q9"] = {100}
    read_again(world)
    switch.ports["p9"] = set()
    read_again(world)
    assert (other_uses(world), free_vlans(world)) == ([(100, "brno-sw2", None, ("q9",), None)], "101-139")


def test_other_use_on_a_removed_switch_ends(world: World, switch: FakeSwitch) -> None:
    world.put_topology(with_second_switch(0))
    world.switches["brno-sw2"].ports["q9"] = {100}
    read_again(world)
    world.put_topology(three_sites())
    assert (other_uses(world), free_vlans(world)) == ([], "100-139")


def test_other_use_moves_to_another_site_with_its_switch(world: World, switch: FakeSwitch) -> None:
    world.put_topology(with_second_switch(0))
    world.switches["brno-sw2"].ports["q9"] = {100}
    read_again(world)
    world.put_topology(with_second_switch(1))
    world.settle()
    shown = [(use.vlan, use.element) for use in world.site("praha").other_use]
    assert (shown, other_uses(world), free_vlans(world)) == ([(100, "brno-sw2")], [], "100-139")
    assert 100 not in world.site("praha").free


def test_a_removal_during_a_reading_excludes_no_vlan(world: World, switch: FakeSwitch) -> None:
    """SBF finds a VLAN of the pool in other use on a switch that leaves the topology while SBF reads the switch.

    The VLAN stays free, because the switch no longer belongs to the site. After the removal, SBF only restores the
    ports of the switch.
    """
    world.put_topology(with_second_switch(0))
    world.switches["brno-sw2"].ports["q9"] = {100}
    with world.store.change() as unit:
        port = add_port_row(unit, "brno-sw2", PortName("q1"))
        port.taken, port.use_before = True, PortUse().model_dump_json()

    def answer(call: str) -> None:
        world.put_topology(three_sites())

    world.switches["brno-sw2"].answer = answer
    world.converge("brno-sw2")
    assert (other_uses(world), free_vlans(world)) == ([], "100-139")


def test_a_larger_pool_excludes_recorded_other_use(world: World, switch: FakeSwitch) -> None:
    switch.table |= {135: "offices"}
    read_again(world)
    world.put_pool("brno", "100-129")
    world.put_pool("brno", "100-139")
    assert free_vlans(world) == "100-134,136-139"


def test_a_cluster_with_a_foreign_vlan_fails_immediately(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    view = world.view("demo")
    assert view.state is ClusterState.FAILED
    assert view.reason == (
        "switch brno-sw1 at brno refused: VLAN 100 is in other use: it is named 'offices'; the VLAN was left "
        "unchanged and "
        "is excluded from the site's pool; create the cluster again to get another VLAN ID"
    )
    assert (switch.table, switch.applied, free_vlans(world)) == ({1: "default", 100: "offices"}, [], "101-139")


def test_a_refused_cluster_does_not_affect_other_clusters(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    world.put("refused", spec("brno-h1"))
    world.put("other", spec("brno-h2"))
    world.settle()
    assert (world.view("refused").state, world.view("other").state) == (ClusterState.FAILED, ClusterState.ACTIVE)
    assert switch.table == {1: "default", 100: "offices", 101: "vc-101"}


def test_an_active_cluster_survives_other_use_of_its_vlan(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.applied.clear()
    switch.ports["p9"] = {100}
    read_again(world)
    assert (world.view("demo").state, switch.applied) == (ClusterState.ACTIVE, [])
    assert other_uses(world) == [(100, SWITCH, None, ("p9",), "demo")]


def test_other_use_of_an_active_clusters_vlan_is_reported(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    read_again(world)
    read_again(world)
    expected = (
        "VLAN 100 is in other use: it is on unmanaged port p9; "
        "the cluster shares the VLAN with the other use until one of the two gets another VLAN ID"
    )
    assert [row.why for row in world.audit("element_trouble")] == [expected]
    assert world.element(SWITCH).trouble == expected


def test_the_error_report_ends_with_the_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    read_again(world)
    switch.ports["p9"] = set()
    read_again(world)
    assert world.element(SWITCH).trouble is None


def test_ending_a_cluster_deletes_no_vlan_in_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    read_again(world)
    world.delete("demo")
    world.settle()
    assert (world.view("demo").state, switch.carried()) == (ClusterState.RELEASED, {"p9": "100"})
    assert (switch.table, free_vlans(world)) == ({1: "default", 100: "vc-100"}, "101-139")


def test_a_vlan_of_sbf_is_deleted_after_the_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    world.delete("demo")
    read_again(world)
    switch.ports["p9"] = set()
    read_again(world)
    assert (switch.table, free_vlans(world), created_vlans(world)) == ({1: "default"}, "100-139", "")


def test_a_lost_vlan_in_other_use_is_not_restored(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports = {"p9": {100}}
    switch.applied.clear()
    read_again(world)
    assert (world.view("demo").state, switch.applied) == (ClusterState.DEGRADED, [])
    assert (
        "VLAN 100 is in other use: it is on unmanaged port p9; the VLAN was left unchanged"
        in world.element(SWITCH).trouble
    )


def test_a_port_without_its_vlan_is_restored_after_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports = {"p9": {100}}
    read_again(world)
    switch.ports["p9"] = set()
    read_again(world)
    assert (world.view("demo").state, switch.carried()) == (ClusterState.ACTIVE, {"p1": "100"})


def test_a_blocked_cluster_does_not_affect_other_clusters(world: World, switch: FakeSwitch) -> None:
    world.put("blocked", spec("brno-h1"))
    world.settle()
    switch.ports = {"p9": {100}}
    read_again(world)
    world.put("new", spec("brno-h2"))
    world.settle()
    assert (world.view("blocked").state, world.view("new").state) == (ClusterState.DEGRADED, ClusterState.ACTIVE)


def test_a_creation_is_recorded_before_the_switch_receives_it(world: World, switch: FakeSwitch) -> None:
    records: list[str] = []
    switch.before_apply = lambda: records.append(created_vlans(world))
    world.put("demo", spec("brno-h1"))
    world.settle()
    assert (records, created_vlans(world)) == (["100"], "100")


@pytest.mark.parametrize("name", ["vc-100", "VLAN0100", ""])
def test_a_kill_between_record_and_answer_loses_no_vlan(world: World, switch: FakeSwitch, name: str) -> None:
    """The VLAN was created, with or without a name. The service was killed before it read the switch's answer."""

    class KilledError(BaseException):
        """Simulates a kill of the service."""

    def kill() -> None:
        switch.table |= {100: name}
        switch.before_apply = lambda: None
        raise KilledError

    switch.before_apply = kill
    world.put("demo", spec("brno-h1"))
    with pytest.raises(KilledError):
        world.converge(SWITCH)
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    world.delete("demo")
    world.settle()
    assert (switch.table, created_vlans(world)) == ({1: "default"}, "")


def test_without_a_record_the_name_proves_the_ownership(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    with world.store.change() as unit:
        unit.session.execute(delete(CreatedVlanRow))
    world.delete("demo")
    world.settle()
    assert switch.table == {1: "default"}


def test_a_recorded_vlan_that_was_renamed_is_foreign(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.table |= {100: "offices"}
    world.delete("demo")
    world.settle()
    assert (switch.table, other_uses(world)) == ({1: "default", 100: "offices"}, [(100, SWITCH, "offices", (), None)])


def test_ports_leave_a_renamed_vlan_when_its_cluster_ends(world: World, switch: FakeSwitch) -> None:
    """If the ports stayed, frames of a later cluster with this VLAN ID would enter the foreign VLAN."""
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    assert {port for port, vlans in switch.ports.items() if 100 in vlans} == {"p1", "uplink"}
    switch.table |= {100: "offices"}
    read_again(world)
    world.delete("demo")
    world.settle()
    assert [port for port, vlans in switch.ports.items() if 100 in vlans] == []
    assert switch.table == {1: "default", 100: "offices"}


def test_a_vlan_without_name_and_record_is_unchanged(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: ""}
    read_again(world)
    assert (switch.table, switch.applied, free_vlans(world)) == ({1: "default", 100: ""}, [], "101-139")


def test_only_sbfs_vlans_of_an_old_startup_are_deleted(world: World, switch: FakeSwitch) -> None:
    """The restarted switch has two VLANs: one with a name that SBF chose for an ended cluster, and a foreign VLAN."""
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.delete("demo")
    world.settle()
    switch.table, switch.ports = {1: "default", 100: "vc-100", 101: "offices"}, {"p1": {100}}
    read_again(world)
    assert (switch.table, switch.carried()) == ({1: "default", 101: "offices"}, {})


def test_another_device_of_the_same_name_has_no_record(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["address"] = "192.0.2.9"
    world.put_topology(Topology.model_validate(document))
    assert created_vlans(world) == ""


def test_the_site_view_shows_other_use_to_administrators(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    read_again(world)
    shown: dict[str, Any] = ask(world, "GET", "/v1/sites/brno").json()["other_use"][0]
    assert (shown["vlan"], shown["element"], shown["name"]) == (100, SWITCH, "offices")


def test_other_use_found_by_a_dry_run_is_excluded(world: World, switch: FakeSwitch) -> None:
    switch.table |= {150: "offices"}
    preview = ask(world, "POST", "/v1/sites/brno/pool/dry-run", {"vlans": "150-199"}).json()
    assert [(use["vlans"], use["found"], use["asks"]) for use in preview["other_use"]] == [
        ("150", "VLAN 150: it is named 'offices'", False)
    ]
    world.put_pool("brno", "150-199")
    assert world.put("demo", spec("brno-h1")).view.vlans == {"brno": 151}


def test_users_do_not_see_vlans_in_other_use(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    read_again(world)
    shown = ask(world, "GET", "/v1/sites/brno", token=world.token(Role.USER, "eva")).json()
    assert (shown["free"], shown["other_use"]) == ("101-139", [])
