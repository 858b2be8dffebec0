"""Tests of publications whose gateway fails."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from support.sbf_fakes.crash import Crash, crash_at
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.vpn_world import furnish, gateway, stop_agents, topology_with_gateways
from support.sbf_fakes.world import World, make_world

from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.gateway_tables import PublicationRow
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterSpec

URL_IMAGE = {"size": 1, "format": "tar", "architecture": "x86_64", "url": "https://example.org/a.tar"}
PUBLICATIONS = "/v1/clusters/demo/publications"


def outside(number: int, ports: str = "40000-40002") -> dict[str, object]:
    return {"interface": "eth1", "addresses": [f"198.51.100.{number}"], "publish_ports": ports}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two gateways of Brno and a gateway of Praha can publish ports. The image ``good`` is certified for Brno."""
    topology = topology_with_gateways(
        brno=(gateway("brno-gw", outside=outside(1)), gateway("brno-gw2", outside=outside(2))),
        praha=(gateway("praha-gw", outside=outside(3)),),
    )
    installation = furnish(make_world(tmp_path), topology)
    body = URL_IMAGE | {"sha256": "0" * 64}
    assert ask(installation, "PUT", "/v1/images/good", body, token=token_of(installation)).is_success
    certify(installation, "brno")
    put(installation)
    yield installation
    installation.close()


def token_of(world: World) -> str:
    return world.token(Role.USER, "alice")


def certify(world: World, site: str, method: str = "PUT") -> None:
    administrator = world.token(Role.SITE_ADMINISTRATOR, f"of-{site}", site)
    assert ask(world, method, f"/v1/images/good/certifications/{site}", token=administrator).is_success


def put(world: World, key: str = "demo", **changes: object) -> None:
    guests = [{"name": f"g{number}", "host": f"{site}-h1", "image": "good"} for number, site in GUESTS]
    made = {"owner": "alice", "subnets": ["10.0.0.0/24"], "guests": guests} | changes
    world.put(key, ClusterSpec.model_validate(made))
    world.settle()


GUESTS = ((1, "brno"), (2, "praha"))


def publish(world: World, key: str = "demo", **changes: object) -> dict[str, Any]:
    answer = ask(
        world, "POST", f"/v1/clusters/{key}/publications", {"guest": "g1", "port": 22} | changes, token=token_of(world)
    )
    assert answer.status_code == 201, answer.text
    world.settle()
    return dict(answer.json())


def start_agents(world: World, *gateways: str) -> None:
    world.dead_hosts.difference_update(gateways)
    world.settle()


def places(world: World) -> list[tuple[str, str, int]]:
    views = ask(world, "GET", PUBLICATIONS, token=token_of(world)).json()
    return [(view["gateway"], view["address"], view["port"]) for view in views]


def ports_of(world: World, name: str) -> list[int]:
    return [one.port for segment in world.wanted_of_host(name).segments for one in segment.publications]


def test_another_gateway_of_the_site_publishes_the_same_port(world: World) -> None:
    publish(world)
    assert places(world) == [("brno-gw", "198.51.100.1", 40000)]
    stop_agents(world, "brno-gw")
    assert places(world) == [("brno-gw2", "198.51.100.2", 40000)]
    assert (ports_of(world, "brno-gw"), ports_of(world, "brno-gw2")) == ([], [40000])


def test_sbf_killed_during_a_move_completes_it_after_the_restart(world: World) -> None:
    """SBF is killed at statement 1 of the first deadline sweep, at statement 2 of the second sweep, and so on."""
    publish(world)
    world.dead_hosts.add("brno-gw")
    world.clock.advance(world.service.settings.timing.agent_silence + 1)
    world.confirm_hosts()
    for statement in count(1):
        restart(world)
        try:
            with crash_at(world, statement):
                world.sweep()
            break
        except Crash:
            moved = len(world.audit("publication_moved"))
            assert moved <= 1
            assert places(world) == [
                ("brno-gw2", "198.51.100.2", 40000) if moved else ("brno-gw", "198.51.100.1", 40000)
            ]
    world.settle()
    assert statement > 10
    assert places(world) == [("brno-gw2", "198.51.100.2", 40000)]
    assert (ports_of(world, "brno-gw"), ports_of(world, "brno-gw2")) == ([], [40000])
    assert len(world.audit("publication_moved")) == 1


def restart(world: World) -> None:
    """Restart the service, without the delay after which its sweep can record stale agents."""
    world.service = world.restarted()
    world.service.scheduler.sweep._started = -1e12


def test_the_owner_sees_the_move(world: World) -> None:
    publish(world)
    stop_agents(world, "brno-gw")
    (view,) = ask(world, "GET", PUBLICATIONS, token=token_of(world)).json()
    assert view["moved_from"] == "brno-gw"
    (row,) = world.audit("publication_moved")
    assert (row.element, row.why) == ("brno-gw", "g1:22 from port 40000 of brno-gw to port 40000 of brno-gw2")


