from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import furnish, gateway, make_profile, stop_agents, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.elements.error_reports import record_agent_error
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, GuestTaken, NoGateway, NotFound
from virtcloud.model.gateway_access import GATEWAY_FQDNS, GATEWAY_ROUTER
from virtcloud.model.topology import Topology
from virtcloud.model.wanted import Segment

LINK = {"interface": "outside0"}
GATEWAYS = ("brno-gw", "brno-gw2", "brno-gw3")
WEB = {"name": "web", "networks": ["192.0.2.0/24"], "ports": ["tcp/443"]}
ARCHIVE = {"name": "archive", "networks": ["198.51.100.0/24"], "ports": ["tcp/22"]}
NAMED = {"name": "data", "fqdns": ["Data.Example.org."], "ports": ["tcp/443"]}


def make_topology(*destinations: Mapping[str, object]) -> Topology:
    """Return a topology of three sites. Brno has ``destinations``, and two gateways with links to the outside."""
    gateways = tuple(gateway(name, outside=LINK) for name in ("brno-gw", "brno-gw2"))
    document = topology_with_gateways(brno=gateways).model_dump(mode="json")
    document["sites"][0]["destinations"] = destinations or (WEB, ARCHIVE)
    assert document["sites"][0]["name"] == "brno"
    return Topology.model_validate(document)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = furnish(make_world(tmp_path), make_topology())
    yield installation
    installation.close()


def put(world: World, key: str = "demo", host: str = "brno-h1", **changes: Any) -> None:
    world.put(key, spec(host, **changes))
    world.settle()


def segment(world: World, element: str = "brno-gw") -> Segment:
    return next(one for one in world.wanted_of_host(element).segments if one.key == "demo")


def test_a_router_has_the_last_free_address_of_each_subnet(world: World) -> None:
    put(world, router="device", subnets=["10.0.0.0/24", "fd00::/64"])
    assert world.view("demo").spec.router_addresses == ("10.0.0.246/24", "fd00::ffff:ffff:ffff:ff77/64")


def test_a_users_choice_of_the_routers_addresses_is_kept(world: World) -> None:
    put(world, router="device", subnets=["10.0.0.0/24"], router_addresses=["10.0.0.1/24"])
    view = world.view("demo").spec
    assert (view.router_addresses, view.guests[0].addresses) == (("10.0.0.1/24",), ("10.0.0.2/24",))


def test_a_dry_run_is_refused_without_addresses_for_routers(world: World) -> None:
    """The subnet has two addresses: one for the guest and one for the router. No address is free for the gateway."""
    wanted = spec("brno-h1", router="gateway", subnets=["10.0.0.0/30"], router_addresses=["10.0.0.1/30"])
    request = {"spec": wanted.model_dump(mode="json")}
    dry_run, creation = (ask(world, "PUT", f"/v1/clusters/demo{query}", request) for query in ("?dry_run=true", ""))
    assert problem(dry_run) == problem(creation)
    assert "expected 1 free address in subnet 10.0.0.0/30 for gateway brno-gw, got 0" in problem(dry_run)[2]


def test_hosts_learn_the_routers_addresses(world: World) -> None:
    put(world, router="device")
    assert segment(world, "brno-h1").router_addresses == world.view("demo").spec.router_addresses


def test_a_network_without_a_router_has_no_router_addresses(world: World) -> None:
    put(world)
    assert (segment(world, "brno-h1").router_addresses, world.view("demo").spec.router) == ((), None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"router_addresses": ["10.0.0.1/24"]}, "expected router: gateway, router: device or the key outside"),
        ({"router": "device", "router_addresses": ["10.0.0.1/24", "10.0.0.2/24"]}, "at most one IPv4 address"),
        ({"router": "device", "outside": ["web"]}, "expected router: gateway, because the spec has the key outside"),
        ({"router": "device", "router_addresses": ["10.9.0.1/24"]}, "expected an address in a subnet of the network"),
        (
            {"router": "device", "subnets": []},
            "expected a free address of each subnet for the router, got subnets: none",
        ),
        ({"outside": ["web"], "joins": "other"}, "expected the key outside only for a new network"),
    ],
)
def test_contradictory_keys_of_a_router_are_refused(world: World, changes: dict[str, Any], message: str) -> None:
    with pytest.raises((BadInput, ValidationError), match=message):
        put(world, **changes)


