"""Calls about a cluster whose key stands for another one by now: they change nothing of that one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sbf_fakes.talk import ask, problem
from sbf_fakes.world import World, spec

from sbf_service.store.session import Store, Unit
from virtcloud.model.access import Role

CLUSTER = "/v1/clusters/demo"


def again(world: World, owner: str = "alice") -> tuple[str, str]:
    """Let a cluster end, and another one come under its key; give the ids of both."""
    former = world.put("demo", spec("brno-h1")).view.id
    world.settle()
    world.delete("demo")
    world.settle()
    return former, world.put("demo", spec("brno-h1", owner=owner)).view.id


def test_an_end_of_the_former_cluster_does_not_end_the_next(world: World) -> None:
    former, newest = again(world)
    status, kind, detail = problem(ask(world, "DELETE", f"{CLUSTER}?id={former}"))
    assert (status, kind) == (410, "gone")
    assert detail == (
        f"cluster demo: the one with id {former} is over, the key stands for another one since (id {newest}, attempt 1)"
    )
    assert world.view("demo").state == "configuring"


@pytest.mark.parametrize("fence", ["id={former}", "attempt=0", "owner=alice"])
def test_an_extension_of_the_former_cluster_does_not_extend_the_next(world: World, fence: str) -> None:
    former, _ = again(world, owner="bob" if fence.startswith("owner") else "alice")
    ends = world.view("demo").lease_ends
    answer = ask(world, "POST", f"{CLUSTER}/lease?{fence.format(former=former)}", {"seconds": 86400})
    assert problem(answer)[:2] == (410, "gone")
    assert world.view("demo").lease_ends == ends


def test_an_extension_of_the_newest_cluster_by_its_id_is_done(world: World) -> None:
    _, newest = again(world)
    assert ask(world, "POST", f"{CLUSTER}/lease?id={newest}", {"seconds": 86400}).status_code == 200


def test_an_ended_cluster_is_read_by_its_id(world: World) -> None:
    former, newest = again(world, owner="bob")
    token = world.token(Role.USER, "alice")
    shown = ask(world, "GET", f"{CLUSTER}?id={former}", token=token)
    assert (shown.json()["id"], shown.json()["state"]) == (former, "released")
    assert problem(ask(world, "GET", f"{CLUSTER}?id={newest}", token=token))[:2] == (404, "not-found")
    assert problem(ask(world, "GET", f"/v1/clusters/other?id={former}", token=token))[:2] == (404, "not-found")


def test_the_key_changes_owner_between_the_rights_and_the_extension(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alice is found to be the owner; before anything is written the key is bob's."""
    check_of_an_owner_that_changes(
        world,
        monkeypatch,
        lambda token: ask(world, "POST", f"{CLUSTER}/lease", {"seconds": 86400}, token=token).status_code,
    )


def test_the_key_changes_owner_between_the_rights_and_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    check_of_an_owner_that_changes(
        world, monkeypatch, lambda token: ask(world, "DELETE", CLUSTER, token=token).status_code
    )
    assert world.view("demo").state == "configuring"


def check_of_an_owner_that_changes(world: World, monkeypatch: pytest.MonkeyPatch, call: Callable[[str], int]) -> None:
    world.put("demo", spec("brno-h1"))
    token = world.token(Role.USER, "alice")
    change, waiting = Store.change, [True]

    @contextmanager
    def overtaken(store: Store, *, who: str = "sbf") -> Iterator[Unit]:
        if waiting and who == "alice":
            waiting.clear()
            world.settle()
            world.delete("demo")
            world.settle()
            world.put("demo", spec("brno-h1", owner="bob"))
        with change(store, who=who) as unit:
            yield unit

    monkeypatch.setattr(Store, "change", overtaken)
    status = call(token)
    ends = world.view("demo").lease_ends
    assert (status, waiting, world.view("demo").spec.owner) == (404, [], "bob")
    assert (ends - world.clock.now).total_seconds() == 4 * 3600