def test_the_former_gateway_gets_a_document_without_the_port(world: World) -> None:
    publish(world)
    before = world.element("brno-gw").wanted_revision
    stop_agents(world, "brno-gw")
    assert world.element("brno-gw").wanted_revision > before
    start_agents(world, "brno-gw")
    assert (ports_of(world, "brno-gw"), places(world)[0][0]) == ([], "brno-gw2")


def test_a_taken_port_is_replaced_by_a_free_port(world: World) -> None:
    stop_agents(world, "brno-gw")
    publish(world, port=80)
    start_agents(world, "brno-gw")
    stop_agents(world, "brno-gw2")
    start_agents(world, "brno-gw2")
    publish(world, port=22)
    stop_agents(world, "brno-gw")
    assert sorted(ports_of(world, "brno-gw2")) == [40000, 40001]


def test_a_publication_moves_to_a_certifying_site_of_the_cluster(world: World) -> None:
    certify(world, "praha")
    publish(world, site="brno")
    stop_agents(world, "brno-gw", "brno-gw2")
    assert places(world) == [("praha-gw", "198.51.100.3", 40000)]


def test_a_site_that_did_not_certify_the_images_publishes_nothing(world: World) -> None:
    publish(world)
    stop_agents(world, "brno-gw", "brno-gw2")
    assert ports_of(world, "praha-gw") == []


def test_a_cluster_gets_no_gateway_whose_ports_are_all_taken(world: World) -> None:
    certify(world, "praha")
    put(world, "other")
    for port in (1, 2, 3):
        publish(world, "other", guest="g2", port=port, site="praha")
    publish(world, site="brno")
    stop_agents(world, "brno-gw", "brno-gw2")
    assert [segment.key for segment in world.wanted_of_host("praha-gw").segments] == ["other"]


def test_without_another_gateway_a_publication_waits(world: World) -> None:
    publish(world)
    stop_agents(world, "brno-gw", "brno-gw2")
    (place,) = places(world)
    start_agents(world, place[0])
    assert (places(world), ports_of(world, place[0])) == ([place], [40000])


def test_a_gateway_that_returns_takes_publications_over(world: World) -> None:
    stop_agents(world, "brno-gw2")
    publish(world)
    stop_agents(world, "brno-gw")
    assert places(world)[0][0] == "brno-gw"
    start_agents(world, "brno-gw2")
    assert places(world)[0][0] == "brno-gw2"


def test_a_new_gateway_takes_publications_over(world: World) -> None:
    publish(world)
    stop_agents(world, "brno-gw", "brno-gw2")
    names = ("brno-gw", "brno-gw2", "brno-gw3")
    made = [gateway(name, outside=outside(number)) for number, name in enumerate(names, start=1)]
    world.put_topology(topology_with_gateways(brno=tuple(made)))
    world.settle()
    assert places(world)[0][0] == "brno-gw3"


def test_a_publication_waits_for_a_drained_gateway(world: World) -> None:
    """An administrator removes a gateway's key ``outside`` from the topology, and later adds the key again.

    The gateway's agent runs during this time, so the publication does not move, and keeps its address.
    """
    publish(world)
    drained, others = gateway("brno-gw"), gateway("brno-gw2", outside=outside(2))
    world.put_topology(topology_with_gateways(brno=(drained, others)))
    world.settle()
    assert [ports_of(world, name) for name in ("brno-gw", "brno-gw2")] == [[], []]
    world.put_topology(topology_with_gateways(brno=(drained | {"outside": outside(1)}, others)))
    world.settle()
    assert (places(world), ports_of(world, "brno-gw")) == ([("brno-gw", "198.51.100.1", 40000)], [40000])


def test_the_router_and_its_publications_move_together(world: World) -> None:
    put(world, "routed", router="gateway")
    publish(world, "routed")
    stop_agents(world, "brno-gw")
    (segment,) = [one for one in world.wanted_of_host("brno-gw2").segments if one.key == "routed"]
    assert (segment.router is not None, len(segment.publications)) == (True, 1)


def test_a_suspended_publication_stays_suspended(world: World) -> None:
    publish(world)
    certify(world, "brno", "DELETE")
    certify(world, "praha")
    stop_agents(world, "brno-gw")
    assert [ports_of(world, name) for name in ("brno-gw", "brno-gw2", "praha-gw")] == [[], [], []]


def test_udp_and_tcp_move_independently(world: World) -> None:
    publish(world, port=53)
    publish(world, port=53, protocol="udp")
    stop_agents(world, "brno-gw")
    assert ports_of(world, "brno-gw2") == [40000, 40000]


def test_new_publications_avoid_a_gateway_that_does_not_answer(world: World) -> None:
    publish(world)
    stop_agents(world, "brno-gw")
    publish(world, port=80)
    assert {place[0] for place in places(world)} == {"brno-gw2"}


