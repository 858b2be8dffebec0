"""Tests of keys that get another owner, and of the former owner's late calls, which must change nothing.

A key gets another owner when a batch system is reinstalled and assigns former job IDs again.
"""

import asyncio
from collections.abc import Callable

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, client, problem
from support.sbf_fakes.world import World, spec

from sbf_service.store.clusters.cluster_lists import ClusterFilter, list_newest
from sbf_service.store.store import Store
from sbf_service.store.transactions.group_commit import FindScope
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, Gone

JOB = "12.pbssrv"
OF_BOB, OF_ALICE = spec("brno-h1", owner="bob"), spec("brno-h1", "praha-h1")


@pytest.fixture
def world(world: World) -> World:
    """Bob's job 12 ended in its third attempt."""
    world.put(JOB, OF_BOB, attempt=3)
    end(world)
    return world


def end(world: World) -> None:
    world.delete(JOB)
    world.settle()
    assert world.view(JOB).state is ClusterState.RELEASED


def test_attempts_of_a_new_owner_start_from_zero(world: World) -> None:
    former = world.view(JOB)
    result = world.put(JOB, OF_ALICE, attempt=1)
    assert (result.created, result.view.attempt, result.view.spec.owner) == (True, 1, "alice")
    assert result.view.version > former.version, (
        "expected a higher version, so that a long poll for the key returns the new cluster"
    )
    assert world.view(JOB) == result.view
    assert world.put(JOB, OF_ALICE, attempt=1).created is False


def test_a_new_owner_may_use_lower_attempt_numbers(world: World) -> None:
    world.put(JOB, OF_ALICE, attempt=1)
    end(world)
    world.put(JOB, OF_ALICE, attempt=2)
    assert (world.view(JOB).spec.owner, world.view(JOB).attempt) == ("alice", 2)
    with pytest.raises(Gone, match="attempt 1 has ended: the latest is attempt 2"):
        world.put(JOB, OF_ALICE, attempt=1)


def test_a_late_delete_of_the_former_owner_changes_nothing(world: World) -> None:
    world.put(JOB, OF_ALICE, attempt=1)
    for attempt in (None, 1, 3, 4):
        with pytest.raises(Gone, match="the cluster of bob has ended, and the key now belongs to another owner"):
            world.delete(JOB, attempt, "bob")
    assert world.view(JOB).state is ClusterState.CONFIGURING
    assert world.delete(JOB, 1, "alice").state is ClusterState.DRAINING


def test_a_late_request_of_the_former_owner_changes_nothing(world: World) -> None:
    world.put(JOB, OF_ALICE, attempt=1)
    with pytest.raises(Conflict, match="belongs to another owner until its cluster has ended"):
        world.put(JOB, OF_BOB, attempt=3)
    end(world)
    with pytest.raises(Gone, match="attempt 3 has ended, and the key has belonged to another owner since then"):
        world.put(JOB, OF_BOB, attempt=3)
    assert world.put(JOB, OF_BOB, attempt=4).view.attempt == 4


def test_a_lower_attempt_of_the_same_owner_is_gone(world: World) -> None:
    with pytest.raises(Gone, match="attempt 1 has ended: the latest is attempt 3"):
        world.put(JOB, OF_BOB, attempt=1)


def test_clusters_of_two_owners_with_one_key_stay_separate(world: World) -> None:
    world.put(JOB, OF_ALICE, attempt=3)
    with world.store.read() as unit:
        clusters = [
            (view.spec.owner, view.attempt, view.state) for view in list_newest(unit, ClusterFilter(ended=True), 9)
        ]
    assert clusters == [("bob", 3, ClusterState.RELEASED), ("alice", 3, ClusterState.CONFIGURING)]


def test_users_read_only_their_own_clusters_audit_rows(world: World) -> None:
    world.put(JOB, OF_ALICE, attempt=1)

    def read(token: str | None = None) -> dict[str, set[str]]:
        answer = ask(world, "GET", f"/v1/audit?cluster={JOB}", token=token)
        assert answer.status_code == 200, answer.text
        ids = {one["cluster_id"] for one in answer.json()}
        return {one: {row["what"] for row in answer.json() if row["cluster_id"] == one} for one in ids}

    complete = read()
    assert sorted(map(len, complete.values())) == [1, 4]
    assert sorted(map(len, read(world.token(Role.USER, "alice")).values())) == [1]
    assert sorted(map(len, read(world.token(Role.USER, "bob")).values())) == [4]
    answer = ask(world, "GET", f"/v1/audit?cluster={JOB}", token=world.token(Role.USER, "dora"))
    assert problem(answer)[:2] == (404, "not-found")


def test_an_agents_late_request_to_end_a_run_is_gone(world: World) -> None:
    world.put(JOB, OF_ALICE, attempt=1)
    agent = world.token(Role.AGENT, "brno-h1")
    answer = ask(world, "DELETE", f"/v1/clusters/{JOB}?attempt=3&owner=bob", token=agent)
    assert problem(answer)[:2] == (410, "gone")
    assert ask(world, "DELETE", f"/v1/clusters/{JOB}?attempt=1&owner=alice", token=agent).status_code == 202


