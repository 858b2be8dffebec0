"""Tests of VLANs that SBF does not own (DESIGN §3, Ownership). SBF neither changes nor allocates them."""

from typing import Any

import pytest
from sbf_fakes.http_calls import ask
from sbf_fakes.switches import FakeSwitch
from sbf_fakes.world import World, spec, three_sites
from sqlalchemy import delete

from sbf_service.store.tables import CreatedVlanRow, FreeVlanRow
from sbf_service.store.vlan_ownership import read_created_vlans
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import NoVlanFree
from virtcloud.model.topology import Topology
from virtcloud.model.vlans import VlanSet

SWITCH = "brno-sw1"


@pytest.fixture
def switch(world: World) -> FakeSwitch:
    """Return Brno's switch, which has a table of VLANs and was read once."""
    found = world.switches[SWITCH]
    found.table = {1: "default"}
    world.settle()
    found.calls.clear()
    return found


def created(world: World) -> str:
    with world.store.read() as unit:
        return str(read_created_vlans(unit, SWITCH))


def free(world: World) -> str:
    """Return the VLAN IDs of Brno that have a row in the table of free VLAN IDs."""
    with world.store.read() as unit:
        return str(VlanSet(row.vlan for row in unit.session.query(FreeVlanRow).where(FreeVlanRow.site == "brno")))


def look_again(world: World) -> None:
    world.clock.advance(world.service.settings.timing.drift_interval)
    world.settle()


def uses(world: World) -> list[tuple[int, str, str | None, tuple[str, ...], str | None]]:
    return [(one.vlan, one.element, one.name, one.ports, one.cluster) for one in world.site("brno").other_use]


def test_setting_a_pool_deletes_no_foreign_vlan(world: World, switch: FakeSwitch) -> None:
    switch.table |= {150: "offices"}
    switch.ports["p9"] = {150, 151}
    world.put_pool("brno", "100-199")
    world.settle()
    assert (switch.table, switch.ports["p9"], switch.applied) == ({1: "default", 150: "offices"}, {150, 151}, [])


