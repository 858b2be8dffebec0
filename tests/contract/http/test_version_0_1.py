"""Tests that callers of version 0.1 receive only keys and problem types of version 0.1."""

from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.http_calls import body as request_for
from support.sbf_fakes.world import World, spec

from sbf_service.http.version_0_1 import rewrite_answer, rewrite_problem
from virtcloud.model.access import Role
from virtcloud.model.wanted import Segment

OLD = {"user-agent": "python-httpx/0.28.1"}
OMITTED = {"grants", "guest_macs", "router_addresses", "gateway_addresses", "router", "services", "nfs", "ssh"} | {
    "publications"
}
"""Keys that a segment omits if their values are empty."""
SEGMENT = {"id", "key", "vlan", "port", "untagged", "guests", "members"}


def get(world: World, path: str, **headers: str) -> Any:
    return ask(world, "GET", path, headers=headers or None).json()


def test_an_old_agent_gets_no_owner_of_a_cluster(world: World) -> None:
    world.put("mine", spec("brno-h1"))
    (segment,) = get(world, "/v1/elements/brno-h1/wanted", **OLD)["wanted"]["segments"]
    assert segment.keys() == SEGMENT


@pytest.mark.parametrize("client", ["virtcloud/0.2.0", "curl/8.5", ""])
def test_other_callers_get_every_key(world: World, client: str) -> None:
    world.put("mine", spec("brno-h1"))
    (segment,) = get(world, "/v1/elements/brno-h1/wanted", **{"user-agent": client})["wanted"]["segments"]
    assert segment.keys() == set(Segment.model_fields) - OMITTED


def test_an_old_client_reads_a_topology_with_rules(world: World) -> None:
    topology = get(world, "/v1/topology")
    topology["sites"][0]["admits"] = {"batch": False}
    topology["sites"][0]["hosts"][0]["images"] = ["busybox"]
    topology["sites"][0]["gateways"] = [{"name": "gw", "ports": ["eth0"], "vpn": {"address": "vpn.example.org"}}]
    topology["sites"][0]["switches"][0]["ports"].append("gw")
    topology["links"].append({"a": "gw:eth0", "b": f"{topology['sites'][0]['switches'][0]['name']}:gw"})
    assert ask(world, "PUT", "/v1/topology", topology, headers={"if-match": "*"}).status_code == 200
    site = get(world, "/v1/topology", **OLD)["sites"][0]
    assert site.keys() == {"name", "attachments", "switches", "edges", "hosts", "gateways"}
    assert site["gateways"][0].keys() == {"name", "ports", "aggregates"}
    assert site["hosts"][0].keys() == {"name", "ports", "aggregates", "hypervisors"}


def test_an_old_client_cannot_delete_hidden_rules(world: World) -> None:
    topology = get(world, "/v1/topology")
    topology["sites"][0]["admits"] = {"batch": False}
    ask(world, "PUT", "/v1/topology", topology, headers={"if-match": "*"})
    old_view = get(world, "/v1/topology", **OLD)
    assert ask(world, "PUT", "/v1/topology", old_view, headers=OLD).status_code == 428
    assert get(world, "/v1/topology")["sites"][0]["admits"]["batch"] is False


def test_a_rewritten_answer_has_its_own_length(world: World) -> None:
    answer = ask(world, "GET", "/v1/elements", headers=OLD)
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_an_answer_without_a_body_is_unchanged(world: World) -> None:
    answer = ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 1}, headers=OLD)
    assert (answer.status_code, answer.content) == (204, b"")


def test_an_answer_that_is_not_json_is_unchanged(world: World) -> None:
    assert "# HELP" in ask(world, "GET", "/metrics", headers=OLD).text


def test_a_problem_before_routing_has_a_known_type(world: World) -> None:
    answer = ask(world, "PUT", "/v1/clusters/a", {"spec": "x" * 5_000_000}, headers=OLD)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:virtcloud:problem:bad-input")


def test_an_unknown_key_of_a_request_is_refused(world: World) -> None:
    request = request_for("brno-h1") | {"color": "red"}
    for headers in (None, OLD):
        answer = ask(world, "PUT", "/v1/clusters/a", request, headers=headers)
        assert (answer.status_code, answer.json()["detail"]) == (422, "color: unknown key; check its spelling")


def test_an_old_agent_receives_requirements_that_it_refuses() -> None:
    wanted = {"wanted": {"segments": [{"id": "1", "requires": ["strict-filters"], "filters": "strict"}]}}
    assert rewrite_answer("get_wanted", wanted) == {
        "wanted": {"segments": [{"id": "1", "requires": ["strict-filters"]}]}
    }


def test_an_empty_list_of_requirements_is_removed() -> None:
    assert rewrite_answer("get_wanted", {"wanted": {"segments": [{"requires": []}]}}) == {"wanted": {"segments": [{}]}}


def test_an_answers_kind_has_the_most_keys_in_common() -> None:
    preview = {"key": "a", "created": True, "elements": [{"lines": [], "later": 1}], "later": 2}
    assert rewrite_answer("put_cluster", preview) == {"key": "a", "created": True, "elements": [{"lines": []}]}


def test_among_equal_kinds_the_fewest_missing_keys_decide() -> None:
    entry = {"difference": {"add": [{"key": "a", "later": 1}], "remove": []}}
    assert rewrite_answer("get_audit", entry) == {"difference": {"add": [{"key": "a"}], "remove": []}}


def test_answers_to_operations_unknown_to_0_1_are_unchanged() -> None:
    assert rewrite_answer("list_ports", [{"name": "p1"}]) == [{"name": "p1"}]


@pytest.mark.parametrize(
    ("slug", "known"),
    [
        ("beyond-limit", "bad-input"),
        ("not-admitted", "forbidden"),
        ("service-busy", "service-unreachable"),
        ("precondition-required", "error"),
        ("job-unproven", "error"),
        ("no-vlan-free", "no-vlan-free"),
        ("no-such-route", "no-such-route"),
    ],
)
def test_a_problem_becomes_its_nearest_base(slug: str, known: str) -> None:
    problem = {"type": f"urn:virtcloud:problem:{slug}", "detail": "words"}
    assert rewrite_problem(problem) == {"type": f"urn:virtcloud:problem:{known}", "detail": "words"}


def test_an_old_user_gets_the_base_of_a_problem(world: World) -> None:
    topology = get(world, "/v1/topology")
    topology["sites"][0]["admits"] = {"users": []}
    ask(world, "PUT", "/v1/topology", topology, headers={"if-match": "*"})
    token = world.token(Role.USER, "alice")
    answer = ask(world, "PUT", "/v1/clusters/a", request_for("brno-h1"), token=token, headers=OLD)
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:virtcloud:problem:forbidden")
