"""Tests of ``GET /v1/sites/{name}/preparation``: sheets of commands for a site's switch and the backbone."""

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World

PATH = "/v1/sites/brno/preparation"


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def test_the_sheets_are_made_from_the_topology_in_force(world: World) -> None:
    answer = ask(world, "GET", f"{PATH}?platform=openvswitch&port=p7")
    assert answer.status_code == 200
    uplink, backbone = answer.json()["sheets"]
    assert (uplink["side"], uplink["device"], backbone["side"]) == ("site", "brno-sw1:uplink", "backbone")
    tunnel = "ovs-vsctl set port p7 vlan_mode=dot1q-tunnel tag=2000 other_config:qinq-ethtype=802.1ad"
    assert tunnel in backbone["lines"]
    assert list(backbone["to_fill"]) == ["<core_port>"]


def test_an_impossible_preparation_is_a_problem_with_its_reason(world: World) -> None:
    status, kind, detail = problem(ask(world, "GET", f"{PATH}?platform=hp_procurve"))
    assert (status, kind) == (409, "conflict")
    assert "erases its configuration" in detail
    assert problem(ask(world, "GET", f"{PATH}?platform=nosuch"))[:2] == (422, "bad-input")
    assert problem(ask(world, "GET", f"{PATH}?transport=nosuch"))[:2] == (404, "not-found")
    assert problem(ask(world, "GET", "/v1/sites/ostrava/preparation"))[:2] == (404, "not-found")


def test_preparation_reads_no_switch(world: World) -> None:
    ask(world, "GET", PATH)
    assert [switch.calls for switch in world.switches.found.values()] == []
