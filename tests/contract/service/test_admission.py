import pytest
from support.sbf_fakes.http_calls import ask, body, problem
from support.sbf_fakes.vpn_world import furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World, spec, three_sites

from sbf_service.http.routes.topology import check_device_support
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.topology import Topology


def set_admission_rules(
    world: World, site: dict[str, object] | None = None, host: dict[str, object] | None = None
) -> None:
    document = three_sites().model_dump(mode="json")
    document["sites"][0] |= site or {}
    document["sites"][0]["hosts"][0] |= host or {}
    world.put_topology(Topology.model_validate(document))


def request_cluster(
    world: World, role: Role, name: str, *hosts: str, key: str = "demo", image: str = "debian"
) -> tuple[int, str]:
    wanted = body(*hosts)
    for guest in wanted["spec"]["guests"]:
        guest["image"] = image
    answer = ask(world, "PUT", f"/v1/clusters/{key}", wanted, token=world.token(role, name))
    return (answer.status_code, "") if answer.status_code == 201 else (answer.status_code, problem(answer)[2])


BATCH_ONLY: dict[str, object] = {"admits": {"users": []}}
REFUSED = "host brno-h1 is for batch jobs, not for alice: see 'admits' of the host or its site in the topology"


@pytest.mark.parametrize(
    ("site", "host"), [(BATCH_ONLY, {}), ({}, BATCH_ONLY), ({"admits": {"users": ["alice"]}}, BATCH_ONLY)]
)
def test_a_host_for_batch_jobs_refuses_users_clusters(
    world: World, site: dict[str, object], host: dict[str, object]
) -> None:
    set_admission_rules(world, site, host)
    assert request_cluster(world, Role.USER, "alice", "brno-h1") == (403, REFUSED)
    assert request_cluster(world, Role.SCHEDULER, "pbs", "brno-h1") == (201, "")


def test_a_cluster_without_guests_needs_the_hosts_admission(world: World) -> None:
    set_admission_rules(world, BATCH_ONLY)
    wanted = {"spec": spec(hosts=["brno-h1"]).model_dump(mode="json")}
    answer = ask(world, "PUT", "/v1/clusters/demo", wanted, token=world.token(Role.USER, "alice"))
    assert problem(answer)[2] == REFUSED


def test_a_dry_run_is_refused_as_the_call_is(world: World) -> None:
    set_admission_rules(world, BATCH_ONLY)
    token = world.token(Role.USER, "alice")
    assert problem(ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1"), token=token))[2] == REFUSED
    batch = world.token(Role.SCHEDULER, "pbs")
    assert ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body("brno-h1"), token=batch).status_code == 200


def test_the_refusal_has_the_problem_type_not_admitted(world: World) -> None:
    """A batch system's hook must recognize this refusal by the problem type.

    If the requested network is not shared with the cluster's owner, the refusal has the same status, but another type.
    """
    set_admission_rules(world, host={"admits": {"batch": False}})
    token = world.token(Role.SCHEDULER, "pbs")
    assert problem(ask(world, "PUT", "/v1/clusters/7.pbs", body("brno-h1"), token=token))[:2] == (403, "not-admitted")


def test_a_host_for_named_users_admits_no_other_users(world: World) -> None:
    set_admission_rules(world, host={"admits": {"users": ["alice"]}})
    assert request_cluster(world, Role.USER, "alice", "brno-h1") == (201, "")
    other = {"spec": spec("brno-h1", owner="bob").model_dump(mode="json")}
    answer = ask(world, "PUT", "/v1/clusters/b", other, token=world.token(Role.USER, "bob"))
    assert problem(answer)[2].startswith("host brno-h1 is for batch jobs and users alice, not for bob")


def test_a_host_without_batch_jobs_refuses_them(world: World) -> None:
    set_admission_rules(world, host={"admits": {"batch": False}})
    assert request_cluster(world, Role.SCHEDULER, "pbs", "brno-h1")[1].startswith(
        "host brno-h1 is for all users, not for a batch job of alice"
    )


def test_users_may_only_name_the_sites_images(world: World) -> None:
    set_admission_rules(world, {"images": ["busybox"]})
    assert request_cluster(world, Role.USER, "alice", "brno-h1", image="secret") == (
        403,
        "guest g1: alice may not choose image secret on host brno-h1; images for users there: busybox",
    )
    assert request_cluster(world, Role.USER, "alice", "brno-h1", image="busybox") == (201, "")
    assert request_cluster(world, Role.SCHEDULER, "pbs", "brno-h2", key="b", image="secret") == (201, "")


def test_the_wanted_document_names_the_owners(world: World) -> None:
    token = world.token(Role.SCHEDULER, "pbs")
    job = world.put("mine", spec("brno-h1")).view.id
    ask(world, "PUT", "/v1/clusters/7.pbs", body("brno-h1"), token=token)
    document = ask(world, "GET", "/v1/elements/brno-h1/wanted").json()
    origins = {segment["key"]: segment["origins"] for segment in document["wanted"]["segments"]}
    assert origins["mine"] == {job: {"owner": "alice", "batch": False}}
    assert list(origins["7.pbs"].values()) == [{"owner": "alice", "batch": True}]


