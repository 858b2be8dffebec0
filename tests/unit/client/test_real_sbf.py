from collections.abc import Callable, Iterator

import pytest

from virtcloud.client.api import Client
from virtcloud.client.sbf import SbfClient
from virtcloud.model.cluster import ClusterRequest, ClusterSpec, ClusterState
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput, ClusterFailed, Conflict, Gone, NotFound, NoVlanFree, TimedOut, Unreachable
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, Confirmation, PlacementProgress
from virtcloud.model.vlans import VlanSet


def site(name: str) -> dict[str, object]:
    switch = {"name": f"{name}-sw", "ports": ["p1"], "platform": "linux_bridge", "address": "127.0.0.1:1"}
    return {"name": name, "switches": [switch], "hosts": [{"name": f"{name}-h1", "ports": ["eth0"]}]}


TOPOLOGY = Topology.model_validate(
    {
        "name": "small",
        "sites": [site("brno"), site("praha")],
        "links": [{"a": "brno-sw:p1", "b": "brno-h1:eth0"}, {"a": "praha-sw:p1", "b": "praha-h1:eth0"}],
    }
)
POOLS = {"brno": "100-199", "praha": "300-301"}
SPEC = ClusterSpec.model_validate({"owner": "eva", "hosts": ["brno-h1"], "deadline_s": 600})


@pytest.fixture
def service(sbf: str) -> Iterator[SbfClient]:
    with SbfClient(sbf) as connected:
        connected.put_topology(TOPOLOGY)
        for name, vlans in POOLS.items():
            connected.put_pool(name, Pool(vlans=VlanSet.parse(vlans)))
        yield connected


@pytest.fixture
def api(sbf: str, service: SbfClient) -> Iterator[Client]:
    with Client(sbf) as connected:
        yield connected


def confirm(service: SbfClient) -> None:
    service.confirm("brno-h1", Confirmation(revision=service.wanted("brno-h1").revision))


def test_the_stored_topology_is_returned_unchanged(service: SbfClient) -> None:
    assert service.topology() == TOPOLOGY


def test_a_pool_is_shown_at_its_site(service: SbfClient) -> None:
    assert [str(service.site("praha").pool), str(service.pool("praha").vlans)] == ["300-301", "300-301"]
    assert [site.name for site in service.sites()] == ["brno", "praha"]


def test_elements_are_listed_with_their_revisions(service: SbfClient) -> None:
    assert sorted(element.name for element in service.elements()) == ["brno-h1", "brno-sw", "praha-h1", "praha-sw"]
    assert service.element("brno-h1").site == "brno"


@pytest.mark.parametrize(
    "call", [lambda client: client.site("x"), lambda client: client.element("x"), lambda client: client.cluster("x")]
)
def test_an_unknown_object_raises_not_found(service: SbfClient, call: Callable[[SbfClient], object]) -> None:
    with pytest.raises(NotFound):
        call(service)


def test_an_unknown_host_is_not_found_and_named(service: SbfClient) -> None:
    spec = ClusterSpec.model_validate({"owner": "eva", "hosts": ["brno-h9"]})
    with pytest.raises(NotFound, match="brno-h9"):
        service.put_cluster("a", ClusterRequest(spec=spec))


def test_a_reserved_vlan_id_in_a_pool_is_bad_input(service: SbfClient) -> None:
    with pytest.raises(BadInput, match="VLAN 1"):
        service.put_pool("brno", Pool(vlans=VlanSet.parse("1-5")))


def test_a_cluster_is_created_once_and_wanted_on_its_host(api: Client, service: SbfClient) -> None:
    first, again = api.create("once", SPEC), api.create("once", SPEC)
    segments = [segment for segment in service.wanted("brno-h1").wanted.segments if segment.key == "once"]
    assert (first.state, first.view.id) == (ClusterState.CONFIGURING, again.view.id)
    assert [(segment.id, segment.port, segment.vlan) for segment in segments] == [
        (first.view.id, "eth0", first.vlans["brno"])
    ]


def test_another_spec_under_the_same_key_is_a_conflict(api: Client) -> None:
    api.create("same", SPEC)
    with pytest.raises(Conflict):
        api.create("same", SPEC.model_copy(update={"owner": "ivo"}))


def test_a_cluster_without_a_free_vlan_id_is_refused(api: Client) -> None:
    spec = SPEC.model_copy(update={"hosts": ("praha-h1",)})
    for key in ("one", "two"):
        api.create(key, spec)
    with pytest.raises(NoVlanFree, match="praha"):
        api.create("three", spec)


def test_a_hosts_confirmation_is_seen_in_the_cluster(api: Client, service: SbfClient) -> None:
    cluster = api.create("confirmed", SPEC)
    confirm(service)
    progress = {placement.element: placement.progress for placement in cluster.refresh().placements}
    assert progress["brno-h1"] == PlacementProgress.CONFIRMED


