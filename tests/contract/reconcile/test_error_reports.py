"""Tests of error reports of elements, with a separate text for each failed cluster.

A cluster's owner sees only the text of this cluster. Administrators see the whole report.
"""

import logging

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Refused
from virtcloud.model.views import ClusterView, ElementErrorReport

WHOLE_REPORT = (
    "cluster of-alice: could not start guest g1: no room; cluster of-bob: could not start guest g2: no image debian"
)
ALICE_ERROR, BOB_ERROR = "could not start guest g1: no room", "could not start guest g2: no image debian"
OTHER_CLUSTER_ERROR = "the element's error concerns another cluster"


@pytest.fixture
def world(world: World) -> World:
    for owner in ("alice", "bob", "dora"):
        world.put(f"of-{owner}", spec("brno-h1", owner=owner))
    report(world, {world.view("of-alice").id: ALICE_ERROR, world.view("of-bob").id: BOB_ERROR})
    return world


def report(world: World, clusters: dict[str, str], message: str = WHOLE_REPORT) -> None:
    document = {"revision": 2, "message": message, "clusters": clusters}
    answer = ask(world, "POST", "/v1/elements/brno-h1/trouble", document, token=world.token(Role.AGENT, "brno-h1"))
    assert answer.status_code == 204, answer.text


def trouble_of(view: ClusterView) -> str | None:
    (placement,) = [placement for placement in view.placements if placement.element == "brno-h1"]
    return placement.trouble


def test_owners_see_the_errors_of_their_own_clusters(world: World) -> None:
    for owner, words in (("alice", ALICE_ERROR), ("bob", BOB_ERROR), ("dora", OTHER_CLUSTER_ERROR)):
        answer = ask(world, "GET", f"/v1/clusters/of-{owner}", token=world.token(Role.USER, owner))
        assert trouble_of(ClusterView.model_validate(answer.json())) == words


def test_administrators_see_the_whole_report(world: World) -> None:
    ivo = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert ask(world, "GET", "/v1/elements/brno-h1", token=ivo).json()["trouble"] == WHOLE_REPORT
    assert world.audit("element_trouble")[-1].why == WHOLE_REPORT


def test_a_new_cluster_does_not_see_errors_of_others(world: World) -> None:
    assert trouble_of(world.put("new", spec("brno-h1")).view) == OTHER_CLUSTER_ERROR


def test_the_reason_of_a_failure_names_no_other_cluster(world: World) -> None:
    world.clock.advance(121)
    world.sweep()
    reasons = [world.view(f"of-{owner}").reason or "" for owner in ("alice", "bob", "dora")]
    assert [
        words in reason for words, reason in zip((ALICE_ERROR, BOB_ERROR, OTHER_CLUSTER_ERROR), reasons, strict=True)
    ] == [True] * 3
    assert [key for key in ("of-bob", "of-dora") if key in reasons[0]] == []


def test_a_member_sees_errors_of_its_network(world: World) -> None:
    world.put("root", spec("brno-h2", owner="alice", shares_with=["bob"]))
    world.put("member", spec(owner="bob", hosts=["brno-h1"], joins="root"))
    report(world, {world.view("root").id: "could not build VLAN 103 on eth0"}, "cluster root: could not build VLAN 103")
    assert trouble_of(world.view("member")) == "could not build VLAN 103 on eth0"


def test_a_new_member_sees_errors_of_its_network(world: World) -> None:
    world.put("root", spec("brno-h1", owner="alice"))
    report(world, {world.view("root").id: "could not build VLAN 103 on eth0"}, "cluster root: could not build VLAN 103")
    created = world.put("member", spec(owner="alice", hosts=["brno-h1"], joins="root")).view
    assert trouble_of(created) == "could not build VLAN 103 on eth0"
    assert created == world.view("member")


def test_errors_of_the_whole_element_are_shown_to_all(world: World) -> None:
    report(world, {}, "libvirt does not answer")
    assert [trouble_of(world.view(f"of-{owner}")) for owner in ("alice", "dora")] == ["libvirt does not answer"] * 2


def test_a_new_error_of_one_cluster_changes_its_view(world: World) -> None:
    before = world.view("of-dora").version
    report(world, {world.view("of-dora").id: "it is next"})
    assert trouble_of(world.view("of-dora")) == "it is next"
    assert world.view("of-dora").version > before
    assert world.view("of-dora").state is ClusterState.CONFIGURING


