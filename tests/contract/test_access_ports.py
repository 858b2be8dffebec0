"""An access port carries one cluster at a time, until its last element has confirmed that it is gone."""

import pytest
from sbf_fakes.world import World, spec, three_sites

from sbf_service.http.devices import check_devices
from virtcloud.model.cluster import State
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.topology import Topology

MESSAGE = "cluster second needs access port brno-sw1:p2, which carries one cluster at a time and has first: "


@pytest.fixture
def access(world: World) -> World:
    """The three sites, with brno-h2 on an access link."""
    world.put_topology(described(brno_h2=True))
    return world


def described(*, brno_h2: bool) -> Topology:
    document = three_sites().model_dump(mode="json")
    document["links"][1]["access"] = brno_h2
    return Topology.model_validate(document)


def test_a_second_cluster_on_an_access_port_is_a_conflict_and_claims_nothing(access: World) -> None:
    access.put("first", spec("brno-h2"))
    with pytest.raises(Conflict, match=MESSAGE):
        access.put("second", spec("brno-h1", "brno-h2"))
    assert str(access.site("brno").claimed) == "100"


def test_it_is_taken_until_the_last_element_has_confirmed_that_the_first_is_gone(access: World) -> None:
    """A host that is not done could send the first one's frames into the second one's VLAN: they bear no tag."""
    access.put("first", spec("brno-h2"))
    access.settle()
    access.dead_hosts.add("brno-h2")
    access.delete("first")
    access.settle()
    with pytest.raises(Conflict, match=MESSAGE):
        access.put("second", spec("brno-h2"))
    access.dead_hosts.clear()
    access.settle()
    access.put("second", spec("brno-h2"))
    access.settle()
    assert access.view("second").state is State.ACTIVE


def test_a_trunk_that_two_clusters_share_cannot_become_an_access_link(world: World) -> None:
    world.put("first", spec("brno-h2"))
    world.put("second", spec("brno-h1", "brno-h2"))
    with pytest.raises(Conflict, match=MESSAGE):
        world.put_topology(described(brno_h2=True))
    assert world.topology() == described(brno_h2=False)


def test_a_trunk_with_one_cluster_becomes_an_access_link_under_it(world: World) -> None:
    world.put("first", spec("brno-h2"))
    world.settle()
    world.put_topology(described(brno_h2=True))
    assert world.wanted_of_host("brno-h2").segments[0].untagged
    world.settle()
    assert world.view("first").state is State.ACTIVE


def test_an_access_link_that_a_cluster_has_stays_one_until_that_has_ended(access: World) -> None:
    access.put("first", spec("brno-h2"))
    access.settle()
    access.delete("first")
    with pytest.raises(Conflict, match="cluster first has access port brno-sw1:p2, which would be none any more"):
        access.put_topology(described(brno_h2=False))
    access.settle()
    access.put_topology(described(brno_h2=False))


def test_an_access_link_to_a_switch_that_can_have_none_is_refused(world: World) -> None:
    """The fake platform of these tests says of itself that it cannot."""
    with pytest.raises(BadInput, match="access link brno-h2:eth0 to brno-sw1:p2: SBF can have none on a fake yet"):
        check_devices(described(brno_h2=True), world.service.platforms, ())


def test_a_member_may_have_its_networks_access_port_and_no_other_networks(access: World) -> None:
    access.put("first", spec("brno-h2", name="ring"))
    access.put("member", spec(hosts=["brno-h2"], joins="ring"))
    access.put("own", spec("brno-h1", name="loop"))
    with pytest.raises(Conflict, match=MESSAGE.replace("second", "stranger")):
        access.put("stranger", spec(hosts=["brno-h2"], joins="loop"))
    access.settle()
    access.delete("member")
    access.settle()
    assert [str(access.view(key).state) for key in ("first", "member", "own")] == ["active", "released", "active"]
    assert access.switches["brno-sw1"].carried() == {"p1": "101", "p2": "100"}
