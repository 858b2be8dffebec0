"""Tests of an attacker who is root on a host and has the tokens of the agent and the job starter."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world, spec, three_sites

from virtcloud.model.access import Role
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Alice has a cluster on brno-h1, where the attacker is root. Bob has a cluster on brno-h2."""
    installation = make_world(tmp_path)
    installation.furnish()
    installation.put("hers", spec("brno-h1"))
    installation.put("his", spec("brno-h2", owner="bob"))
    installation.settle()
    yield installation
    installation.close()


def agent(world: World) -> str:
    return world.token(Role.AGENT, "brno-h1")


def test_a_hosts_port_carries_only_vlans_of_clusters_there(world: World) -> None:
    vlans = {key: str(world.view(key).vlans[Name("brno")]) for key in ("hers", "his")}
    carried = ask(world, "GET", "/v1/elements/brno-sw1").json()["carried"]
    assert (carried["p1"], carried["p2"]) == (vlans["hers"], vlans["his"])
    assert vlans["hers"] != vlans["his"]


def test_an_agent_reads_only_clusters_on_its_host(world: World) -> None:
    document = ask(world, "GET", "/v1/elements/brno-h1/wanted?origins=true", token=agent(world))
    assert [segment["key"] for segment in document.json()["wanted"]["segments"]] == ["hers"]
    # A random key may contain "bob" within a longer word.
    assert not re.search(r"\bbob\b", document.text), "the document names bob, whose cluster is on another host"


def test_an_agents_refusal_ends_only_clusters_on_its_host(world: World) -> None:
    near = world.put("near", spec("brno-h1", owner="bob")).view
    far = world.put("far", spec("brno-h2", owner="bob")).view
    document = {"revision": 1, "message": "x", "refused": {near.id: "no", far.id: "no"}}
    assert ask(world, "POST", "/v1/elements/brno-h1/trouble", document, token=agent(world)).status_code == 204
    assert (world.view("near").state, world.view("far").state) == ("failing", "configuring")


def test_an_agents_report_reaches_only_owners_on_its_host(world: World) -> None:
    ids = {key: world.put(key, spec(host)).view.id for key, host in (("near", "brno-h1"), ("far", "brno-h2"))}
    document = {"revision": 1, "message": "x", "clusters": dict.fromkeys(ids.values(), "pay here")}
    ask(world, "POST", "/v1/elements/brno-h1/trouble", document, token=agent(world))
    counts = {key: ask(world, "GET", f"/v1/clusters/{key}").text.count("pay here") for key in ids}
    assert counts == {"near": 1, "far": 0}


def test_a_false_confirmation_frees_no_vlan_of_a_switch(world: World) -> None:
    """SBF does not allocate the VLAN ID again until the switch has also confirmed the removal."""
    vlan = world.view("hers").vlans[Name("brno")]
    world.delete("hers")
    revision = ask(world, "GET", "/v1/elements/brno-h1/wanted", token=agent(world)).json()["revision"]
    answer = ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": revision}, token=agent(world))
    assert (answer.status_code, vlan in world.site("brno").free) == (204, False)
    world.converge_switches()
    world.sweep()
    assert vlan in world.site("brno").free
    assert ask(world, "GET", "/v1/elements/brno-sw1").json()["carried"].get("p1", "") == ""


def test_an_agent_confirms_no_revision_that_was_never_wanted(world: World) -> None:
    answer = ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 99}, token=agent(world))
    assert problem(answer)[:2] == (409, "conflict")


def test_an_agent_token_with_a_switchs_name_has_no_effect(world: World) -> None:
    """An operator may create such a token by mistake. Switches have no agents."""
    token = world.token(Role.AGENT, "brno-sw1")
    assert problem(ask(world, "GET", "/v1/elements/brno-sw1/wanted", token=token))[:2] == (409, "conflict")
    revision = ask(world, "GET", "/v1/elements/brno-sw1").json()["wanted_revision"]
    before = ask(world, "GET", "/v1/elements/brno-sw1").json()
    for call, document in (("confirmed", {}), ("drifted", {}), ("trouble", {"message": "x"})):
        answer = ask(world, "POST", f"/v1/elements/brno-sw1/{call}", {"revision": revision} | document, token=token)
        assert problem(answer)[:2] == (409, "conflict"), call
    assert ask(world, "GET", "/v1/elements/brno-sw1").json() == before


def test_a_jobs_host_chooses_who_may_join_the_network(world: World) -> None:
    """A known limit: the batch server confirms a job's owner, hosts and network, but nothing else in the request."""
    token = world.token(Role.JOB_STARTER, "brno-h1")
    wanted = {"spec": spec("brno-h1", shares_with=["mallory"]).model_dump(mode="json")}
    ask(world, "PUT", "/v1/clusters/7.torque", wanted, token=token)
    ask(world, "PUT", "/v1/jobs/7.torque", {"runs": True, "owner": "alice", "hosts": ["brno-h1"]})
    created = ask(world, "PUT", "/v1/clusters/7.torque", wanted, token=token)
    assert (created.status_code, created.json()["spec"]["shares_with"]) == (201, ["mallory"])


def test_a_changed_host_rule_ends_no_cluster(world: World) -> None:
    """A known limit: admission rules of hosts are checked only when a cluster is created."""
    document = world.topology().model_dump(mode="json")
    document["sites"][0]["hosts"][0] |= {"admits": {"users": []}}
    world.put_topology(Topology.model_validate(document))
    world.settle()
    assert world.view("hers").state == "active"


def test_without_rules_every_user_may_use_every_host(world: World) -> None:
    """A known limit: by default, the topology contains no admission rules."""
    assert three_sites().sites[0].admits is None
    token = world.token(Role.USER, "mallory")
    wanted = {"spec": spec("brno-h1", owner="mallory").model_dump(mode="json")}
    assert ask(world, "PUT", "/v1/clusters/m", wanted, token=token).status_code == 201
