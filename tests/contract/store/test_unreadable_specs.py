"""Tests of a cluster whose stored spec this version of SBF cannot read, for example after a downgrade."""

import json

import pytest
from sqlalchemy import select
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.world import World, spec

from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import ClusterView


@pytest.fixture
def cluster_id(world: World) -> str:
    """The ID of the cluster ``later``, whose spec has a key of a later version. The switch also carries ``known``."""
    for key in ("known", "later"):
        world.put(key, spec("brno-h1"))
    world.settle()
    return make_unreadable(world, "later")


def make_unreadable(world: World, key: str) -> str:
    with world.store.change() as unit:
        row = unit.session.scalars(select(ClusterRow).where(ClusterRow.key == key)).one()
        row.spec = json.dumps(json.loads(row.spec) | {"later_key": 1})
        row.resolved = None
        return row.id


def test_the_agent_gets_no_document_without_the_cluster(
    world: World, cluster_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With such a document, the agent would remove the network. The error changes nothing on the host."""
    status, slug, _ = problem(ask(world, "GET", "/v1/elements/brno-h1/wanted"))
    assert (status, slug) == (500, "error")
    assert f"cluster later (ID {cluster_id}): this version of SBF cannot read the stored spec" in caplog.text
    assert "install the version of SBF that stored the spec, or a later version" in caplog.text


@pytest.mark.usefixtures("cluster_id")
def test_the_switch_keeps_all_networks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before = world.switches["brno-sw1"].carried()
    assert before["p1"] == "100-101"
    world.put("other", spec("brno-h2"))
    world.settle()
    assert world.switches["brno-sw1"].carried() == before
    assert "cluster later (ID" in caplog.text


@pytest.mark.usefixtures("cluster_id")
def test_other_elements_get_their_changes(world: World) -> None:
    world.put("other", spec("praha-h1"))
    world.settle()
    assert world.view("other").state == "active"


@pytest.mark.usefixtures("cluster_id")
def test_lists_mark_a_cluster_with_an_unreadable_spec(world: World) -> None:
    views = ask(world, "GET", "/v1/clusters").json()
    reasons = {view["key"]: view["reason"] for view in views}
    assert reasons["known"] is None
    assert "cannot read the stored spec (later_key: Extra inputs are not permitted)" in reasons["later"]
    assert ClusterView.model_validate(views[1]).spec == ClusterSpec(
        owner=UserName("alice"), hosts=(Name("brno-h1"),), sites=(Name("brno"),)
    )


@pytest.mark.usefixtures("cluster_id")
def test_the_view_of_an_unreadable_cluster_shows_its_state(world: World) -> None:
    view = ClusterView.model_validate(ask(world, "GET", "/v1/clusters/later").json())
    assert (view.state, view.vlans, view.spec.owner) == ("active", {"brno": 101}, "alice")


@pytest.mark.usefixtures("cluster_id")
def test_a_networks_list_marks_a_cluster_with_an_unreadable_spec(world: World) -> None:
    world.put("other", spec("brno-h2"))
    (view,) = ask(world, "GET", "/v1/clusters?network=later").json()
    assert "cannot read the stored spec" in view["reason"]


@pytest.mark.usefixtures("cluster_id")
def test_the_owner_deletes_a_cluster_with_an_unreadable_spec(world: World) -> None:
    alice = world.token(Role.USER, "alice")
    answer = ask(world, "DELETE", "/v1/clusters/later", token=alice)
    assert (answer.status_code, answer.json()["state"]) == (202, "draining")
    world.settle()
    assert ask(world, "GET", "/v1/clusters/later", token=alice).json()["state"] == "released"
    assert world.switches["brno-sw1"].carried()["p1"] == "100"
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted").status_code == 200


@pytest.mark.usefixtures("cluster_id")
def test_another_user_deletes_no_cluster_with_an_unreadable_spec(world: World) -> None:
    answer = ask(world, "DELETE", "/v1/clusters/later", token=world.token(Role.USER, "bob"))
    assert problem(answer)[:2] == (404, "not-found")


@pytest.mark.usefixtures("cluster_id")
def test_a_request_conflicts_with_a_cluster_with_an_unreadable_spec(world: World) -> None:
    status, slug, detail = problem(ask(world, "PUT", "/v1/clusters/later", body("brno-h1")))
    assert (status, slug) == (409, "other-spec")
    assert "cannot read its stored spec: choose another key, or end the cluster first" in detail


@pytest.mark.usefixtures("cluster_id")
def test_the_key_of_an_ended_unreadable_cluster_is_free(world: World) -> None:
    world.delete("later")
    world.settle()
    assert ask(world, "PUT", "/v1/clusters/later", body("brno-h1")).status_code == 201
    assert world.view("later").attempt == 1


def test_a_deleted_member_with_an_unreadable_spec_leaves_its_network(world: World) -> None:
    world.put("network", spec("brno-h1"))
    world.put("member", spec(hosts=["brno-h1", "brno-h2"], joins="network"))
    world.settle()
    make_unreadable(world, "member")
    assert ask(world, "DELETE", "/v1/clusters/member").status_code == 202
    assert ask(world, "GET", "/v1/elements/brno-h1/wanted").status_code == 200
    world.settle()
    assert (world.view("member").state, world.view("network").state) == ("released", "active")


def test_a_deleted_network_with_an_unreadable_spec_ends_its_members(world: World) -> None:
    world.put("network", spec("brno-h1"))
    world.put("member", spec(hosts=["brno-h2"], joins="network"))
    world.settle()
    make_unreadable(world, "network")
    assert ask(world, "DELETE", "/v1/clusters/network").status_code == 202
    world.settle()
    assert (world.view("member").state, world.view("network").state) == ("released", "released")


@pytest.mark.usefixtures("cluster_id")
def test_quotas_count_a_cluster_with_an_unreadable_spec(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.put("member", spec(hosts=["brno-h2"], joins="known"))
    make_unreadable(world, "member")
    ask(world, "PUT", "/v1/quotas/alice", {"clusters": 4})
    (view,) = ask(world, "GET", "/v1/quotas").json()
    assert (view["clusters"], view["networks"], view["guests"]) == (3, 2, 1)
    assert ask(world, "GET", "/v1/quotas/alice").json() == view
    assert "cluster_unreadable" in caplog.text


@pytest.mark.usefixtures("cluster_id")
def test_quotas_without_guest_limit_permit_clusters_despite_an_unreadable_spec(world: World) -> None:
    ask(world, "PUT", "/v1/quotas/alice", {"clusters": 3})
    assert ask(world, "PUT", "/v1/clusters/other", body("brno-h2")).status_code == 201
    status, slug, _ = problem(ask(world, "PUT", "/v1/clusters/more", body("brno-h2")))
    assert (status, slug) == (409, "quota-exceeded")


@pytest.mark.parametrize("limit", ["guests", "cpus", "memory_mb"])
@pytest.mark.usefixtures("cluster_id")
def test_a_quota_of_guests_refuses_guests_beside_an_unreadable_spec(world: World, limit: str) -> None:
    """SBF cannot count the guests of the unreadable cluster. The owner could exceed the quota."""
    ask(world, "PUT", "/v1/quotas/alice", {limit: 100_000})
    without_guests = {"spec": spec(hosts=["brno-h2"]).model_dump(mode="json")}
    assert ask(world, "PUT", "/v1/clusters/plain", without_guests).status_code == 201
    status, slug, detail = problem(ask(world, "PUT", "/v1/clusters/other", body("brno-h2")))
    assert (status, slug) == (409, "quota-exceeded")
    assert "this version of SBF cannot count the guests of later, because it cannot read the stored specs" in detail
