from typing import Any

from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec, three_sites


def test_the_topology_is_put_and_read_back(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    answer = ask(world, "PUT", "/v1/topology", document)
    assert (answer.status_code, answer.json()) == (200, document)
    assert ask(world, "GET", "/v1/topology").json() == document


def test_an_impossible_topology_is_refused_with_the_reason(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    document["links"].append(document["links"][0])
    status, kind, detail = problem(ask(world, "PUT", "/v1/topology", document))
    assert (status, kind) == (422, "bad-input")
    assert detail == "port brno-h1:eth0: expected at most one link on a port, got two"


def test_a_credential_that_the_service_lacks_is_refused(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][0]["switches"][0]["credential"] = "lab"
    assert problem(ask(world, "PUT", "/v1/topology", document)) == (
        422,
        "bad-input",
        "switch brno-sw1: expected a credential of the service's settings (none), got lab",
    )


def test_without_a_topology_the_error_names_the_remedy(tmp_path: Any) -> None:
    from support.sbf_fakes.world import make_world  # noqa: PLC0415

    empty = make_world(tmp_path)
    assert problem(ask(empty, "GET", "/v1/topology")) == (
        404,
        "not-found",
        "there is no topology yet: load one with 'virtcloud topology set FILE' (PUT /v1/topology)",
    )
    empty.close()


def test_pools_are_put_and_sites_show_their_state(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    assert ask(world, "PUT", "/v1/sites/brno/pool", {"vlans": "100-109,200"}).json() == {"vlans": "100-109,200"}
    assert ask(world, "GET", "/v1/sites/brno/pool").json() == {"vlans": "100-109,200"}
    assert ask(world, "GET", "/v1/sites/brno").json() == {
        "name": "brno",
        "hosts": ["brno-h1", "brno-h2"],
        "pool": "100-109,200",
        "claimed": "100",
        "quarantined": "",
        "free": "101-109,200",
        "quarantine": [],
        "other_use": [],
    }
    assert [site["name"] for site in ask(world, "GET", "/v1/sites").json()] == ["brno", "praha", "plzen"]


def test_control_characters_in_an_adopted_use_are_replaced(world: World) -> None:
    """PostgreSQL cannot store the character NUL, so SBF replaces it in the audit log."""
    body = {"ports": {"p1": {"mode": "trunk\0"}}}
    assert ask(world, "POST", "/v1/elements/brno-sw1/ports/adopt", body).status_code == 204
    assert ask(world, "GET", "/v1/audit").json()[-1]["why"] == "port p1: a trunk\ufffd port"


def test_a_pool_beyond_vlan_4094_is_refused(world: World) -> None:
    status, _, detail = problem(ask(world, "PUT", "/v1/sites/brno/pool", {"vlans": "4000-5000"}))
    assert (status, detail) == (422, "vlans: expected a VLAN ID from 1 to 4094, got 5000")