def test_a_guest_cannot_have_the_routers_address(world: World) -> None:
    put(world, router="device")
    address = str((world.view("demo").spec.router_addresses or ())[0])
    guest = {"name": "m1", "host": "brno-h2", "image": "debian", "addresses": [address]}
    with pytest.raises(GuestTaken, match="which the router has in the same network"):
        world.put("more", spec(guests=[guest], joins="demo"))


def test_the_first_gateway_is_the_router_with_requested_destinations(world: World) -> None:
    put(world, outside=["web"])
    router = segment(world).router
    assert router is not None
    assert router.addresses == world.view("demo").spec.router_addresses
    assert [destination.name for destination in router.destinations] == ["web"]


def test_only_one_gateway_is_the_router(world: World) -> None:
    put(world, outside=["web"])
    other = segment(world, "brno-gw2")
    assert (other.router, len(other.gateway_addresses)) == (None, 2)


def test_the_routers_segment_requires_an_agent_that_knows_routers(world: World) -> None:
    put(world, outside=["web"])
    assert GATEWAY_ROUTER in segment(world).requires
    assert GATEWAY_ROUTER not in segment(world, "brno-gw2").requires


def test_destinations_with_names_need_an_agent_that_resolves_them(world: World) -> None:
    """Older agents would ignore the router's ``named_destinations``.

    Therefore, a segment with named destinations requires ``GATEWAY_FQDNS``, so that older agents refuse the segment.
    """
    world.put_topology(make_topology(WEB, NAMED))
    put(world, outside=["web", "data"])
    router = segment(world).router
    assert router is not None
    assert [one.name for one in router.destinations] == ["web"]
    assert [one.fqdns for one in router.named_destinations] == [("data.example.org",)]
    assert segment(world).requires[-2:] == (GATEWAY_ROUTER, GATEWAY_FQDNS)


def test_destinations_without_names_need_no_newer_agent(world: World) -> None:
    put(world, outside=["web"])
    assert GATEWAY_FQDNS not in segment(world).requires


def test_another_gateway_replaces_a_dead_router(world: World) -> None:
    put(world, outside=["web"])
    stop_agents(world, "brno-gw")
    assert (segment(world).router is None, segment(world, "brno-gw2").router is None) == (True, False)
    assert [row.element for row in world.audit("router_replaced")] == ["brno-gw"]


def test_the_first_gateway_that_answers_again_is_the_router(world: World) -> None:
    put(world, outside=["web"])
    stop_agents(world, "brno-gw")
    stop_agents(world, "brno-gw2")
    world.dead_hosts.remove("brno-gw")
    world.confirm("brno-gw", world.element("brno-gw").wanted_revision)
    assert segment(world).router is not None


def test_a_gateway_that_answers_with_an_error_becomes_the_router(world: World) -> None:
    """The error report itself must make the gateway the router.

    A later confirmation would not do this, because the gateway counts as reachable after the error report.
    """
    put(world, outside=["web"])
    stop_agents(world, "brno-gw")
    stop_agents(world, "brno-gw2")
    with world.store.change() as unit:
        record_agent_error(unit, "brno-gw", "sshd is not installed", {}, timedelta(hours=1))
    assert segment(world).router is not None


def test_a_gateway_with_a_new_link_replaces_a_dead_router(world: World) -> None:
    """When the network was created, the second gateway had no link to the outside, and got no addresses."""
    document = make_topology().model_dump(mode="json")
    del document["sites"][0]["gateways"][1]["outside"]
    world.put_topology(Topology.model_validate(document))
    put(world, outside=["web"], vpn=True)
    world.put_topology(make_topology())
    stop_agents(world, "brno-gw")
    found = segment(world, "brno-gw2")
    assert (found.router is None, len(found.gateway_addresses)) == (False, 2)


def test_a_new_link_replaces_a_router_that_is_dead_already(world: World) -> None:
    document = make_topology().model_dump(mode="json")
    del document["sites"][0]["gateways"][1]["outside"]
    world.put_topology(Topology.model_validate(document))
    put(world, outside=["web"], vpn=True)
    stop_agents(world, "brno-gw")
    world.put_topology(make_topology())
    assert segment(world, "brno-gw2").router is not None


