from typing import Any

import pytest
from sqlalchemy import event
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.world import World, spec

from virtcloud.model.access import Role


def request_for(*hosts: str, attempt: int | None = None, **changes: Any) -> dict[str, object]:
    return {"spec": spec(*hosts, **changes).model_dump(mode="json"), "attempt": attempt}


def keys(world: World, query: str, token: str | None = None) -> list[str]:
    return [cluster["key"] for cluster in ask(world, "GET", f"/v1/clusters?{query}", token=token).json()]


def test_a_name_belongs_to_a_cluster_until_the_cluster_ends(world: World) -> None:
    world.put("12.pbs", spec("brno-h1", name="ring"))
    world.settle()
    refusal = "the name ring is taken by cluster 12.pbs, which is {}: choose another name"
    second = request_for("brno-h2", name="ring")
    assert problem(ask(world, "PUT", "/v1/clusters/13.pbs", second)) == (409, "name-taken", refusal.format("active"))
    world.delete("12.pbs")
    assert problem(ask(world, "PUT", "/v1/clusters/13.pbs", second)) == (409, "name-taken", refusal.format("draining"))
    world.settle()
    assert ask(world, "PUT", "/v1/clusters/13.pbs", second).status_code == 201
    assert ask(world, "PUT", "/v1/clusters/13.pbs", second).status_code == 200


def test_a_name_or_key_denotes_only_one_cluster(world: World) -> None:
    world.put("ring", spec("brno-h1", name="loop"))
    assert problem(ask(world, "PUT", "/v1/clusters/other", request_for("brno-h2", name="ring")))[1:] == (
        "name-taken",
        "the name ring is taken by cluster ring, which is configuring: choose another name",
    )
    assert problem(ask(world, "PUT", "/v1/clusters/loop?dry_run=true", request_for("brno-h2")))[1:] == (
        "name-taken",
        "the key loop is the name of cluster ring: choose another key",
    )


def test_the_key_of_an_ended_cluster_can_become_a_name(world: World) -> None:
    world.put("loop", spec("brno-h1"))
    world.settle()
    world.delete("loop")
    world.settle()
    world.put("ring", spec("brno-h1", name="loop"))
    assert problem(ask(world, "PUT", "/v1/clusters/loop", request_for("brno-h2", attempt=1)))[1:] == (
        "name-taken",
        "the key loop is the name of cluster ring: choose another key",
    )


