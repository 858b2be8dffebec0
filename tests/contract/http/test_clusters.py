import asyncio

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, body, problem, run_with_client
from support.sbf_fakes.world import World, spec, three_sites

from virtcloud.model.topology import Topology
from virtcloud.model.values import Name


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


def test_vlan_ids_are_sorted_by_site_in_every_answer(world: World) -> None:
    """In the topology, the site praha comes before the site plzen."""
    request = body("praha-h1", "plzen-h1")
    dry = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", request)
    answers = [dry, *(ask(world, "PUT", "/v1/clusters/demo", request) for _ in range(2))]
    assert [list(answer.json()["vlans"]) for answer in answers] == [["plzen", "praha"]] * 3


def test_a_member_at_a_further_site_shows_sorted_vlan_ids(world: World) -> None:
    world.put("root", spec("praha-h1", name="lab"))
    member = {"spec": spec(joins="lab", hosts=["plzen-h1"]).model_dump(mode="json")}
    answers = [ask(world, "PUT", "/v1/clusters/member", member) for _ in range(2)]
    assert [list(answer.json()["vlans"]) for answer in answers] == [["plzen", "praha"]] * 2


def test_another_spec_with_the_same_key_is_a_conflict(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    status, kind, detail = problem(ask(world, "PUT", "/v1/clusters/demo", body("brno-h2")))
    assert (status, kind) == (409, "other-spec")
    assert detail.startswith("cluster demo exists and is configuring, and differs from this request in guests: ")


def test_a_missing_free_vlan_has_its_own_problem_type(world: World) -> None:
    world.put_pool("praha", "")
    assert problem(ask(world, "PUT", "/v1/clusters/demo", body("brno-h1", "praha-h1"))) == (
        409,
        "no-vlan-free",
        (
            "no VLAN is free at every site (brno, praha): brno has 40 VLAN IDs, 0 in use; praha has no VLAN IDs; "
            "add VLAN IDs to the pool of praha"
        ),
    )


def test_a_network_at_a_site_without_switches_is_a_conflict(world: World) -> None:
    document = three_sites().model_dump(mode="json")
    world.put_topology(Topology.model_validate(document | {"sites": [*document["sites"], {"name": "wien"}]}))
    world.put_pool("wien", "100")
    assert problem(ask(world, "PUT", "/v1/clusters/demo", {"spec": {"owner": "alice", "sites": ["wien"]}})) == (
        409,
        "conflict",
        "site wien has no switch to carry a network: add a switch, or name another site",
    )


def test_an_ended_attempt_is_gone(world: World) -> None:
    world.put("job", spec("brno-h1"), attempt=2)
    assert problem(ask(world, "PUT", "/v1/clusters/job", body("brno-h1", attempt=1))) == (
        410,
        "gone",
        "cluster job: attempt 1 has ended: the latest is attempt 2",
    )


def test_the_largest_attempt_number_has_a_successor(world: World) -> None:
    """SBF refuses attempt numbers above 1,000,000,000 in calls.

    SBF itself can still increment the number: the next numbers fit into the columns, which have 32 bits.
    """
    assert problem(ask(world, "PUT", "/v1/clusters/job", body("brno-h1", attempt=1_000_000_001)))[:2] == (
        422,
        "bad-input",
    )
    world.put("job", spec("brno-h1"), attempt=1_000_000_000)
    world.delete("job")
    world.settle()
    assert world.put("job", spec("brno-h1")).view.attempt == 1_000_000_001


def test_a_later_attempt_ends_the_former_and_then_replaces_it(world: World) -> None:
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


def test_deletion_answers_202_then_200_and_404(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    assert ask(world, "DELETE", "/v1/clusters/demo").status_code == 202
    assert ask(world, "DELETE", "/v1/clusters/demo").status_code == 202
    world.settle()
    ended = ask(world, "DELETE", "/v1/clusters/demo")
    assert (ended.status_code, ended.json()["state"]) == (200, "released")
    assert problem(ask(world, "DELETE", "/v1/clusters/other"))[:2] == (404, "not-found")


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
        "expected all clusters that have not ended, regardless of the limit"
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
        await asyncio.to_thread(world.converge, "brno-sw1")
        answer = await asyncio.wait_for(poll, 10)
        assert answer.json()["version"] > before

    run_with_client(world, wait_and_act)


def test_a_long_poll_finds_what_another_replica_changed(world: World) -> None:
    world.put("demo", spec("brno-h1"))
    before = world.view("demo").version
    other = world.restarted()

    async def wait_and_act(client: httpx.AsyncClient) -> None:
        poll = asyncio.create_task(client.get(f"/v1/clusters/demo?after={before}&wait=30"))
        await asyncio.to_thread(other.scheduler.worker.reconcile, Name("brno-sw1"))
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
    before = world.put("demo", spec("brno-h1")).view.version

    async def wait_and_act(client: httpx.AsyncClient) -> None:
        polls = [asyncio.create_task(client.get(f"/v1/clusters/demo?after={before}&wait=60")) for _ in range(200)]
        answer = await asyncio.wait_for(client.get("/healthz"), 30)
        assert answer.json() == {"status": "ok"}
        await asyncio.to_thread(world.converge, "brno-sw1")
        answers = await asyncio.wait_for(asyncio.gather(*polls), 30)
        assert all(polled.json()["version"] > before for polled in answers)

    run_with_client(world, wait_and_act)


def test_a_wait_of_over_a_minute_is_refused(world: World) -> None:
    status, _, detail = problem(ask(world, "GET", "/v1/clusters/demo?after=1&wait=61"))
    assert (status, detail) == (422, "query.wait: expected less than or equal to 60, got '61'")