def test_a_gateway_connected_later_replaces_a_dead_router(world: World) -> None:
    document = topology_with_gateways(brno=tuple(gateway(name, outside=LINK) for name in GATEWAYS))
    put(world, outside=["web"])
    world.put_topology(document)
    world.settle()
    stop_agents(world, "brno-gw", "brno-gw2")
    assert make_profile(world, world.token(Role.USER, "alice")).status_code == 201
    found = segment(world, "brno-gw3")
    assert (found.router is None, len(found.gateway_addresses)) == (False, 2)


def test_a_gateway_that_loses_its_link_is_replaced(world: World) -> None:
    put(world, outside=["web"])
    document = make_topology().model_dump(mode="json")
    del document["sites"][0]["gateways"][0]["outside"]
    world.put_topology(Topology.model_validate(document))
    assert segment(world, "brno-gw2").router is not None


def without_links(*gateways: int) -> Topology:
    """Return the topology without links to the outside at some gateways of Brno. ``gateways`` are their indices."""
    document = make_topology().model_dump(mode="json")
    for number in gateways:
        del document["sites"][0]["gateways"][number]["outside"]
    return Topology.model_validate(document)


LOST = (
    "guests reach nothing outside their network: the router, gateway brno-gw at brno, no longer has a link to the "
    "outside, and no other gateway of the network can replace it; ask the administrator of brno"
)


def test_users_see_that_the_last_link_was_removed(world: World) -> None:
    put(world, outside=["web"])
    put(world, "member", joins="demo", guests=[{"name": "m1", "host": "brno-h2", "image": "debian"}])
    versions = [world.view(key).version for key in ("demo", "member")]
    world.put_topology(without_links(0, 1))
    world.settle()
    views = [world.view(key) for key in ("demo", "member")]
    assert [(view.state, view.reason) for view in views] == [("active", LOST)] * 2
    assert all(view.version > version for view, version in zip(views, versions, strict=True))


def test_a_removed_link_is_not_reported_after_its_return(world: World) -> None:
    put(world, outside=["web"])
    world.put_topology(without_links(0, 1))
    world.settle()
    version = world.view("demo").version
    world.put_topology(make_topology())
    world.settle()
    view = world.view("demo")
    assert (view.state, view.reason, view.version > version) == ("active", None, True)
    assert segment(world).router is not None


def test_a_cluster_with_a_replaced_router_reports_no_removed_link(world: World) -> None:
    put(world, outside=["web"])
    world.put_topology(without_links(0))
    world.settle()
    assert (world.view("demo").state, world.view("demo").reason) == ("active", None)


def test_clusters_without_a_router_do_not_report_removed_links(world: World) -> None:
    put(world, vpn=True)
    world.put_topology(without_links(0, 1))
    world.settle()
    assert world.view("demo").reason is None


def test_an_unknown_destination_names_the_known_ones(world: World) -> None:
    with pytest.raises(NotFound, match=r"destination moon is not known.* known destinations: archive, web"):
        put(world, outside=["moon"])


def test_a_destination_of_another_site_is_not_known(world: World) -> None:
    with pytest.raises(NotFound, match="known destinations: none"):
        put(world, host="praha-h1", outside=["web"])


def test_a_site_without_a_link_outside_has_no_router(world: World) -> None:
    with pytest.raises(NoGateway, match="expected a gateway with a link to the outside at praha, got none"):
        put(world, host="praha-h1", router="gateway")


def test_a_changed_destination_reaches_the_router(world: World) -> None:
    put(world, outside=["web"])
    before = world.element("brno-gw").wanted_revision
    world.put_topology(make_topology({**WEB, "ports": ["tcp/80"]}))
    router = segment(world).router
    assert router is not None
    assert (router.destinations[0].ports, world.element("brno-gw").wanted_revision) == (("tcp/80",), before + 1)


def test_an_ended_network_frees_its_router(world: World) -> None:
    put(world, outside=["web"])
    world.delete("demo")
    world.settle()
    put(world, router="device")
    assert segment(world, "brno-h1").key == "demo"
    assert all(one.router is None for one in world.wanted_of_host("brno-gw").segments)
