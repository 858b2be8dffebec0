from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import func, select
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec

from sbf_service.domain.traffic import MAX_SAMPLES
from sbf_service.store.tables.gateway_tables import TrafficRow
from virtcloud.model.access import Role

PATH = "/v1/clusters/demo/traffic"


@pytest.fixture
def world(database: str) -> Iterator[World]:
    installation = World(database)
    installation.furnish()
    installation.put("demo", spec("brno-h1", "praha-h1", owner="alice"))
    installation.settle()
    yield installation
    installation.close()


def report(world: World, received: int, host: str = "brno-h1", **changes: object) -> int:
    segment: dict[str, object] = {
        "network": world.view("demo").id,
        "port": "eth0.100#7",
        "received_bytes": received,
        "sent_bytes": 10,
        "received_frames": received // 100,
        "sent_frames": 1,
    }
    body: dict[str, object] = {"segments": [segment | changes]}
    return ask(world, "PUT", f"/v1/elements/{host}/traffic", body).status_code


def read_rates(world: World, token: str | None = None) -> dict[str, list[Any]]:
    answer = ask(world, "GET", PATH, token=token)
    assert answer.status_code == 200, answer.text
    return {one["element"]: [rate["received_bytes"] for rate in one["rates"]] for one in answer.json()}


def count_rows(world: World) -> int:
    with world.store.read() as unit:
        return unit.session.scalar(select(func.count()).select_from(TrafficRow)) or 0


def test_the_owner_sees_the_rates_of_each_host(world: World) -> None:
    for received in (1000, 4000):
        assert report(world, received) == 204
        assert report(world, 2 * received, "praha-h1") == 204
        world.clock.advance(30)
    assert read_rates(world, world.token(Role.USER, "alice")) == {"brno-h1": [100.0], "praha-h1": [200.0]}


def test_any_replica_shows_what_any_replica_received(world: World, database: str) -> None:
    other = World(database)
    for received, replica in ((1000, world), (4000, other), (4600, world)):
        assert report(replica, received) == 204
        for one in (world, other):
            one.clock.advance(30)
    rates = [read_rates(one) for one in (world, other)]
    other.close()
    assert rates == [{"brno-h1": [100.0, 20.0]}] * 2


def test_another_user_does_not_learn_of_the_cluster(world: World) -> None:
    report(world, 1000)
    assert ask(world, "GET", PATH, token=world.token(Role.USER, "bob")).status_code == 404


def test_an_agent_reports_for_its_own_host_only(world: World) -> None:
    token = world.token(Role.AGENT, "praha-h1")
    body: dict[str, object] = {"segments": []}
    assert ask(world, "PUT", "/v1/elements/brno-h1/traffic", body, token=token).status_code == 403


def test_a_host_cannot_report_for_clusters_of_other_hosts(world: World) -> None:
    assert report(world, 1000, "plzen-h1") == 204
    assert read_rates(world) == {}


def test_an_unknown_cluster_in_a_report_is_ignored(world: World) -> None:
    assert report(world, 1000, network="unknown") == 204
    assert count_rows(world) == 0


def test_frequent_reports_cause_no_writes(world: World) -> None:
    report(world, 1000)
    for _ in range(3):
        world.clock.advance(1)
        report(world, 9000)
    assert read_rates(world) == {"brno-h1": []}


def test_a_recreated_interface_causes_no_rate(world: World) -> None:
    report(world, 1000)
    for received in (10**15, 10**15 + 300):
        world.clock.advance(30)
        report(world, received, port="eth0.100#9")
    assert read_rates(world) == {"brno-h1": [10.0]}


def test_a_cluster_has_a_bounded_number_of_samples(world: World) -> None:
    for number in range(MAX_SAMPLES + 5):
        report(world, number)
        world.clock.advance(30)
    assert len(read_rates(world)["brno-h1"]) == MAX_SAMPLES - 1


def test_members_of_a_network_see_the_traffic_of_the_network(world: World) -> None:
    """A host's counters cover a whole network, and do not distinguish the network's members."""
    world.put("net", spec("plzen-h1", owner="alice", name="lab"))
    world.put("member", spec(guests=[{"name": "m1", "host": "plzen-h2", "image": "debian"}], joins="lab"))
    world.settle()
    report(world, 1000, "plzen-h2", network=world.view("net").id)
    for key in ("net", "member"):
        found = ask(world, "GET", f"/v1/clusters/{key}/traffic").json()
        assert [one["element"] for one in found] == ["plzen-h2"]


def test_an_ended_cluster_leaves_no_samples(world: World) -> None:
    report(world, 1000)
    world.delete("demo")
    world.settle()
    assert world.view("demo").state == "released"
    assert count_rows(world) == 0


def test_a_late_report_about_an_ended_cluster_is_ignored(world: World) -> None:
    world.delete("demo")
    report(world, 1000)
    world.settle()
    report(world, 2000)
    assert count_rows(world) == 0


def test_a_host_that_leaves_a_network_leaves_no_samples(world: World) -> None:
    guests = [{"name": "m1", "host": "plzen-h2", "image": "debian"}]
    world.put("member", spec(guests=guests, joins="demo"))
    world.settle()
    report(world, 1000, "plzen-h2")
    assert count_rows(world) == 1
    world.delete("member")
    world.settle()
    report(world, 2000, "plzen-h2")
    assert count_rows(world) == 0


def test_metrics_count_the_traffic_of_a_site(world: World) -> None:
    for received in (1000, 4000, 100):
        report(world, received)
        world.clock.advance(30)
    metrics = ask(world, "GET", "/metrics").text
    assert 'virtcloud_traffic_bytes_total{direction="received",site="brno"} 3000.0' in metrics
    assert 'virtcloud_traffic_frames_total{direction="received",site="brno"} 30.0' in metrics