def test_a_vlan_in_other_use_is_excluded_and_shown(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    switch.ports["p9"] = {101}
    look_again(world)
    assert uses(world) == [(100, SWITCH, "offices", (), None), (101, SWITCH, None, ("p9",), None)]
    assert str(world.site("brno").free) == free(world) == "102-139"


def test_an_other_use_shows_since_when_and_when_read(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    look_again(world)
    first = world.clock.now
    look_again(world)
    (found,) = world.site("brno").other_use
    assert (found.since, found.read_at) == (first, world.clock.now)


def test_new_clusters_get_other_vlans(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    look_again(world)
    assert world.put("demo", spec("brno-h1", "praha-h1")).view.vlans == {"brno": 101, "praha": 101}


def test_a_requested_vlan_in_other_use_is_refused(world: World, switch: FakeSwitch) -> None:
    switch.table |= {105: "offices"}
    look_again(world)
    with pytest.raises(
        NoVlanFree, match=r"VLAN 105 is not free at site brno: it is in other use on brno-sw1.*'offices'"
    ):
        world.put("demo", spec("brno-h1", vlan=105))


def test_a_pool_wholly_in_other_use_is_reported(world: World, switch: FakeSwitch) -> None:
    switch.table |= dict.fromkeys(range(100, 140), "offices")
    look_again(world)
    with pytest.raises(NoVlanFree, match="brno has 40 VLAN IDs, 0 in use, 40 in other use on its devices"):
        world.put("demo", spec("brno-h1"))


def test_a_vlan_comes_back_when_its_other_use_ends(world: World, switch: FakeSwitch) -> None:
    switch.ports["p9"] = {100}
    look_again(world)
    switch.ports["p9"] = set()
    look_again(world)
    assert (uses(world), free(world)) == ([], "100-139")


def test_a_vlan_stays_excluded_while_another_switch_uses_it(world: World, switch: FakeSwitch) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["q1"]})
    world.put_topology(Topology.model_validate(document))
    switch.ports["p9"] = world.switches["brno-sw2"].ports["q9"] = {100}
    look_again(world)
    switch.ports["p9"] = set()
    look_again(world)
    assert (uses(world), free(world)) == ([(100, "brno-sw2", None, ("q9",), None)], "101-139")


def test_a_switch_that_leaves_gives_its_vlans_back(world: World, switch: FakeSwitch) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"].append({"name": "brno-sw2", "platform": "fake", "ports": ["q1"]})
    world.put_topology(Topology.model_validate(document))
    world.switches["brno-sw2"].ports["q9"] = {100}
    look_again(world)
    world.put_topology(three_sites())
    assert (uses(world), free(world)) == ([], "100-139")


def test_a_larger_pool_leaves_out_what_is_known(world: World, switch: FakeSwitch) -> None:
    switch.table |= {135: "offices"}
    look_again(world)
    world.put_pool("brno", "100-129")
    world.put_pool("brno", "100-139")
    assert free(world) == "100-134,136-139"


def test_a_cluster_that_meets_a_foreign_vlan_fails_at_once(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    view = world.view("demo")
    assert view.state is ClusterState.FAILED
    assert view.reason == (
        "switch brno-sw1 at brno refused: VLAN 100 is in other use: it is named 'offices'; it was left as it is and is "
        "excluded from the site's pool; create the cluster again to get another VLAN"
    )
    assert (switch.table, switch.applied, free(world)) == ({1: "default", 100: "offices"}, [], "101-139")


def test_other_clusters_are_set_up_beside_a_refused_one(world: World, switch: FakeSwitch) -> None:
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
    look_again(world)
    assert (world.view("demo").state, switch.applied) == (ClusterState.ACTIVE, [])
    assert uses(world) == [(100, SWITCH, None, ("p9",), "demo")]


def test_other_use_of_an_active_clusters_vlan_is_trouble(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    look_again(world)
    look_again(world)
    expected = (
        "VLAN 100 is in other use: it is on unmanaged port p9; "
        "its cluster is joined to that use until one of them is moved"
    )
    assert [row.why for row in world.audit("element_trouble")] == [expected]
    assert world.element(SWITCH).trouble == expected


def test_trouble_ends_with_the_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    look_again(world)
    switch.ports["p9"] = set()
    look_again(world)
    assert world.element(SWITCH).trouble is None


def test_ending_a_cluster_deletes_no_vlan_in_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    look_again(world)
    world.delete("demo")
    world.settle()
    assert (world.view("demo").state, switch.carried()) == (ClusterState.RELEASED, {"p9": "100"})
    assert (switch.table, free(world)) == ({1: "default", 100: "vc-100"}, "101-139")


def test_what_sbf_created_is_deleted_after_the_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports["p9"] = {100}
    world.delete("demo")
    look_again(world)
    switch.ports["p9"] = set()
    look_again(world)
    assert (switch.table, free(world), created(world)) == ({1: "default"}, "100-139", "")


def test_a_lost_port_does_not_join_a_foreign_vlan(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports = {"p9": {100}}
    switch.applied.clear()
    look_again(world)
    assert (world.view("demo").state, switch.applied) == (ClusterState.DEGRADED, [])
    assert "VLAN 100 is in other use: it is on unmanaged port p9; it was left as it is" in world.element(SWITCH).trouble


def test_a_lost_port_is_put_back_after_the_other_use(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    switch.ports = {"p9": {100}}
    look_again(world)
    switch.ports["p9"] = set()
    look_again(world)
    assert (world.view("demo").state, switch.carried()) == (ClusterState.ACTIVE, {"p1": "100"})


def test_other_clusters_are_well_beside_a_blocked_one(world: World, switch: FakeSwitch) -> None:
    world.put("blocked", spec("brno-h1"))
    world.settle()
    switch.ports = {"p9": {100}}
    look_again(world)
    world.put("new", spec("brno-h2"))
    world.settle()
    assert (world.view("blocked").state, world.view("new").state) == (ClusterState.DEGRADED, ClusterState.ACTIVE)


def test_a_creation_is_recorded_before_the_switch_receives_it(world: World, switch: FakeSwitch) -> None:
    seen: list[str] = []
    switch.before_apply = lambda: seen.append(created(world))
    world.put("demo", spec("brno-h1"))
    world.settle()
    assert (seen, created(world)) == (["100"], "100")


@pytest.mark.parametrize("name", ["vc-100", "VLAN0100", ""])
def test_a_kill_between_record_and_answer_loses_no_vlan(world: World, switch: FakeSwitch, name: str) -> None:
    """The VLAN was created, with or without a name. The service was killed before it read the switch's answer."""

    class KilledError(BaseException):
        """Raised in place of a kill of the service."""

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
    assert (switch.table, created(world)) == ({1: "default"}, "")


def test_without_the_record_its_name_proves_a_vlan(world: World, switch: FakeSwitch) -> None:
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
    assert (switch.table, uses(world)) == ({1: "default", 100: "offices"}, [(100, SWITCH, "offices", (), None)])


def test_ports_leave_a_renamed_vlan_when_its_cluster_ends(world: World, switch: FakeSwitch) -> None:
    """SBF put these ports into the VLAN.

    If they stayed in the VLAN, the next cluster with its ID would join a foreign VLAN.
    """
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.settle()
    assert {port for port, vlans in switch.ports.items() if 100 in vlans} == {"p1", "uplink"}
    switch.table |= {100: "offices"}
    look_again(world)
    world.delete("demo")
    world.settle()
    assert [port for port, vlans in switch.ports.items() if 100 in vlans] == []
    assert switch.table == {1: "default", 100: "offices"}


def test_a_vlan_without_name_and_record_is_left(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: ""}
    look_again(world)
    assert (switch.table, switch.applied, free(world)) == ({1: "default", 100: ""}, [], "101-139")


def test_an_older_startup_brings_back_only_own_vlans(world: World, switch: FakeSwitch) -> None:
    """The restarted switch has a VLAN of an ended cluster, which SBF recognises by name, and a foreign VLAN."""
    world.put("demo", spec("brno-h1"))
    world.settle()
    world.delete("demo")
    world.settle()
    switch.table, switch.ports = {1: "default", 100: "vc-100", 101: "offices"}, {"p1": {100}}
    look_again(world)
    assert (switch.table, switch.carried()) == ({1: "default", 101: "offices"}, {})


def test_another_device_behind_the_name_has_no_record(world: World, switch: FakeSwitch) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["address"] = "192.0.2.9"
    world.put_topology(Topology.model_validate(document))
    assert created(world) == ""


def test_the_site_view_shows_other_use_to_administrators(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    look_again(world)
    shown: dict[str, Any] = ask(world, "GET", "/v1/sites/brno").json()["other_use"][0]
    assert (shown["vlan"], shown["element"], shown["name"]) == (100, SWITCH, "offices")


def test_a_dry_run_excludes_what_it_read_in_other_use(world: World, switch: FakeSwitch) -> None:
    switch.table |= {150: "offices"}
    found = ask(world, "POST", "/v1/sites/brno/pool/dry-run", {"vlans": "150-199"}).json()
    assert [(one["vlans"], one["found"], one["asks"]) for one in found["other_use"]] == [
        ("150", "VLAN 150: it is named 'offices'", False)
    ]
    world.put_pool("brno", "150-199")
    assert world.put("demo", spec("brno-h1")).view.vlans == {"brno": 151}


def test_users_do_not_see_vlans_of_others(world: World, switch: FakeSwitch) -> None:
    switch.table |= {100: "offices"}
    look_again(world)
    shown = ask(world, "GET", "/v1/sites/brno", token=world.token(Role.USER, "eva")).json()
    assert (shown["free"], shown["other_use"]) == ("101-139", [])