def test_a_hosts_error_report_is_shown_in_the_cluster(api: Client, service: SbfClient) -> None:
    cluster = api.create("troubled", SPEC)
    service.report_error("brno-h1", service.wanted("brno-h1").revision, "port eth0 is down")
    assert "port eth0 is down" in [placement.trouble for placement in cluster.refresh().placements]


def test_a_cluster_that_a_host_refuses_fails_immediately(api: Client, service: SbfClient) -> None:
    refused, other = api.create("refused", SPEC), api.create("other", SPEC)
    revision = service.wanted("brno-h1").revision
    service.report_error("brno-h1", revision, "no", {refused.view.id: "image x not found"})
    assert refused.refresh().state is ClusterState.FAILING
    assert refused.view.reason == "host brno-h1 at brno refused: image x not found"
    assert other.refresh().state is ClusterState.CONFIGURING


def test_a_wait_ends_at_its_timeout_while_the_cluster_continues(api: Client) -> None:
    with pytest.raises(TimedOut, match=r"cluster demo is configuring after 0.1 s, not active; SBF continues"):
        api.create("demo", SPEC).wait_active(timeout=0.1)


def test_a_failed_cluster_has_its_reason(api: Client, service: SbfClient) -> None:
    cluster = api.create("late", SPEC.model_copy(update={"deadline_s": 0.2}))
    seen: list[ClusterState] = []

    def watch(view: ClusterView) -> None:
        seen.append(view.state)
        confirm(service)

    with pytest.raises(ClusterFailed, match="cluster late is failed: "):
        cluster.wait_active(watch, timeout=60)
    assert (seen[0], seen[-1]) == (ClusterState.CONFIGURING, ClusterState.FAILED)


def test_deleting_an_unknown_cluster_succeeds(api: Client) -> None:
    api.delete("never", wait=True)
    with pytest.raises(NotFound):
        api.get("never")


def test_the_end_of_a_block_does_not_delete_later_clusters(api: Client) -> None:
    with api.create("stale", SPEC):
        api.delete("stale", wait=True)
        later = api.create("stale", SPEC)
    assert later.refresh().state is ClusterState.CONFIGURING


def test_an_ended_cluster_cannot_extend_a_later_cluster(api: Client) -> None:
    stale = api.create("short", SPEC)
    api.delete("short", wait=True)
    api.create("short", SPEC)
    with pytest.raises(Gone, match="attempt 0 has ended"):
        stale.extend(60)


def test_a_dry_run_returns_a_vlan_id_and_claims_nothing(api: Client, service: SbfClient) -> None:
    dry_run = api.preview("only-asked", SPEC)
    assert (dry_run.created, [element.element for element in dry_run.elements]) == (True, ["brno-h1", "brno-sw"])
    assert dry_run.vlans["brno"] in service.site("brno").free
    with pytest.raises(NotFound):
        service.cluster("only-asked")


def test_an_extended_lease_is_in_the_audit_log(api: Client, service: SbfClient) -> None:
    cluster = api.create("longer", SPEC)
    before = cluster.view.lease_ends
    assert cluster.extend(86400).view.lease_ends > before
    rows = service.audit(cluster="longer")
    assert [row.what for row in rows if row.what != "cluster_created"] == ["lease_extended"]
    assert service.audit(cluster="longer", after=rows[-1].id, wait=0.01) == []


@pytest.mark.parametrize("seconds", [0, 1e9])
def test_an_invalid_lease_is_bad_input_before_it_is_sent(service: SbfClient, seconds: float) -> None:
    with pytest.raises(BadInput, match="seconds: expected "):
        service.extend_lease("any", seconds)


def test_the_difference_of_a_host_contains_the_unconfirmed_segments(api: Client, service: SbfClient) -> None:
    api.create("awaited", SPEC)
    difference = service.difference("brno-h1").host
    assert difference is not None
    assert "awaited" in [segment.key for segment in difference.add]


def test_reading_an_unreachable_switch_raises_unreachable(service: SbfClient) -> None:
    with pytest.raises((Unreachable, Conflict), match="brno-sw"):
        service.difference("brno-sw", read=True)


def test_a_host_cannot_be_checked_by_sbf(service: SbfClient) -> None:
    with pytest.raises(Conflict, match="this host is reconciled by its agent"):
        service.reconcile("brno-h1")


def test_a_vlan_id_in_use_cannot_be_declared_clean(api: Client, service: SbfClient) -> None:
    vlan = api.create("in-use", SPEC).vlans[Name("brno")]
    with pytest.raises(Conflict, match="not in quarantine: cluster in-use uses the VLAN ID"):
        service.declare_clean("brno", vlan, reason="I am sure")
    with pytest.raises(BadInput, match="reason: "):
        service.declare_clean("brno", vlan, reason=" ")


def test_a_running_sbf_is_ready_and_has_metrics(service: SbfClient) -> None:
    assert service._connection.send("GET", "/readyz").content == b'{"status":"ok"}'
    lines = service._connection.send("GET", "/metrics").content.decode().splitlines()
    assert "virtcloud_database_up 1.0" in lines
    assert any(line.startswith('virtcloud_converges_total{outcome="failed",platform="linux_bridge"}') for line in lines)