OUTSIDE = {"interface": "eth1", "addresses": ["198.51.100.7"]}
MESSAGE = "cluster second needs access port brno-sw1:p2, but cluster first uses this port, and "


@pytest.fixture
def access(world: World) -> World:
    world.put_topology(topology_with(brno_h2=True))
    return world


def topology_with(*, brno_h2: bool) -> Topology:
    document = three_sites().model_dump(mode="json")
    document["links"][1]["access"] = brno_h2
    return Topology.model_validate(document)


def test_a_second_cluster_on_an_access_port_is_a_conflict(access: World) -> None:
    access.put("first", spec("brno-h2"))
    with pytest.raises(Conflict, match=MESSAGE):
        access.put("second", spec("brno-h1", "brno-h2"))
    assert str(access.site("brno").claimed) == "100"


def test_an_access_port_is_taken_until_removal_is_confirmed(access: World) -> None:
    """Before the removal is confirmed, untagged frames of the first cluster could enter a second cluster's VLAN."""
    access.put("first", spec("brno-h2"))
    access.settle()
    access.dead_hosts.add("brno-h2")
    access.delete("first")
    access.settle()
    with pytest.raises(Conflict, match=MESSAGE):
        access.put("second", spec("brno-h2"))
    access.dead_hosts.clear()
    access.settle()
    access.put("second", spec("brno-h2"))
    access.settle()
    assert access.view("second").state is ClusterState.ACTIVE


def test_a_gateways_access_port_is_taken_until_removal_is_confirmed(world: World) -> None:
    """The cluster is in quarantine, and the gateway may still send its untagged frames."""
    document = topology_with_gateways(brno=(gateway("brno-gw", vpn=None, outside=OUTSIDE),)).model_dump(mode="json")
    document["links"][-1]["access"] = True
    furnish(world, Topology.model_validate(document))
    world.put("first", spec("brno-h1", router="gateway"))
    world.settle()
    world.dead_hosts.add("brno-gw")
    world.delete("first")
    world.settle()
    world.clock.advance(3600)
    world.sweep()
    assert world.view("first").quarantined
    with pytest.raises(Conflict, match="cluster second needs access port brno-sw1:brno-gw, but cluster first uses"):
        world.put("second", spec("brno-h2", router="gateway"))
    world.dead_hosts.clear()
    world.settle()
    world.put("second", spec("brno-h2", router="gateway"))
    world.settle()
    assert world.view("second").state is ClusterState.ACTIVE


def test_a_trunk_of_two_clusters_cannot_become_an_access_link(world: World) -> None:
    world.put("first", spec("brno-h2"))
    world.put("second", spec("brno-h1", "brno-h2"))
    with pytest.raises(Conflict, match=MESSAGE):
        world.put_topology(topology_with(brno_h2=True))
    assert world.topology() == topology_with(brno_h2=False)


def test_a_trunk_of_one_cluster_becomes_an_access_link(world: World) -> None:
    world.put("first", spec("brno-h2"))
    world.settle()
    world.put_topology(topology_with(brno_h2=True))
    assert world.wanted_of_host("brno-h2").segments[0].untagged
    world.settle()
    assert world.view("first").state is ClusterState.ACTIVE


def test_an_access_link_in_use_cannot_become_a_trunk(access: World) -> None:
    access.put("first", spec("brno-h2"))
    access.settle()
    access.delete("first")
    with pytest.raises(Conflict, match="brno-sw1:p2, which is no access port in the new topology"):
        access.put_topology(topology_with(brno_h2=False))
    access.settle()
    access.put_topology(topology_with(brno_h2=False))


def test_an_access_link_needs_a_switch_that_supports_it(world: World) -> None:
    """The fake platform of these tests does not support access ports."""
    topology = topology_with(brno_h2=True)
    with pytest.raises(
        BadInput, match="access link brno-h2:eth0 to brno-sw1:p2: expected a platform with access links, got fake"
    ):
        check_device_support(topology, topology.sites, world.service.platforms, ())


def test_a_member_shares_its_own_networks_access_port_only(access: World) -> None:
    access.put("first", spec("brno-h2", name="ring"))
    access.put("member", spec(hosts=["brno-h2"], joins="ring"))
    access.put("own", spec("brno-h1", name="loop"))
    with pytest.raises(Conflict, match=MESSAGE.replace("second", "stranger")):
        access.put("stranger", spec(hosts=["brno-h2"], joins="loop"))
    access.settle()
    access.delete("member")
    access.settle()
    assert [str(access.view(key).state) for key in ("first", "member", "own")] == ["active", "released", "active"]
    assert access.switches["brno-sw1"].carried() == {"p1": "101", "p2": "100"}
