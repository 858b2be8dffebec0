from datetime import timedelta

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, spec, three_edges

from sbf_service.http.metric_reference import list_metrics
from sbf_service.http.middleware import is_long_poll, route_template
from sbf_service.reconcile.device_statuses import read_device_statuses
from sbf_service.store.maintenance.metric_counts import BACKUP_TIME, record_service_time
from virtcloud.model.topology import Topology


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


def scrape(world: World) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = ask(world, "GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(world: World, name: str, **labels: str) -> float:
    return scrape(world)[f"virtcloud_{name}", frozenset(labels.items())]


@pytest.fixture
def unreachable_database(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    dialect = world.service.store.engine.dialect

    def lose(*_arguments: object) -> None:
        raise dialect.loaded_dbapi.OperationalError("gone")

    monkeypatch.setattr(dialect, "do_execute", lose)


def test_clusters_are_counted_by_state(world: World) -> None:
    world.put("a", spec("brno-h1"))
    world.put("b", spec("brno-h2"))
    world.settle()
    world.delete("b")
    metrics = scrape(world)
    states = {
        dict(labels)["state"]: number for (name, labels), number in metrics.items() if name == "virtcloud_clusters"
    }
    assert {state: number for state, number in states.items() if number} == {"active": 1, "draining": 1}
    assert len(states) == 8


def test_service_ids_are_counted_by_transport(world: World) -> None:
    world.put_topology(three_edges())
    world.put("a", spec("brno-h1", "praha-h1"))
    world.put("b", spec("brno-h1", "praha-h1"))
    world.settle()
    world.edges["brno-pe1"].cut_off = True
    world.delete("a")
    for _ in range(2):
        world.clock.advance(61)
        world.settle()
    counts = [value(world, f"services_{state}", transport="evpn") for state in ("claimed", "quarantined", "free")]
    assert counts == [1, 1, 98]
    assert value(world, "elements_unreachable", site="brno", kind="edge") == 1


def test_vlan_ids_are_counted_by_site(world: World) -> None:
    world.put("a", spec("brno-h1", "praha-h1"))
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.delete("a")
    world.clock.advance(61)
    world.settle()
    world.put("b", spec("brno-h2"))
    counts = [value(world, f"vlans_{state}", site="brno") for state in ("claimed", "quarantined", "free")]
    assert counts == [1, 1, 38]
    assert value(world, "vlans_free", site="praha") == len(world.site("praha").free) == 39


def test_a_site_without_a_pool_has_no_vlan_id_metrics(world: World) -> None:
    world.put_pool("praha", "")
    sites = [dict(labels)["site"] for name, labels in scrape(world) if name == "virtcloud_vlans_free"]
    assert sorted(sites) == ["brno", "plzen"]


def test_elements_behind_and_unreachable_are_counted_by_site(world: World) -> None:
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.put("a", spec("brno-h1"))
    world.converge("brno-sw1")
    counted = [
        value(world, name, site="brno", kind=kind)
        for name in ("elements", "elements_behind", "elements_unreachable", "elements_troubled")
        for kind in ("switch", "host")
    ]
    assert counted == [1, 2, 1, 1, 1, 0, 1, 0]


def test_the_age_of_unconfirmed_changes_grows(world: World) -> None:
    world.settle()
    assert value(world, "oldest_unconfirmed_change_seconds") == 0
    world.put("a", spec("brno-h1"))
    world.clock.advance(40)
    world.put("b", spec("praha-h1"))
    assert value(world, "oldest_unconfirmed_change_seconds") == 40
    world.settle()
    assert value(world, "oldest_unconfirmed_change_seconds") == 0
    world.delete("a")
    world.clock.advance(7)
    assert value(world, "oldest_unconfirmed_change_seconds") == 7


def test_a_degraded_cluster_counts_from_its_degradation(world: World) -> None:
    world.put("a", spec("brno-h1"))
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.clock.advance(1000)
    world.settle()
    assert world.view("a").state == "degraded"
    world.clock.advance(5)
    assert value(world, "oldest_unconfirmed_change_seconds") == 5


def test_reconciliations_are_counted_and_timed_by_platform(world: World) -> None:
    scheduler = world.service.scheduler
    scheduler.record_metrics("cisco_ios", "confirmed", 0.3)
    scheduler.record_metrics("cisco_ios", "failed", 5.5)
    assert value(world, "converges_total", platform="cisco_ios", outcome="failed") == 1
    assert value(world, "converge_seconds_bucket", platform="cisco_ios", le="0.5") == 1
    assert value(world, "converge_seconds_count", platform="cisco_ios") == 2


def test_a_workers_attempt_has_platform_and_outcome(world: World) -> None:
    with world.service.store.read() as unit:
        status = next(device for device in read_device_statuses(unit, "nobody") if device.name == "brno-sw1")
    world.service.scheduler._work(status)
    assert value(world, "converges_total", platform="fake", outcome="confirmed") == 1


def test_calls_are_timed_by_route_template_and_status(world: World) -> None:
    ask(world, "GET", "/v1/clusters/demo")
    ask(world, "GET", "/v1/clusters/other")
    ask(world, "BREW", "/coffee")
    route = {"method": "GET", "route": "/v1/clusters/{key}", "status": "404"}
    assert value(world, "request_seconds_count", **route) == 2
    assert value(world, "request_seconds_count", method="none", route="none", status="404") == 1


def test_long_polls_are_not_timed() -> None:
    assert is_long_poll({"query_string": b"after=3&wait=20"})
    assert not is_long_poll({"query_string": b"owner=wait"})
    assert route_template({}) == "none"


def test_an_unreachable_database_is_a_metric(world: World, unreachable_database: None) -> None:
    metrics = scrape(world)
    assert metrics["virtcloud_database_up", frozenset()] == 0
    assert [name for name, _ in metrics if name == "virtcloud_clusters"] == []


def test_liveness_does_not_depend_on_the_database(world: World, unreachable_database: None) -> None:
    assert ask(world, "GET", "/healthz").json() == {"status": "ok"}


def test_a_service_without_its_database_is_not_ready(world: World, unreachable_database: None) -> None:
    status, kind, detail = problem(ask(world, "GET", "/readyz"))
    assert (status, kind) == (503, "not-ready")
    assert detail.startswith("the database does not answer")
    assert "restart" not in detail  # SBF continues when the database answers


def test_a_service_without_reconcilers_is_not_ready(world: World) -> None:
    assert problem(ask(world, "GET", "/readyz"))[2].startswith("no reconciler thread is alive")


def test_a_database_of_another_version_is_not_ready(world: World) -> None:
    with world.service.store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    assert problem(ask(world, "GET", "/readyz"))[2].startswith("the database does not have the tables of this version")


def test_a_running_service_is_ready(world: World) -> None:
    scheduler = world.service.scheduler
    world.clock.stands = False
    scheduler.start()
    try:
        deadline = scheduler.clock() + 10
        while not scheduler.alive and scheduler.clock() < deadline:
            scheduler._wake.set()
        answer: httpx.Response = ask(world, "GET", "/readyz")
    finally:
        scheduler.stop()
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert not scheduler.alive


def test_the_reference_lists_the_metrics_with_their_labels(world: World) -> None:
    document = three_edges().model_dump(mode="json")
    document["sites"][0]["gateways"] = [{"name": "brno-gw", "ports": ["eth0"]}]
    document["sites"][0]["switches"][0]["ports"].append("gw")
    document["links"].append({"a": "brno-gw:eth0", "b": "brno-sw1:gw"})
    world.put_topology(Topology.model_validate(document))
    world.service.metrics.record_reconciliation("fake", "confirmed", 0.1)
    world.service.metrics.record_request("GET", "/v1/sites", 200, 0.1)
    world.service.metrics.record_denial("forbidden")
    counters = {"connections": 1, "sent_bytes": 1, "received_bytes": 1}
    world.service.metrics.record_outside_use("brno-gw", "web", counters)
    frames = {"received_frames": 1, "sent_frames": 1}
    world.service.metrics.record_traffic("brno", counters | frames)
    found: dict[str, set[str]] = {}
    for name, labels in scrape(world):
        if name.startswith("virtcloud_") and not name.endswith(("_created", "_count", "_sum")):
            found.setdefault(name.removesuffix("_bucket"), set()).update(label for label, _ in labels if label != "le")
    described = {metric.name: set(metric.labels) for metric in list_metrics()}
    del described["virtcloud_certificate_expiry_timestamp_seconds"]  # this SBF has no certificate
    assert found == described


def test_the_metric_shows_the_newest_recorded_backup(world: World) -> None:
    assert value(world, "last_backup_timestamp_seconds") == 0
    with world.store.change_row() as unit:
        record_service_time(unit, BACKUP_TIME, world.clock.now)
        record_service_time(unit, BACKUP_TIME, world.clock.now - timedelta(days=1))
    assert value(world, "last_backup_timestamp_seconds") == world.clock.now.timestamp()


def test_the_longest_degraded_cluster_is_measured(world: World) -> None:
    world.put("a", spec("brno-h1"))
    world.settle()
    world.switches["brno-sw1"].cut_off = True
    world.clock.advance(400)
    world.settle()
    assert value(world, "clusters", state="degraded") == 1
    world.clock.advance(90)
    assert value(world, "oldest_degraded_cluster_seconds") == 90


def test_transactions_are_timed_by_kind(world: World) -> None:
    before = value(world, "transaction_seconds_count", kind="write")
    world.put("a", spec("brno-h1"))
    assert value(world, "transaction_seconds_count", kind="write") > before
