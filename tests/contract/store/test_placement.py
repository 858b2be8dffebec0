"""Tests of a *spread*: a request for guests for which SBF chooses the hosts, by free capacity."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec

from sbf_service.bootstrap import SbfService
from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.placement import Overcommit
from sbf_service.store.clusters.capacity import record_capacity
from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.elements.error_reports import record_error
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.users.quotas import put_quota
from virtcloud.model.access import AdmissionRule, QuotaLimits, Role
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.errors import BeyondLimit, Conflict, Forbidden, NoCapacity, NotFound, QuotaExceeded
from virtcloud.model.topology import Topology
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import HostCapacity


@pytest.fixture
def hosts(world: World) -> World:
    """Four hosts report 2 processors and 2560 MiB each. Guests of a host may use 8 CPUs (overcommit) and 2048 MiB."""
    world.settle()
    for name in ("brno-h1", "brno-h2", "praha-h1", "plzen-h1"):
        report(world, name)
    return world


def report(world: World, name: str, cpus: int = 2, memory_mb: int = 2560) -> None:
    with world.store.change_row() as unit:
        record_capacity(unit, name, HostCapacity(cpus=cpus, memory_mb=memory_mb))


def spread(count: int, *sites: str, memory_mb: int = 1024, prefix: str = "g", **changes: object) -> ClusterSpec:
    wanted = {"count": count, "image": "debian", "sites": sites, "memory_mb": memory_mb, "prefix": prefix}
    return ClusterSpec.model_validate({"owner": "alice", "spread": wanted} | changes)


def chosen(world: World, key: str) -> list[str]:
    return [guest.host for guest in world.view(key).spec.guests]


def test_guests_are_placed_and_configured_on_the_chosen_hosts(hosts: World) -> None:
    hosts.put("demo", spread(3, "brno", "praha"))
    hosts.settle()
    assert (hosts.view("demo").state, chosen(hosts, "demo")) == ("active", ["brno-h1", "brno-h2", "praha-h1"])
    assert [guest.name for guest in hosts.wanted_of_host("praha-h1").segments[0].guests] == ["g3"]
    assert [row.why.rpartition(", guests ")[2] for row in hosts.audit("cluster_created")] == [
        "placed on brno-h1 (1), brno-h2 (1), praha-h1 (1)"
    ]


def test_repeating_the_request_or_the_returned_spec_changes_nothing(hosts: World) -> None:
    shown = hosts.put("demo", spread(2)).view.spec
    report(hosts, "brno-h1", cpus=64, memory_mb=65536)
    assert [hosts.put("demo", again).created for again in (spread(2), shown)] == [False, False]
    assert hosts.view("demo").spec == shown


def test_placed_guests_get_addresses(hosts: World) -> None:
    view = hosts.put("demo", spread(2)).view
    assert [guest.addresses[0] for guest in view.spec.guests] == ["10.0.0.1/24", "10.0.0.2/24"]


def test_a_dry_run_shows_the_hosts_and_changes_nothing(hosts: World) -> None:
    body = {"spec": spread(2, "brno").model_dump(mode="json")}
    found = ask(hosts, "PUT", "/v1/clusters/demo?dry_run=true", body).json()
    shown = {
        one["element"]: [guest["name"] for guest in one["host"]["add"][0]["guests"]]
        for one in found["elements"]
        if one["host"]
    }
    assert (shown, hosts.audit("cluster_created")) == ({"brno-h1": ["g1"], "brno-h2": ["g2"]}, [])


def test_capacity_is_free_after_the_end_of_a_cluster(hosts: World) -> None:
    hosts.put("demo", spread(2, "praha"))
    hosts.settle()
    hosts.dead_hosts.add("praha-h1")
    hosts.delete("demo")
    hosts.settle()
    with pytest.raises(NoCapacity, match="host praha-h1: guests use 2 of 8 CPUs and 2048 of 2048 MiB"):
        hosts.put("next", spread(1, "praha"))
    hosts.dead_hosts.clear()
    hosts.settle()
    assert hosts.put("next", spread(1, "praha")).created


def test_guests_on_named_hosts_use_capacity(hosts: World) -> None:
    big = {"name": "big", "host": "brno-h1", "image": "debian", "memory_mb": 2048}
    hosts.put("demo", spread(2, "brno", guests=[big]))
    assert chosen(hosts, "demo") == ["brno-h1", "brno-h2", "brno-h2"]


@pytest.mark.parametrize(
    ("overcommit", "room"), [(Overcommit(cpus=0.5), 1), (Overcommit(memory=2), 4), (Overcommit(host_memory_mb=2000), 0)]
)
def test_the_overcommit_limits_the_guests_of_a_host(hosts: World, overcommit: Overcommit, room: int) -> None:
    request = ClusterRequest(spec=spread(9, "praha"))
    with pytest.raises(NoCapacity, match=f"got room for {room}: "):
        put_cluster(hosts.store, "demo", request, hosts.service.reserved, "alice", overcommit=overcommit)


def test_a_host_with_an_older_agent_gets_no_guests(world: World) -> None:
    world.settle()
    with pytest.raises(NoCapacity, match="host praha-h1: its capacity is unknown: upgrade its agent, or name the host"):
        world.put("demo", spread(1, "praha"))
    assert world.put("demo", spec("praha-h1")).created


def test_an_unreachable_host_gets_no_guests(hosts: World) -> None:
    with hosts.store.change() as unit:
        record_error(unit, "brno-h1", "no heartbeat", hosts.service.settings.timing.drain, reachable=False)
    hosts.put("demo", spread(1, "brno"))
    assert chosen(hosts, "demo") == ["brno-h2"]
    with pytest.raises(NoCapacity, match="host brno-h1: its agent is unreachable"):
        hosts.put("more", spread(2, "brno"))


def test_hosts_behind_a_switch_without_answer_get_no_guests(hosts: World) -> None:
    with hosts.store.change() as unit:
        record_error(unit, "brno-sw1", "timeout", hosts.service.settings.timing.drain, reachable=False)
    hosts.put("demo", spread(1, "brno", "praha"))
    assert chosen(hosts, "demo") == ["praha-h1"]
    with pytest.raises(NoCapacity, match="host brno-h1: switch brno-sw1 does not answer"):
        hosts.put("more", spread(1, "brno"))


def test_hosts_that_refuse_owner_or_image_get_no_guests(hosts: World) -> None:
    change_host(hosts, "brno-h1", admits=AdmissionRule(users=(UserName("bob"),)))
    change_host(hosts, "brno-h2", images=(Name("other"),))
    with pytest.raises(NoCapacity) as caught:
        hosts.put("demo", spread(1, "brno"))
    assert "host brno-h1: it is for batch jobs and users bob; " in str(caught.value)
    assert "host brno-h2: users may not choose image debian there: " in str(caught.value)


def test_guests_with_open_filters_are_placed_where_they_are_allowed(hosts: World) -> None:
    change_host(hosts, "brno-h2", open_filters=True)
    hosts.put("demo", spread(1, "brno", filters="open"))
    hosts.put("member", spread(1, "brno", prefix="m", joins="demo"))
    assert (chosen(hosts, "demo"), chosen(hosts, "member")) == (["brno-h2"], ["brno-h2"])


@pytest.mark.parametrize("member", ["brno-h2", "praha-h1"], ids=["no-transport-yet", "transport"])
def test_hosts_that_the_network_does_not_reach_get_no_guests(hosts: World, member: str) -> None:
    document = hosts.topology().model_dump(mode="json")
    document["transports"].append({"name": "other", "kind": "direct"})
    document["sites"][2]["attachments"][0]["transport"] = "other"
    hosts.put_topology(Topology.model_validate(document))
    hosts.put("net", spec("brno-h1"))
    hosts.put("member", ClusterSpec.model_validate({"owner": "alice", "joins": "net", "hosts": [member]}))
    hosts.put("demo", spread(3, joins="net", prefix="n"))
    assert chosen(hosts, "demo") == ["brno-h1", "brno-h2", "praha-h1"]


def test_guests_are_placed_where_named_hosts_can_reach_them(hosts: World) -> None:
    document = hosts.topology().model_dump(mode="json")
    document["sites"][2]["attachments"] = []
    hosts.put_topology(Topology.model_validate(document))
    hosts.put("demo", spread(2, "brno", "plzen", hosts=["praha-h1"]))
    assert chosen(hosts, "demo") == ["brno-h1", "brno-h2"]


def test_a_spread_over_unconnected_sites_names_the_option_sites(hosts: World) -> None:
    document = hosts.topology().model_dump(mode="json")
    document["sites"][2]["attachments"] = []
    hosts.put_topology(Topology.model_validate(document))
    with pytest.raises(Conflict, match=r"no transport connects brno, plzen: .*name connected sites \(--sites"):
        hosts.put("demo", spread(3, "brno", "plzen"))


def test_hosts_of_an_unreadable_cluster_get_no_guests(hosts: World) -> None:
    hosts.put("broken", spec("brno-h1", owner="bob"))
    with hosts.store.change() as unit:
        unit.session.get_one(ClusterRow, hosts.view("broken").id).resolved = "{"
    hosts.put("demo", spread(2, "brno"))
    assert chosen(hosts, "demo") == ["brno-h2", "brno-h2"]


def test_placed_guests_of_an_ended_member_are_no_peers(hosts: World) -> None:
    hosts.put("demo", spread(1, "brno"))
    hosts.put("member", spread(1, "praha", prefix="m", joins="demo"))
    host, states = chosen(hosts, "demo")[0], []
    for change in (lambda: None, lambda: hosts.delete("member")):
        before = hosts.element(host).wanted_revision
        change()
        peers = [peer.name for peer in hosts.wanted_of_host(host).segments[0].peers]
        states.append((hosts.element(host).wanted_revision - before, peers))
    assert states == [(0, ["g1", "m1"]), (1, ["g1"])]


def test_a_host_without_the_images_hypervisor_gets_no_guests(hosts: World) -> None:
    disk = {"sha256": "0" * 64, "size": 1, "format": "qcow2", "architecture": "x86_64", "url": "https://example.org/a"}
    assert ask(hosts, "PUT", "/v1/images/debian", disk).status_code == 201
    with pytest.raises(NoCapacity, match="host praha-h1: it runs lxc guests, and image debian is for qemu"):
        hosts.put("demo", spread(1, "praha", owner="root"))


def change_host(world: World, name: str, **changes: object) -> None:
    former = world.topology()
    sites = tuple(
        site.model_copy(
            update={"hosts": tuple(h.model_copy(update=changes) if h.name == name else h for h in site.hosts)}
        )
        for site in former.sites
    )
    world.put_topology(Topology(name=former.name, transports=former.transports, sites=sites, links=former.links))


def test_the_last_place_goes_to_one_of_two_requests(hosts: World) -> None:
    stores = hosts.meeting_stores()

    def create(number: int) -> str:
        request = ClusterRequest(spec=spread(1, "praha", memory_mb=2048))
        try:
            put_cluster(stores[number], f"c{number}", request, hosts.service.reserved, "alice")
        except NoCapacity:
            return "refused"
        return "created"

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(create, range(2))) == ["created", "refused"]


def test_placed_guests_count_for_quotas_and_limits(hosts: World) -> None:
    with hosts.store.change() as unit:
        put_quota(unit, UserName("alice"), QuotaLimits(guests=1))
    with pytest.raises(QuotaExceeded, match="alice already has 0 guests, and with 2 more would have 2"):
        hosts.put("demo", spread(2))
    hosts.put("demo", spread(1))
    with pytest.raises(QuotaExceeded, match="alice already has 1 guest"):
        hosts.put("more", spread(1))
    status, slug, _ = problem(ask(hosts, "PUT", "/v1/clusters/x", {"spec": spread(5000).model_dump(mode="json")}))
    assert (status, slug) == (422, BeyondLimit.slug)


@pytest.mark.parametrize("path", ["/v1/clusters/demo", "/v1/clusters/demo?dry_run=true"])
def test_chosen_hosts_count_for_the_limit_of_hosts(hosts: World, path: str) -> None:
    settings = hosts.service.settings.model_copy(update={"limits": RequestLimits(hosts=1)})
    hosts.service = SbfService(**(vars(hosts.service) | {"settings": settings}))
    answer = ask(hosts, "PUT", path, {"spec": spread(2, "brno").model_dump(mode="json")})
    expected = (
        "spec.hosts: expected at most 1, got 2; the limit is 'limits.hosts' in the settings of this SBF; SBF chose "
        "hosts for the guests of spec.spread: request fewer guests"
    )
    assert problem(answer) == (422, BeyondLimit.slug, expected)
    assert hosts.put("small", spread(1)).created


def test_an_unknown_site_is_not_found(hosts: World) -> None:
    with pytest.raises(NotFound, match="ostrava"):
        hosts.put("demo", spread(1, "ostrava"))


def test_a_host_of_a_job_cannot_place_guests_elsewhere(hosts: World) -> None:
    request = ClusterRequest(spec=spread(1))
    with pytest.raises(Forbidden, match="job-starter brno-h1 may not request a spread of guests"):
        put_cluster(hosts.store, "1.pbs", request, hosts.service.reserved, "job-starter@brno-h1", starter="brno-h1")


def test_an_agent_reports_only_its_own_host(world: World) -> None:
    token = world.token(Role.AGENT, "brno-h1")
    capacity = {"cpus": 8, "memory_mb": 16384}
    answers = [
        ask(world, "PUT", f"/v1/elements/{name}/capacity", capacity, token=token).status_code
        for name in ("brno-h1", "brno-h2")
    ]
    views = [ask(world, "GET", f"/v1/elements/{name}").json()["capacity"] for name in ("brno-h1", "brno-h2")]
    assert (answers, views) == ([204, 403], [capacity, None])
