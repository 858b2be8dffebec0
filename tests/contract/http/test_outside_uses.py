"""Tests of gateways' reports to SBF about the traffic between clusters and external destinations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.vpn_world import furnish, gateway, stop_agents, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.elements.elements import make_element_view
from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.element_views import ElementView
from virtcloud.model.topology import Topology

WEB = {"name": "web", "networks": ["192.0.2.0/24"], "ports": ["tcp/443"]}
PATH = "/v1/clusters/demo/outside"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    gateways = tuple(gateway(name, outside={"interface": "outside0"}) for name in ("brno-gw", "brno-gw2"))
    document = topology_with_gateways(brno=gateways).model_dump(mode="json")
    document["sites"][0]["destinations"] = [WEB, {**WEB, "name": "archive"}]
    installation = furnish(make_world(tmp_path), Topology.model_validate(document))
    installation.put("demo", spec("brno-h1", outside=["web"]))
    installation.settle()
    yield installation
    installation.close()


def report(world: World, connections: int, sent: int = 0, gateway: str = "brno-gw", **changes: object) -> int:
    use = {"network": world.view("demo").id, "destination": "web", "connections": connections, "sent_bytes": sent}
    return ask(world, "PUT", f"/v1/elements/{gateway}/outside", {"uses": [use | changes]}).status_code


def read_uses(world: World, token: str | None = None) -> list[tuple[Any, ...]]:
    views = ask(world, "GET", PATH, token=token).json()
    return [(view["destination"], view["gateway"], view["connections"], view["sent_bytes"]) for view in views]


def test_the_owner_sees_what_the_gateway_counted(world: World) -> None:
    assert report(world, 3, 1000) == 204
    assert read_uses(world, world.token(Role.USER, "alice")) == [("web", "brno-gw", 3, 1000)]


def test_a_repeated_report_adds_nothing(world: World) -> None:
    report(world, 3, 1000)
    report(world, 3, 1000)
    assert read_uses(world) == [("web", "brno-gw", 3, 1000)]


def test_an_unreadable_cluster_hides_no_other_use(world: World) -> None:
    world.put("broken", spec("brno-h1", outside=["web"]))
    world.settle()
    with world.store.change() as unit:
        unit.session.get_one(ClusterRow, world.view("broken").id).resolved = "{"
    assert report(world, 3, 1000) == 204
    assert read_uses(world) == [("web", "brno-gw", 3, 1000)]


def test_counters_that_begin_again_are_added(world: World) -> None:
    report(world, 3, 1000)
    report(world, 1, 2000)
    assert read_uses(world) == [("web", "brno-gw", 4, 3000)]


def test_each_gateway_has_separate_sums(world: World) -> None:
    report(world, 3)
    report(world, 2, gateway="brno-gw2")
    assert read_uses(world) == [("web", "brno-gw", 3, 0), ("web", "brno-gw2", 2, 0)]


def test_reports_about_destinations_that_nobody_requested_are_ignored(world: World) -> None:
    """If SBF stored these reports, an attacker with a gateway's token could fill the table of uses."""
    report(world, 3, destination="archive")
    report(world, 3, network="unknown")
    assert read_uses(world) == []


def test_only_the_gateways_agent_reports(world: World) -> None:
    other = world.token(Role.AGENT, "brno-gw2")
    body: dict[str, object] = {"uses": []}
    assert ask(world, "PUT", "/v1/elements/brno-gw/outside", body, token=other).status_code == 403
    assert ask(world, "PUT", "/v1/elements/brno-h1/outside", body).status_code == 409


def test_another_user_does_not_learn_of_the_cluster(world: World) -> None:
    assert ask(world, "GET", PATH, token=world.token(Role.USER, "bob")).status_code == 404


def test_metrics_count_each_gateway_and_destination(world: World) -> None:
    report(world, 3, 1000)
    report(world, 5, 1500)
    metrics = ask(world, "GET", "/metrics").text
    assert 'virtcloud_outside_connections_total{destination="web",gateway="brno-gw"} 5.0' in metrics
    assert 'virtcloud_outside_bytes_total{destination="web",direction="sent",gateway="brno-gw"} 1500.0' in metrics


def read_gateway(world: World) -> ElementView:
    with world.service.store.read() as unit:
        return make_element_view(unit, "brno-gw")


def report_name(world: World, error: str | None) -> int:
    name: dict[str, Any] = {"fqdn": "web.example.org", "addresses": ["192.0.2.10", "2001:db8::10"]}
    return report(world, 1, names=[name if error is None else name | {"error": error}])


def test_the_owner_sees_how_names_were_resolved(world: World) -> None:
    assert report_name(world, "no answer\x1b[2J") == 204
    (view,) = ask(world, "GET", PATH, token=world.token(Role.USER, "alice")).json()
    addresses = ["192.0.2.10", "2001:db8::10"]
    assert view["names"] == [{"fqdn": "web.example.org", "addresses": addresses, "error": "no answer\ufffd[2J"}]


def test_a_name_without_answer_is_a_notice_of_the_gateway(world: World) -> None:
    """A notice is no error: the gateway has its wanted state, and the cluster is active."""
    report_name(world, "no answer")
    view = read_gateway(world)
    metrics = ask(world, "GET", "/metrics").text
    report_name(world, None)
    assert (view.notices, view.trouble) == (("web.example.org: no answer",), None)
    assert world.view("demo").state == "active"
    assert 'virtcloud_outside_names_failing{gateway="brno-gw"} 1.0' in metrics
    assert read_gateway(world).notices == ()


def test_a_name_with_two_errors_counts_once(world: World) -> None:
    names = [{"fqdn": "web.example.org", "addresses": [], "error": error} for error in ("no answer", "not permitted")]
    assert report(world, 1, names=names) == 204
    assert 'virtcloud_outside_names_failing{gateway="brno-gw"} 1.0' in ask(world, "GET", "/metrics").text


def test_a_gateway_that_stops_resolving_a_name_has_no_notice(world: World) -> None:
    report_name(world, "no answer")
    assert ask(world, "PUT", "/v1/elements/brno-gw/outside", {"uses": []}).status_code == 204
    assert read_gateway(world).notices == ()


def test_a_gateway_that_is_no_longer_the_router_has_no_notice(world: World) -> None:
    """After a restart, the former router's agent has nothing to report."""
    report_name(world, "no answer")
    stop_agents(world, "brno-gw")
    metrics = ask(world, "GET", "/metrics").text
    assert world.audit("router_replaced")[0].why == "brno-gw2 replaces brno-gw"
    assert read_gateway(world).notices == ()
    assert 'virtcloud_outside_names_failing{gateway="brno-gw"} 0.0' in metrics
    assert read_uses(world) == [("web", "brno-gw", 1, 0)]


def test_the_sums_end_with_the_cluster(world: World) -> None:
    report(world, 3)
    assert ask(world, "DELETE", "/v1/clusters/demo").status_code == 202
    world.settle()
    assert world.view("demo").state == "released"
    assert read_uses(world) == []