def test_unprintable_output_of_a_device_is_stored(world: World) -> None:
    def refuse(call: str) -> None:
        raise Refused("switch brno-sw1: the device answered '% \x00 Bad\udcff \x1b[31mport\nline 2'")

    world.switches["brno-sw1"].answer = refuse
    world.converge("brno-sw1")
    expected = "switch brno-sw1: the device answered '% \ufffd Bad\ufffd \ufffd[31mport\nline 2'"
    assert (world.element("brno-sw1").trouble, world.audit("element_trouble")[-1].why) == (expected, expected)


def test_an_unprintable_fault_of_a_driver_is_stored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, "sbf_service")  # pytest-xdist cannot send a log with a lone surrogate

    def fail(call: str) -> None:
        raise ValueError("no number: '\x00\udcff'")

    world.switches["brno-sw1"].answer = fail
    world.converge("brno-sw1")
    assert world.element("brno-sw1").trouble == "fault in the service: ValueError: no number: '\ufffd\ufffd'"


def test_an_unprintable_report_of_an_agent_is_stored(world: World) -> None:
    cluster_id = world.view("of-alice").id
    report(world, {cluster_id: "guest \x00 failed"}, message="cluster of-alice: guest \x00 failed")
    assert world.element("brno-h1").trouble == "cluster of-alice: guest \ufffd failed"
    assert trouble_of(world.view("of-alice")) == "guest \ufffd failed"


def test_an_unprintable_refusal_of_an_agent_is_stored(world: World) -> None:
    cluster_id = world.view("of-alice").id
    document = {"revision": 2, "message": "no", "clusters": {cluster_id: "no"}, "refused": {cluster_id: "image \x00"}}
    answer = ask(world, "POST", "/v1/elements/brno-h1/trouble", document, token=world.token(Role.AGENT, "brno-h1"))
    assert (answer.status_code, world.view("of-alice").reason) == (204, "host brno-h1 at brno refused: image \ufffd")


def test_an_agent_can_report_text_with_lone_surrogates() -> None:
    """Python's string of a file name that is not valid UTF-8 contains lone surrogates."""
    error = ElementErrorReport(revision=1, message="image b\udcffd", clusters={"a": "b\udcffd"}, refused={"a": "\x00"})
    assert (error.message, error.clusters, error.refused) == ("image b\ufffdd", {"a": "b\ufffdd"}, {"a": "\ufffd"})


def refuse_vlan_of_alice(world: World) -> None:

    def refuse() -> None:
        message = "switch brno-sw1: sent 'vlan 100', the device answered 'no'"
        raise Refused(message, {world.view("of-alice").vlans["brno"]: message})

    world.switches["brno-sw1"].before_apply = refuse
    world.converge("brno-sw1")


def switch_trouble(view: ClusterView) -> str | None:
    (placement,) = [placement for placement in view.placements if placement.element == "brno-sw1"]
    return placement.trouble


def test_a_refused_vlan_is_shown_only_to_its_owner(world: World) -> None:
    refuse_vlan_of_alice(world)
    assert switch_trouble(world.view("of-alice")) == "switch brno-sw1: sent 'vlan 100', the device answered 'no'"
    assert switch_trouble(world.view("of-bob")) == OTHER_CLUSTER_ERROR


def test_a_refused_vlan_without_cluster_is_shown_to_no_owner(world: World) -> None:
    def refuse() -> None:
        message = "switch brno-sw1: sent 'no vlan 139', the device answered 'no'"
        raise Refused(message, {139: message})

    world.switches["brno-sw1"].before_apply = refuse
    world.converge("brno-sw1")
    assert [switch_trouble(world.view(f"of-{owner}")) for owner in ("alice", "bob")] == [OTHER_CLUSTER_ERROR] * 2


def test_a_switch_that_does_not_save_concerns_every_owner(world: World) -> None:
    world.switches["brno-sw1"].save_fails = "Device or resource busy"
    world.converge("brno-sw1")
    message = "switch brno-sw1: sent 'save', the device answered 'Device or resource busy'"
    assert [switch_trouble(world.view(f"of-{owner}")) for owner in ("alice", "bob")] == [message, message]