def test_a_repeated_call_returns_the_moved_publication(world: World) -> None:
    certify(world, "praha")
    publish(world)
    stop_agents(world, "brno-gw", "brno-gw2")
    assert publish(world)["gateway"] == "praha-gw"
    assert [place[0] for place in places(world)] == ["praha-gw"]


def test_an_unreadable_member_does_not_prevent_moves_of_other_networks(world: World) -> None:
    certify(world, "praha")
    put(world, "other")
    guests = [{"name": "m1", "host": "brno-h1", "image": "good"}]
    put(world, "broken", joins="other", subnets=[], guests=guests)
    publish(world, "other")
    publish(world)
    with world.store.change() as unit:
        unit.session.get_one(ClusterRow, world.view("broken").id).resolved = "{"
    stop_agents(world, "brno-gw", "brno-gw2")
    assert ports_of(world, "praha-gw") == [40001]


def test_an_unreadable_cluster_does_not_prevent_other_moves(world: World) -> None:
    put(world, "broken")
    publish(world, "broken")
    publish(world)
    with world.store.change() as unit:
        row = unit.session.get_one(ClusterRow, world.view("broken").id)
        row.resolved = "{"
    stop_agents(world, "brno-gw")
    with world.store.read() as unit:
        found = unit.session.execute(select(PublicationRow.cluster_id, PublicationRow.gateway)).all()
    assert sorted(gateway for _, gateway in found) == ["brno-gw", "brno-gw2"]


@pytest.fixture
def two_places(world: World) -> World:
    """Two gateways of Brno publish the same port of a guest, because the gateway of Praha has failed."""
    certify(world, "praha")
    publish(world, site="brno")
    publish(world, site="praha")
    stop_agents(world, "praha-gw")
    assert [place[0] for place in places(world)] == ["brno-gw", "brno-gw2"]
    return world


def test_a_call_resumes_all_publications_of_the_port_at_the_site(two_places: World) -> None:
    certify(two_places, "brno", "DELETE")
    assert [ports_of(two_places, name) for name in ("brno-gw", "brno-gw2")] == [[], []]
    certify(two_places, "brno")
    publish(two_places, site="brno")
    assert [ports_of(two_places, name) for name in ("brno-gw", "brno-gw2")] == [[40000], [40000]]


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (("41000-41001", "40000-40002"), ("brno-gw2", "198.51.100.2", 40000)),
        (("40000-40002", "41000-41001"), ("brno-gw", "198.51.100.1", 40000)),
        (("41000-41001", "41000-41001"), ("brno-gw", "198.51.100.1", 41000)),
    ],
    ids=["first", "second", "both"],
)
def test_a_call_ends_the_outdated_publications_of_the_port(
    two_places: World, ports: tuple[str, str], expected: tuple[str, str, int]
) -> None:
    brno = (gateway("brno-gw", outside=outside(1, ports[0])), gateway("brno-gw2", outside=outside(2, ports[1])))
    praha = (gateway("praha-gw", outside=outside(3)),)
    two_places.put_topology(topology_with_gateways(brno=brno, praha=praha))
    two_places.settle()
    assert publish(two_places, site="brno")["gateway"] == expected[0]
    assert places(two_places) == [expected]


@pytest.fixture
def ipv6_world(tmp_path: Path) -> Iterator[World]:
    """A cluster ``six`` with an IPv6 guest. Of Brno's three gateways, the first has no public IPv6 address."""
    six = [outside(number) | {"addresses": [f"2001:db8::{number}"]} for number in (2, 3)]
    links = {"brno-gw": outside(1), "brno-gw2": six[0], "brno-gw3": six[1]}
    topology = topology_with_gateways(brno=tuple(gateway(name, outside=link) for name, link in links.items()))
    installation = furnish(make_world(tmp_path), topology)
    body = URL_IMAGE | {"sha256": "0" * 64}
    assert ask(installation, "PUT", "/v1/images/good", body, token=token_of(installation)).is_success
    certify(installation, "brno")
    put(installation, "six", subnets=["fd00::/64"], guests=[{"name": "g1", "host": "brno-h1", "image": "good"}])
    yield installation
    installation.close()


def test_a_gateway_with_the_guests_ip_version_publishes_the_guest(ipv6_world: World) -> None:
    view = publish(ipv6_world, "six")
    assert (view["gateway"], view["address"]) == ("brno-gw2", "2001:db8::2")
    (segment,) = (one for one in ipv6_world.wanted_of_host("brno-gw").segments if one.key == "six")
    assert segment.gateway_addresses == ()  # an unused gateway gets no interface in the network


def test_a_move_skips_gateways_without_the_guests_ip_version(ipv6_world: World) -> None:
    publish(ipv6_world, "six")
    stop_agents(ipv6_world, "brno-gw2")
    (view,) = ask(ipv6_world, "GET", "/v1/clusters/six/publications", token=token_of(ipv6_world)).json()
    assert (view["gateway"], view["address"]) == ("brno-gw3", "2001:db8::3")