def test_a_creation_reads_the_clusters_with_one_statement(world: World) -> None:
    statements: list[str] = []
    event.listen(world.store.engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    world.put("ring", spec("brno-h1"))
    assert sum("\nFROM clusters" in statement and statement.startswith("SELECT") for statement in statements) == 1


def test_only_entitled_callers_read_which_cluster_has_a_name(world: World) -> None:
    world.put("ring", spec("brno-h1", name="loop"))
    bob = world.token(Role.USER, "bob")

    def refused(key: str, **changes: Any) -> str:
        request = request_for("brno-h2", owner="bob", **changes)
        return problem(ask(world, "PUT", f"/v1/clusters/{key}", request, token=bob))[2]

    assert refused("loop") == "the key loop is the name of another cluster: choose another key"
    assert refused("mine", name="loop") == "the name loop is taken by another cluster: choose another name"


def test_a_live_network_is_found_by_name_and_key(world: World) -> None:
    world.put("12.pbs", spec("brno-h1", name="ring"))
    world.put("13.pbs", spec("brno-h1", owner="bob"))
    assert keys(world, "network=ring") == keys(world, "network=12.pbs") == ["12.pbs"]
    assert keys(world, "network=ring&owner=bob") == keys(world, "network=nothing") == []
    assert keys(world, "network=ring", world.token(Role.USER, "bob")) == []
    assert keys(world, "network=ring", world.token(Role.USER, "alice")) == ["12.pbs"]
    world.delete("12.pbs")
    assert keys(world, "network=ring") == ["12.pbs"]
    world.settle()
    assert keys(world, "network=ring") == keys(world, "network=12.pbs") == []


def test_a_requested_vlan_id_is_claimed_at_all_sites(world: World) -> None:
    assert world.put("demo", spec("brno-h1", "praha-h1", vlan=117)).view.vlans == {"brno": 117, "praha": 117}


def choose(site: str) -> str:
    return f"choose a free VLAN ID (virtcloud site show {site}), or omit the VLAN ID: SBF then chooses one"


def test_a_vlan_id_outside_a_pool_is_refused(world: World) -> None:
    world.put_pool("praha", "100-199,300")
    assert problem(ask(world, "PUT", "/v1/clusters/demo", request_for("brno-h1", "praha-h1", vlan=1203))) == (
        409,
        "vlan-not-in-pool",
        f"VLAN 1203 is not in the pool of site brno (100-139): {choose('brno')}",
    )
    assert problem(ask(world, "PUT", "/v1/clusters/demo", request_for("praha-h1", vlan=1203)))[2] == (
        f"VLAN 1203 is not in the pool of site praha (100-199,300): {choose('praha')}"
    )
    world.put_pool("plzen", "")
    assert problem(ask(world, "PUT", "/v1/clusters/demo", request_for("plzen-h1", vlan=100)))[2] == (
        "VLAN 100 is not in the pool of site plzen (none): ask the site's administrator for a pool (virtcloud pool set "
        "plzen VLANS)"
    )


def test_only_entitled_callers_read_the_owner_of_a_vlan_id(world: World) -> None:
    world.put("hers", spec("brno-h1", owner="eva", vlan=117))

    def refused(role: Role, name: str, query: str = "") -> tuple[int, str, str]:
        request = request_for("brno-h2", owner=name if role is Role.USER else "bob", vlan=117)
        path = f"/v1/clusters/{name}{query}"
        return problem(ask(world, "PUT", path, request, token=world.token(role, name)))

    message = f"VLAN 117 is not free at site brno: cluster hers of eva uses the VLAN ID; {choose('brno')}"
    assert refused(Role.USER, "eva") == refused(Role.SCHEDULER, "pbs") == (409, "no-vlan-free", message)
    assert refused(Role.USER, "eva", "?dry_run=true")[2] == message
    assert refused(Role.USER, "bob")[2] == message.replace("cluster hers of eva", "another cluster")


def test_a_quarantined_vlan_id_is_refused(world: World) -> None:
    world.dead_hosts.add("brno-h1")
    world.put("demo", spec("brno-h1", vlan=117))
    world.delete("demo")
    world.clock.advance(3600)
    world.sweep()
    assert problem(ask(world, "PUT", "/v1/clusters/next", request_for("brno-h2", vlan=117)))[2] == (
        f"VLAN 117 is not free at site brno: the VLAN ID is in quarantine after cluster demo of alice; {choose('brno')}"
    )


def test_a_late_call_of_an_ended_attempt_changes_nothing(world: World) -> None:
    world.put("job", spec("brno-h1"), attempt=2)
    late = ask(world, "DELETE", "/v1/clusters/job?attempt=1")
    assert problem(late) == (410, "gone", "cluster job: attempt 1 has ended: the latest is attempt 2")
    assert world.view("job").state == "configuring"
    assert ask(world, "DELETE", "/v1/clusters/job?attempt=2").json()["state"] == "draining"
    assert problem(ask(world, "DELETE", "/v1/clusters/other?attempt=1"))[:2] == (404, "not-found")


def test_the_end_of_a_later_attempt_ends_the_running_attempt(world: World) -> None:
    world.put("job", spec("brno-h1"), attempt=2)
    assert ask(world, "DELETE", "/v1/clusters/job?attempt=3").json()["state"] == "draining"


@pytest.mark.parametrize("owner", ["Alice", "_svc", "alice.b@site.example", "7up", "a" * 64])
def test_an_owners_name_is_a_unix_user_name(world: World, owner: str) -> None:
    token = world.token(Role.USER, owner)
    answer = ask(world, "PUT", "/v1/clusters/demo", request_for("brno-h1", owner=owner), token=token)
    assert (answer.status_code, answer.json()["spec"]["owner"]) == (201, owner)
    assert keys(world, "", token) == keys(world, f"owner={owner}") == ["demo"]
    assert ask(world, "PUT", f"/v1/quotas/{owner}", {"clusters": 1}).json()["clusters"] == 1


@pytest.mark.parametrize(
    "owner", ["", "-x", "a b", "a" * 65, "agent@brno-h1", "scheduler@pbs", "job-starter@h1", "a/b", "é"]
)
def test_a_malformed_owner_is_refused(world: World, owner: str) -> None:
    request = body("brno-h1")
    request["spec"]["owner"] = owner
    assert problem(ask(world, "PUT", "/v1/clusters/demo", request))[:2] == (422, "bad-input")


def test_an_agents_token_is_named_as_its_element(world: World) -> None:
    created = ask(world, "POST", "/v1/tokens", {"name": "Brno_H1", "role": "agent"})
    assert problem(created)[:2] == (422, "bad-input")
