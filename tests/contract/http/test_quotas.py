from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.clusters.cluster_creation import put_cluster
from virtcloud.model.access import QuotaLimits, Role
from virtcloud.model.cluster import ClusterRequest
from virtcloud.model.errors import QuotaExceeded

TWO = QuotaLimits(clusters=2)


def test_concurrent_calls_cannot_exceed_a_quota(world: World) -> None:
    def create(number: int) -> str:
        request = ClusterRequest(spec=spec("brno-h1"))
        try:
            put_cluster(world.store, f"c{number}", request, world.service.reserved, "alice", quota=TWO)
        except QuotaExceeded as error:
            return str(error)
        return "created"

    with ThreadPoolExecutor(8) as pool:
        results = sorted(pool.map(create, range(16)))
    assert results == ["alice already has 2 clusters (limit 2)"] * 14 + ["created"] * 2
    assert len(ask(world, "GET", "/v1/clusters").json()) == 2


def test_a_users_own_quota_overrides_the_default(world: World) -> None:
    def put(limits: dict[str, object]) -> dict[str, object]:
        limits_in_force: dict[str, object] = ask(world, "PUT", "/v1/quotas/alice", limits).json()["limits"]
        return {name: value for name, value in limits_in_force.items() if value is not None}

    assert put({"clusters": 1, "lease_s": 86400.5}) == {"clusters": 1, "lease_s": 86400.5}
    assert ask(world, "PUT", "/v1/clusters/a", body("brno-h1")).status_code == 201
    assert problem(ask(world, "PUT", "/v1/clusters/b", body("brno-h1"))) == (
        409,
        "quota-exceeded",
        "alice already has 1 cluster (limit 1)",
    )
    assert ask(world, "PUT", "/v1/clusters/a", body("brno-h1")).status_code == 200
    assert put({}) == {}
    assert ask(world, "PUT", "/v1/clusters/b", body("brno-h1")).status_code == 201
    assert [(row.who, row.why) for row in world.audit("quota_put")] == [
        ("root", "alice: no individual limits became clusters 1, lease_s 86400.5"),
        ("root", "alice: clusters 1, lease_s 86400.5 became no individual limits"),
    ]


def test_a_cluster_counts_until_it_has_ended(world: World) -> None:
    ask(world, "PUT", "/v1/quotas/alice", {"clusters": 1})
    world.put("a", spec("brno-h1"))
    world.settle()
    world.delete("a")
    assert ask(world, "GET", "/v1/quotas/alice").json()["clusters"] == 1
    assert ask(world, "PUT", "/v1/clusters/b", body("brno-h1")).status_code == 409
    world.settle()
    assert ask(world, "PUT", "/v1/clusters/b", body("brno-h1")).status_code == 201


def test_a_lease_quota_counts_from_the_start(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.furnish()
    ask(world, "PUT", "/v1/quotas/alice", {"lease_s": 20000})
    world.put("a", spec("brno-h1"))
    world.clock.advance(10000)
    assert ask(world, "POST", "/v1/clusters/a/lease", {"seconds": 10000}).status_code == 200
    assert problem(ask(world, "POST", "/v1/clusters/a/lease", {"seconds": 10001})) == (
        409,
        "quota-exceeded",
        "alice's cluster would last 5h33m21s from its start (limit 5h33m20s)",
    )
    world.close()


def test_a_dry_run_reports_an_exceeded_quota(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.furnish()
    ask(world, "PUT", "/v1/quotas/alice", {"sites": 1})
    answer = ask(world, "PUT", "/v1/clusters/a?dry_run=true", body("brno-h1", "praha-h1"))
    assert problem(answer)[1:] == ("quota-exceeded", "alice asks for 2 sites in one cluster (limit 1)")
    world.close()


@pytest.mark.parametrize("limits", [{"clusters": -1}, {"sites": 0}, {"lease_s": 0}, {"vlans": 3}])
def test_an_invalid_quota_is_bad_input(tmp_path: Path, limits: dict[str, object]) -> None:
    world = make_world(tmp_path)
    assert problem(ask(world, "PUT", "/v1/quotas/alice", limits))[:2] == (422, "bad-input")
    world.close()


def test_a_user_reads_its_own_quota_and_sets_none(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    alice = world.token(Role.USER, "alice")
    assert ask(world, "GET", "/v1/quotas/alice", token=alice).json()["clusters"] == 0
    assert ask(world, "GET", "/v1/quotas/bob", token=alice).status_code == 403
    assert ask(world, "GET", "/v1/quotas", token=alice).status_code == 403
    assert ask(world, "PUT", "/v1/quotas/alice", {}, token=alice).status_code == 403
    world.close()


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"networks": 1}, "alice already has 1 network, and with 1 more would have 2 (limit 1)"),
        ({"guests": 2}, "alice already has 1 guest, and with 2 more would have 3 (limit 2)"),
        ({"cpus": 2}, "alice already has 1 CPU, and with 2 more would have 3 (limit 2)"),
        (
            {"memory_mb": 512},
            "alice already has 256 MiB of memory, and with 512 more would have 768 (limit 512)",
        ),
    ],
)
def test_guests_cpus_and_memory_have_quotas(world: World, limit: dict[str, int], message: str) -> None:
    world.put("a", spec("praha-h1"))
    ask(world, "PUT", "/v1/quotas/alice", limit)
    answer = ask(world, "PUT", "/v1/clusters/b", body("brno-h1", "brno-h2"))
    assert problem(answer) == (409, "quota-exceeded", message)
    quota = ask(world, "GET", "/v1/quotas/alice").json()
    assert {name: quota[name] for name in ("clusters", "networks", "guests", "cpus", "memory_mb")} == {
        "clusters": 1,
        "networks": 1,
        "guests": 1,
        "cpus": 1,
        "memory_mb": 256,
    }