def test_a_long_poll_does_not_show_the_next_owners_cluster(world: World) -> None:
    token, before = world.token(Role.USER, "bob"), world.view(JOB).version

    async def wait() -> httpx.Response:
        async with client(world.service, token) as http:
            poll = asyncio.create_task(http.get(f"/v1/clusters/{JOB}?after={before}&wait=20"))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(world.put, JOB, OF_ALICE, 1)
            return await poll

    assert problem(asyncio.run(wait()))[:2] == (404, "not-found")


def test_a_dry_run_reports_that_the_cluster_would_be_created(world: World) -> None:
    wanted = {"spec": OF_ALICE.model_dump(mode="json"), "attempt": 1}
    answer = ask(world, "PUT", f"/v1/clusters/{JOB}?dry_run=true", wanted)
    assert (answer.status_code, answer.json()["created"]) == (200, True)


CLUSTER = "/v1/clusters/demo"


def end_and_create_again(world: World, owner: str = "alice") -> tuple[str, str]:
    former = world.put("demo", spec("brno-h1")).view.id
    world.settle()
    world.delete("demo")
    world.settle()
    return former, world.put("demo", spec("brno-h1", owner=owner)).view.id


def test_deleting_the_former_cluster_does_not_end_the_next(world: World) -> None:
    former, newest = end_and_create_again(world)
    status, kind, detail = problem(ask(world, "DELETE", f"{CLUSTER}?id={former}"))
    assert (status, kind) == (410, "gone")
    assert detail == (
        f"cluster demo: the cluster with id {former} has ended, and the key now names another cluster "
        f"(id {newest}, attempt 1)"
    )
    assert world.view("demo").state == "configuring"


@pytest.mark.parametrize("fence", ["id={former}", "attempt=0", "owner=alice"])
def test_extending_the_former_cluster_does_not_extend_the_next(world: World, fence: str) -> None:
    former, _ = end_and_create_again(world, owner="bob" if fence.startswith("owner") else "alice")
    ends = world.view("demo").lease_ends
    answer = ask(world, "POST", f"{CLUSTER}/lease?{fence.format(former=former)}", {"seconds": 86400})
    assert problem(answer)[:2] == (410, "gone")
    assert world.view("demo").lease_ends == ends


def test_extending_the_latest_cluster_by_id_succeeds(world: World) -> None:
    _, newest = end_and_create_again(world)
    assert ask(world, "POST", f"{CLUSTER}/lease?id={newest}", {"seconds": 86400}).status_code == 200


def test_an_ended_cluster_can_be_read_by_id(world: World) -> None:
    former, newest = end_and_create_again(world, owner="bob")
    token = world.token(Role.USER, "alice")
    answer = ask(world, "GET", f"{CLUSTER}?id={former}", token=token)
    assert (answer.json()["id"], answer.json()["state"]) == (former, "released")
    assert problem(ask(world, "GET", f"{CLUSTER}?id={newest}", token=token))[:2] == (404, "not-found")
    assert problem(ask(world, "GET", f"/v1/clusters/other?id={former}", token=token))[:2] == (404, "not-found")


def test_an_extension_during_a_change_of_owner_is_not_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """SBF reads that alice owns the key. Before SBF writes the extension, bob becomes the owner."""
    check_call_during_owner_change(
        world,
        monkeypatch,
        lambda token: ask(world, "POST", f"{CLUSTER}/lease", {"seconds": 86400}, token=token).status_code,
    )


def test_a_delete_during_a_change_of_owner_is_not_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_call_during_owner_change(
        world, monkeypatch, lambda token: ask(world, "DELETE", CLUSTER, token=token).status_code
    )
    assert world.view("demo").state == "configuring"


def check_call_during_owner_change(world: World, monkeypatch: pytest.MonkeyPatch, call: Callable[[str], int]) -> None:
    world.put("demo", spec("brno-h1"))
    token = world.token(Role.USER, "alice")
    change_scope, waiting = Store.change_scope, [True]

    def change_after_new_owner(
        store: Store, find_scope: FindScope[Unit], work: Callable[[Unit], object], *, who: str = "sbf"
    ) -> object:
        if waiting and who == "alice":
            waiting.clear()
            world.settle()
            world.delete("demo")
            world.settle()
            world.put("demo", spec("brno-h1", owner="bob"))
        return change_scope(store, find_scope, work, who=who)

    monkeypatch.setattr(Store, "change_scope", change_after_new_owner)
    status = call(token)
    ends = world.view("demo").lease_ends
    assert (status, waiting, world.view("demo").spec.owner) == (404, [], "bob")
    assert (ends - world.clock.now).total_seconds() == 4 * 3600
