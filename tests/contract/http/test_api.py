"""Tests of the main calls of the HTTP API: clusters, elements, topology, pools and errors."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from sbf_fakes.http_calls import ask, body, client, problem
from sbf_fakes.openapi_document import openapi_document
from sbf_fakes.world import World, spec, three_sites
from sqlalchemy.exc import OperationalError, ProgrammingError

Calls = Callable[[httpx.AsyncClient], Awaitable[None]]


def run_with_client(world: World, calls: Calls) -> None:
    """Run a coroutine with a client of the application. No worker runs."""

    async def run() -> None:
        async with client(world.service) as http:
            await calls(http)

    asyncio.run(run())


def test_a_cluster_is_created_once(world: World) -> None:
    first = ask(world, "PUT", "/v1/clusters/demo", body("brno-h1", "praha-h1"))
    again = ask(world, "PUT", "/v1/clusters/demo", body("brno-h1", "praha-h1"))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json()["vlans"] == {"brno": 100, "praha": 100}
    assert [placement["element"] for placement in first.json()["placements"]] == [
        "brno-h1",
        "brno-sw1",
        "praha-h1",
        "praha-sw1",
    ]


def test_another_spec_with_the_same_key_is_a_conflict(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/demo", body("brno-h2")))
    assert (status, kind) == (409, "other-spec")
    assert detail.startswith("cluster demo exists and is configuring, and differs in guests: ")


def test_no_free_vlan_is_a_special_conflict(world: World) -> None:
    world.put_pool("praha", "")
    assert problem(ask(world, "PUT", "/v1/clusters/demo", body("brno-h1", "praha-h1"))) == (
        409,
        "no-vlan-free",
        (
            "no VLAN is free at brno, praha: brno has 40 VLAN IDs, 0 in use; praha has no VLAN IDs; "
            "add VLAN IDs to the pool of praha"
        ),
    )


def test_an_ended_attempt_is_gone(world: World) -> None:
    world.put("job", spec("brno-h1"), attempt=2)
    assert problem(ask(world, "PUT", "/v1/clusters/job", body("brno-h1", attempt=1))) == (
        410,
        "gone",
        "cluster job: attempt 1 has ended: the latest is attempt 2",
    )


def test_a_later_attempt_ends_and_replaces_the_former(world: World) -> None:
    world.put("job", spec("brno-h1"), attempt=1)
    world.settle()
    assert problem(ask(world, "PUT", "/v1/clusters/job", body("brno-h1", attempt=2))) == (
        409,
        "attempt-waits",
        (
            "cluster job: attempt 1 is active and is being ended: try again later; "
            "host brno-h1 at brno has not confirmed (its agent last called SBF at 2026-01-01 00:00:00 UTC); "
            "switch brno-sw1 at brno has not confirmed"
        ),
    )
    assert world.view("job").state == "draining"
    world.settle()
    former = world.view("job")
    answer = ask(world, "PUT", "/v1/clusters/job", body("brno-h1", attempt=2))
    assert (answer.status_code, answer.json()["attempt"], answer.json()["state"]) == (201, 2, "configuring")
    assert (former.attempt, answer.json()["version"]) == (1, former.version + 1)
    assert world.view("job").version == former.version + 1


def test_an_unknown_host_is_not_found(world: World) -> None:
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/demo", body("ostrava-h1")))
    assert (status, kind) == (404, "no-such-host")
    assert detail.startswith("host ostrava-h1 is not known; known hosts: brno-h1, ")


def test_all_faults_of_a_request_are_named(world: World) -> None:
    request = {"spec": {"owner": "-alice", "guests": [{"name": "g", "host": "brno-h1"}], "lease": 3}}
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/demo", request))
    assert (status, kind) == (422, "bad-input")
    lines = detail.splitlines()
    assert lines[0].startswith("spec.owner: expected a user name: letters, digits")
    assert lines[1:] == [
        "spec.guests.0.image: expected a value, got none",
        "spec.lease: unknown key; check its spelling",
    ]


def test_a_malformed_key_is_bad_input(world: World) -> None:
    status, kind, detail = problem(ask(world, "GET", "/v1/clusters/Demo"))
    assert (status, kind) == (422, "bad-input")
    assert "expected a cluster key" in detail


def test_a_body_that_is_not_json_is_bad_input(world: World) -> None:
    answers: list[httpx.Response] = []

    async def send(client: httpx.AsyncClient) -> None:
        header = {"content-type": "application/json"}
        answers.append(await client.put("/v1/clusters/demo", content='{"spec": ', headers=header))

    run_with_client(world, send)
    status, kind, detail = problem(answers[0])
    assert (status, kind) == (422, "bad-input")
    assert detail.startswith("body: not JSON: ")


def test_a_binary_body_is_bad_input(world: World) -> None:
    answers: list[httpx.Response] = []

    async def send(client: httpx.AsyncClient) -> None:
        header = {"content-type": "application/json"}
        answers.append(await client.put("/v1/clusters/demo", content=b"\xff\xfe{", headers=header))

    run_with_client(world, send)
    assert problem(answers[0]) == (422, "bad-input", "body: not JSON: expected UTF-8, got something else")


def test_a_deeply_nested_body_is_bad_input(world: World) -> None:
    answers: list[httpx.Response] = []

    async def send(client: httpx.AsyncClient) -> None:
        header = {"content-type": "application/json"}
        answers.append(await client.put("/v1/clusters/demo", content="[" * 100_000, headers=header))

    run_with_client(world, send)
    expected = "body: expected a document with fewer nested levels, got too many levels"
    assert problem(answers[0]) == (422, "bad-input", expected)


def test_deletion_answers_202_then_200_and_404(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    assert ask(world, "DELETE", "/v1/clusters/demo").status_code == 202
    assert ask(world, "DELETE", "/v1/clusters/demo").status_code == 202
    world.settle()
    ended = ask(world, "DELETE", "/v1/clusters/demo")
    assert (ended.status_code, ended.json()["state"]) == (200, "released")
    assert problem(ask(world, "DELETE", "/v1/clusters/other")) == (404, "not-found", "cluster other is not known")


def test_lists_filter_by_owner_and_ended(world: World) -> None:
    world.put("a", spec("brno-h1", owner="alice"))
    world.put("b", spec("brno-h1", owner="bob"))
    world.put("c", spec("brno-h2", owner="alice"))
    world.settle()
    world.delete("c")
    world.settle()

    def keys(query: str) -> list[str]:
        return [cluster["key"] for cluster in ask(world, "GET", f"/v1/clusters{query}").json()]

    assert keys("") == ["a", "b"]
    assert keys("?owner=alice") == ["a"]
    assert keys("?owner=alice&ended=true") == ["a", "c"]


def test_ended_clusters_are_listed_in_pages(world: World) -> None:
    for number in range(1, 6):
        world.put(f"c{number}", spec("brno-h1"))
        world.clock.advance(number % 2)  # some of these clusters were created at the same time
    world.delete("c1")
    world.settle()

    def page(query: str) -> tuple[list[str], str]:
        clusters = ask(world, "GET", f"/v1/clusters?ended=true{query}").json()
        return [cluster["key"] for cluster in clusters], clusters[0]["id"] if clusters else ""

    newest, last = page("&limit=3")
    older, first = page(f"&limit=3&before={last}")
    assert (newest, older) == (["c3", "c4", "c5"], ["c1", "c2"])
    assert page(f"&before={first}") == ([], "")
    assert page("")[0] == ["c1", "c2", "c3", "c4", "c5"]
    assert ask(world, "GET", "/v1/clusters?limit=1").json()[0]["key"] == "c2", (
        "all clusters that have not ended are listed"
    )


def test_a_page_before_an_unknown_cluster_is_not_found(world: World) -> None:
    answer = ask(world, "GET", "/v1/clusters?ended=true&before=x")
    assert problem(answer) == (404, "not-found", "before: no cluster has the id x")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "before=A", "before="])
def test_a_malformed_page_is_bad_input(world: World, query: str) -> None:
    assert ask(world, "GET", f"/v1/clusters?ended=true&{query}").status_code == 422


def test_a_long_poll_answers_when_a_newer_version_exists(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    before = world.view("demo").version

    async def wait_and_act(client: httpx.AsyncClient) -> None:
        poll = asyncio.create_task(client.get(f"/v1/clusters/demo?after={before}&wait=30"))
        await asyncio.sleep(0.2)
        assert not poll.done()
        began = time.monotonic()
        await asyncio.to_thread(world.converge, "brno-sw1")
        answer = await poll
        assert time.monotonic() - began < 0.9
        assert answer.json()["version"] > before

    run_with_client(world, wait_and_act)


def test_a_long_poll_finds_what_another_replica_changed(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    before = world.view("demo").version
    other = world.restarted()

    async def wait_and_act(client: httpx.AsyncClient) -> None:
        poll = asyncio.create_task(client.get(f"/v1/clusters/demo?after={before}&wait=30"))
        await asyncio.to_thread(other.scheduler.worker.reconcile, "brno-sw1")
        await asyncio.to_thread(world.service.change_reader.poll_once)
        answer = await asyncio.wait_for(poll, 5)
        assert answer.json()["version"] > before

    run_with_client(world, wait_and_act)
    other.store.close()


def test_a_long_poll_ends_with_the_current_version(world: World) -> None:
    view = world.put("demo", spec("brno-h1")).view
    answer = ask(world, "GET", f"/v1/clusters/demo?after={view.version}&wait=0.1")
    assert answer.json()["version"] == view.version


def test_two_hundred_long_polls_occupy_no_thread(world: World) -> None:
    """All long polls wait simultaneously.

    While the long polls wait, SBF answers another call. Then every long poll receives the change.
    """
    before = world.put("demo", spec("brno-h1")).view.version

    async def wait_and_act(client: httpx.AsyncClient) -> None:
        polls = [asyncio.create_task(client.get(f"/v1/clusters/demo?after={before}&wait=60")) for _ in range(200)]
        answer = await asyncio.wait_for(client.get("/healthz"), 5)
        assert answer.json() == {"status": "ok"}
        await asyncio.to_thread(world.converge, "brno-sw1")
        answers = await asyncio.wait_for(asyncio.gather(*polls), 10)
        assert all(polled.json()["version"] > before for polled in answers)

    run_with_client(world, wait_and_act)


def test_a_wait_of_over_a_minute_is_refused(world: World) -> None:
    status, _, detail = problem(ask(world, "GET", "/v1/clusters/demo?after=1&wait=61"))
    assert (status, detail) == (422, "query.wait: expected less than or equal to 60, got '61'")


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
        began = time.monotonic()
        await asyncio.to_thread(world.put, "demo", spec("brno-h1"))
        assert (await poll).json()["revision"] == 2
        assert time.monotonic() - began < 0.9

    run_with_client(world, wait_and_act)


def test_an_agent_cannot_confirm_a_later_revision(world: World) -> None:
    assert problem(ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 9})) == (
        409,
        "conflict",
        "host brno-h1 confirmed revision 9, but the newest is 1",
    )


def test_an_agents_late_confirmation_changes_nothing(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    world.settle()
    assert ask(world, "POST", "/v1/elements/brno-h1/confirmed", {"revision": 1}).status_code == 204
    assert world.view("demo").state == "active"


def test_an_agents_error_is_shown_until_it_confirms(world: World) -> None:
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
    assert detail == "switch brno-sw1 has no agent, because SBF configures it: only agents of hosts and gateways call"


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


def test_the_topology_is_unknown_before_the_first(tmp_path: Any) -> None:  # noqa: ANN401
    from sbf_fakes.world import make_world  # noqa: PLC0415

    empty = make_world(tmp_path)
    assert problem(ask(empty, "GET", "/v1/topology")) == (
        404,
        "not-found",
        "there is no topology yet: put one with PUT /v1/topology",
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


def test_a_pool_beyond_vlan_4094_is_refused(world: World) -> None:
    status, _, detail = problem(ask(world, "PUT", "/v1/sites/brno/pool", {"vlans": "4000-5000"}))
    assert (status, detail) == (422, "vlans: expected a VLAN ID from 1 to 4094, got 5000")


def test_unknown_routes_and_methods_are_problems(world: World) -> None:
    assert problem(ask(world, "GET", "/v2/clusters")) == (
        404,
        "no-such-route",
        "GET /v2/clusters: not found; see /docs",
    )
    answer = ask(world, "PATCH", "/v1/topology")
    assert problem(answer) == (405, "no-such-method", "PATCH /v1/topology: method not allowed; see /docs")
    assert set(answer.headers["allow"].split(", ")) <= {"GET", "PUT"}


def test_an_unreachable_database_is_status_503(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_session: object) -> None:
        raise OperationalError("SELECT secret", {"password": "hunter2"}, Exception("disk I/O error"))

    monkeypatch.setattr(type(world.clock), "__call__", lambda _clock, session: away(session))
    answer = ask(world, "GET", "/v1/elements/brno-h1/wanted")
    assert problem(answer)[:2] == (503, "database-unavailable")
    assert "hunter2" not in answer.text


def test_a_faulty_statement_is_an_internal_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise ProgrammingError("SELECT secret", {"password": "hunter2"}, Exception("no such column"))

    monkeypatch.setattr(type(world.clock), "__call__", fail)
    answer = ask(world, "GET", "/v1/elements/brno-h1/wanted", headers={"X-Request-ID": "one"})
    assert problem(answer) == (
        500,
        "error",
        "internal error in SBF: see SBF's log, request ID one; it is safe to repeat the call",
    )


def test_a_fault_in_the_service_reveals_no_internals(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.clock), "__call__", lambda _clock, _session: 1 // 0)
    assert problem(ask(world, "GET", "/v1/elements/brno-h1/wanted", headers={"X-Request-ID": "one"})) == (
        500,
        "error",
        "internal error in SBF: see SBF's log, request ID one; it is safe to repeat the call",
    )


def test_the_openapi_document_names_every_call_and_its_problems(world: World) -> None:
    document = openapi_document()
    calls = {
        call["operationId"]: sorted(status for status in call["responses"] if status >= "4")
        for path in document["paths"].values()
        for call in path.values()
    }
    assert calls == {
        "put_cluster": ["401", "403", "404", "409", "410", "422", "429"],
        "get_cluster": ["401", "403", "404", "422", "429"],
        "list_clusters": ["401", "403", "404", "422", "429"],
        "get_peers": ["401", "403", "404", "409", "422", "429"],
        "create_ssh_certificate": ["401", "403", "404", "409", "422", "429"],
        "list_ssh_certificates": ["401", "403", "404", "409", "422", "429"],
        "revoke_ssh_certificate": ["401", "403", "404", "409", "422", "429"],
        "list_ssh_connections": ["401", "403", "404", "409", "422", "429"],
        "report_ssh_connections": ["401", "403", "404", "409", "422", "429"],
        "list_publications": ["401", "403", "404", "409", "422", "429"],
        "publish_guest": ["401", "403", "404", "409", "422", "429"],
        "unpublish_guest": ["401", "403", "404", "409", "422", "429"],
        "get_ssh_access": ["401", "403", "404", "409", "422", "429"],
        "list_destination_uses": ["401", "403", "404", "409", "422", "429"],
        "list_traffic": ["401", "403", "404", "409", "422", "429"],
        "report_traffic": ["401", "403", "404", "409", "422", "429"],
        "report_destination_uses": ["401", "403", "404", "409", "422", "429"],
        "list_guests": ["401", "403", "404", "409", "422", "429"],
        "get_guest": ["401", "403", "404", "409", "422", "429"],
        "put_guest_power": ["401", "403", "404", "409", "422", "429"],
        "delete_cluster": ["401", "403", "404", "410", "422", "429"],
        "extend_lease": ["401", "403", "404", "409", "410", "422", "429"],
        "share_network": ["401", "403", "404", "409", "410", "422", "429"],
        "unshare_network": ["401", "403", "404", "409", "410", "422", "429"],
        "put_topology": ["401", "403", "409", "412", "422", "428", "429"],
        "get_topology": ["401", "403", "404", "429"],
        "preview_topology": ["401", "403", "409", "422", "429", "503"],
        "list_sites": ["401", "403", "404", "422", "429"],
        "get_site": ["401", "403", "404", "422", "429"],
        "put_pool": ["401", "403", "404", "409", "422", "429"],
        "get_pool": ["401", "403", "404", "422", "429"],
        "preview_pool": ["401", "403", "404", "409", "422", "429", "503"],
        "say_clean": ["401", "403", "404", "409", "422", "429"],
        "verify_site": ["401", "403", "404", "422", "429", "503"],
        "get_preparation": ["401", "403", "404", "409", "422", "429"],
        "list_elements": ["401", "403", "422", "429"],
        "get_element": ["401", "403", "404", "422", "429"],
        "get_wanted": ["401", "403", "404", "409", "422", "429"],
        "confirm_element": ["401", "403", "404", "409", "422", "429"],
        "report_trouble": ["401", "403", "404", "409", "422", "429"],
        "report_drift": ["401", "403", "404", "409", "422", "429"],
        "report_capacity": ["401", "403", "404", "409", "422", "429"],
        "list_waiting_sessions": ["401", "403", "404", "422", "429"],
        "create_vpn_profile": ["401", "403", "404", "409", "422", "429"],
        "list_vpn_profiles": ["401", "403", "404", "409", "422", "429"],
        "get_vpn_profile": ["401", "403", "404", "409", "422", "429"],
        "revoke_vpn_profile": ["401", "403", "404", "409", "422", "429"],
        "list_vpn_connections": ["401", "403", "404", "409", "422", "429"],
        "list_vpn_invitations": ["401", "403", "404", "409", "422", "429"],
        "invite_vpn_user": ["401", "403", "404", "409", "422", "429"],
        "withdraw_vpn_invitation": ["401", "403", "404", "409", "422", "429"],
        "report_vpn_connections": ["401", "403", "404", "409", "422", "429"],
        "renew_vpn_authority": ["401", "403", "429"],
        "verify_cluster": ["401", "403", "404", "409", "410", "422", "429"],
        "upload_clone": ["401", "403", "404", "409", "413", "422", "429", "507"],
        "list_images": ["401", "403", "422", "429"],
        "get_image": ["401", "403", "404", "422", "429"],
        "add_image": ["401", "403", "404", "409", "422", "429"],
        "remove_image": ["401", "403", "404", "409", "422", "429"],
        "upload_image": ["401", "403", "404", "409", "413", "422", "429", "507"],
        "get_image_content": ["401", "403", "404", "422", "429"],
        "verify_image": ["401", "403", "404", "422", "429"],
        "share_image": ["401", "403", "404", "422", "429"],
        "certify_image": ["401", "403", "404", "422", "429"],
        "revoke_certification": ["401", "403", "404", "422", "429"],
        "get_difference": ["401", "403", "404", "409", "422", "429", "502", "503", "504"],
        "reconcile_element": ["401", "403", "404", "409", "422", "429", "503"],
        "list_ports": ["401", "403", "404", "409", "422", "429", "502", "503", "504"],
        "declare_element_clean": ["401", "403", "404", "409", "422", "429"],
        "adopt_ports": ["401", "403", "404", "409", "422", "429", "503"],
        "release_ports": ["401", "403", "404", "409", "422", "429", "503"],
        "get_audit": ["401", "403", "422", "429"],
        "get_site_topology": ["401", "403", "404", "422", "429"],
        "put_site_topology": ["401", "403", "404", "409", "412", "422", "428", "429"],
        "preview_site_topology": ["401", "403", "404", "409", "422", "429", "503"],
        "list_asked_jobs": ["401", "403", "422", "429"],
        "answer_for_job": ["401", "403", "422", "429"],
        "who_am_i": ["401", "403", "429"],
        "create_token": ["401", "403", "422", "429"],
        "list_tokens": ["401", "403", "422", "429"],
        "list_keys": ["401", "403", "422", "429"],
        "add_key": ["401", "403", "422", "429"],
        "remove_key": ["401", "403", "404", "422", "429"],
        "revoke_token": ["401", "403", "404", "422", "429"],
        "list_quotas": ["401", "403", "422", "429"],
        "get_quota": ["401", "403", "422", "429"],
        "put_quota": ["401", "403", "422", "429"],
        "get_health": [],
        "get_readiness": ["503"],
        "get_metrics": ["401", "403", "429"],
    }
    problems = {
        media
        for path in document["paths"].values()
        for call in path.values()
        for status, answer in call["responses"].items()
        if status >= "4"
        for media in answer["content"]
    }
    assert problems == {"application/problem+json"}
    assert all(call["summary"] for path in document["paths"].values() for call in path.values())
