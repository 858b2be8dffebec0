import asyncio

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem, run_with_client
from support.sbf_fakes.world import World, spec


def test_an_agent_fetches_and_confirms(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    wanted = ask(world, "GET", "/v1/elements/brno-h1/wanted").json()
    assert (wanted["revision"], wanted["confirmed_revision"]) == (2, 0)
    assert [(segment["key"], segment["vlan"], segment["port"]) for segment in wanted["wanted"]["segments"]] == [
        ("demo", 100, "eth0")
    ]
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2}).status_code == 204
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted?after=2&wait=0.1").json()["confirmed_revision"] == 2


def test_an_agent_gets_a_new_revision_immediately(world: World) -> None:
    async def wait_and_act(client: httpx.AsyncClient) -> None:
        poll = asyncio.create_task(client.get("/v1/elements/brno-h1/wanted?after=1&wait=30"))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(world.put, "demo", spec("brno-h1"))
        assert (await asyncio.wait_for(poll, 10)).json()["revision"] == 2

    run_with_client(world, wait_and_act)


def test_an_agent_cannot_confirm_a_later_revision(world: World) -> None:
    assert problem(ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 9})) == (
        409,
        "conflict",
        "host brno-h1 confirmed revision 9, but the newest is 1",
    )


@pytest.mark.parametrize("key", ["incomplete", "remaining"])
def test_a_report_about_an_unprintable_cluster_is_recorded(world: World, key: str) -> None:
    """PostgreSQL refuses the character NUL, even in a comparison."""
    report = {"revision": 1, key: {"a\0b": "no such cluster"}}
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", report).status_code == 204
    assert ask(world, "GET", "/v1/elements/brno-h1").json()["trouble"] == "cluster a\ufffdb: no such cluster"


@pytest.mark.parametrize("query", ["request_id=a%00b", "who=a%00b"])
def test_an_unprintable_filter_of_the_audit_log_is_refused(world: World, query: str) -> None:
    assert problem(ask(world, "GET", f"/v1/audit?{query}"))[:2] == (422, "bad-input")


def test_a_revision_beyond_the_databases_integers_is_refused(world: World) -> None:
    status, slug, detail = problem(ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 1 << 31}))
    assert (status, slug, detail) == (422, "bad-input", "revision: expected less than 2147483648, got 2147483648")


def test_an_agents_late_confirmation_changes_nothing(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 1}).status_code == 204
    assert world.view("demo").state == "active"


def test_an_agents_error_is_shown_until_the_agent_confirms(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    report = {"revision": 2, "message": "image debian: not found"}
    assert ask(world, "POST", "/v1/elements/brno-h1/trouble", report).status_code == 204
    assert ask(world, "GET", "/v1/elements/brno-h1").json()["trouble"] == "image debian: not found"
    assert ask(world, "GET", "/v1/clusters/demo").json()["placements"][0]["trouble"] == "image debian: not found"
    ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2})
    assert ask(world, "GET", "/v1/elements/brno-h1").json()["trouble"] is None


def test_drift_degrades_clusters_until_the_agent_confirms(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    assert ask(world, "POST", "/v1/elements/brno-h1/drifted", {"revision": 2}).status_code == 204
    assert world.view("demo").state == "degraded"
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted").json()["confirmed_revision"] == 0
    ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 2})
    assert world.view("demo").state == "active"


@pytest.mark.parametrize("call", ["confirmed", "trouble", "drifted"])
def test_a_switch_has_no_agent(world: World, call: str) -> None:
    report = {"revision": 1} | ({"message": "no"} if call == "trouble" else {})
    status, kind, detail = problem(ask(world, "POST", f"/v1/elements/brno-sw1/{call}", report))
    assert (status, kind) == (409, "conflict")
    assert detail == (
        "switch brno-sw1 has no agent, because SBF itself configures the switch: only agents of hosts and gateways "
        "make this call"
    )


def test_elements_show_revisions_and_observed_state(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    element = ask(world, "GET", "/v1/elements/brno-sw1").json()
    assert (element["kind"], element["site"], element["wanted_revision"], element["confirmed_revision"]) == (
        "switch",
        "brno",
        3,
        3,
    )
    assert element["carried"] == {"p1": "100", "p2": "", "uplink": ""}
    assert len(ask(world, "GET", "/v1/elements").json()) == 9
