"""Tests of publications (public ports of guests) over HTTP.

A *suspended* publication is closed, because a guest's image is not certified. The user removes the reason and repeats
the call to open the port.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.elements.revisions import require_element
from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterSpec
from virtcloud.model.errors import Conflict
from virtcloud.model.gateway_access import GATEWAY_PUBLICATIONS, UDP_PUBLICATIONS, PublishedPort

OUTSIDE = {"interface": "eth1", "addresses": ["198.51.100.7"], "publish_ports": "40000-40001"}
URL_IMAGE = {"size": 1, "format": "tar", "architecture": "x86_64", "url": "https://example.org/a.tar"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Brno's gateway can publish two ports. Praha's gateway can publish no port.

    Image ``good`` is certified for Brno. Image ``own`` is not certified.
    """
    topology = topology_with_gateways(brno=(gateway("brno-gw", outside=OUTSIDE),), praha=(gateway("praha-gw"),))
    installation = furnish(make_world(tmp_path), topology)
    for number, image in enumerate(("good", "own")):
        body = URL_IMAGE | {"sha256": str(number) * 64}
        assert ask(installation, "PUT", f"/v1/images/{image}", body, token=token_of(installation)).is_success
    certify(installation)
    yield installation
    installation.close()


def token_of(world: World, user: str = "alice") -> str:
    return world.token(Role.USER, user)


def certify(world: World, method: str = "PUT") -> None:
    ivo = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert ask(world, method, "/v1/images/good/certifications/brno", token=ivo).is_success


def put(world: World, key: str = "demo", image: str = "good", host: str = "brno-h1", **changes: object) -> None:
    name = "g1" if key == "demo" else f"{key}1"
    subnets: dict[str, object] = {} if "joins" in changes else {"subnets": ["10.0.0.0/24"]}
    made = subnets | changes | {"owner": "alice", "guests": [{"name": name, "host": host, "image": image}]}
    world.put(key, ClusterSpec.model_validate(made))
    world.settle()


def publish(world: World, key: str = "demo", user: str = "alice", **changes: object) -> httpx.Response:
    body = {"guest": "g1", "port": 22} | changes
    return ask(world, "POST", f"/v1/clusters/{key}/publications", body, token=token_of(world, user))


def published(world: World, key: str = "demo") -> tuple[PublishedPort, ...]:
    segments = world.wanted_of_host("brno-gw").segments
    return next((segment.publications for segment in segments if segment.key == key), ())


def suspensions(world: World, key: str = "demo") -> list[str | None]:
    answer = ask(world, "GET", f"/v1/clusters/{key}/publications", token=token_of(world))
    return [view["suspended"] for view in answer.json()]


def revision(world: World) -> int:
    with world.service.store.read() as unit:
        return require_element(unit, "brno-gw").wanted_revision


def test_the_gateway_learns_where_the_guest_is(world: World) -> None:
    put(world)
    answer = publish(world)
    assert answer.status_code == 201, answer.text
    view = answer.json()
    assert (view["address"], view["port"], view["created_by"]) == ("198.51.100.7", 40000, "alice")
    (found,) = published(world)
    assert (str(found.guest_address), found.guest_port, found.interface) == ("10.0.0.1", 22, "eth1")
    (segment,) = world.wanted_of_host("brno-gw").segments
    assert GATEWAY_PUBLICATIONS in segment.requires
    assert found.expires_at == world.view("demo").lease_ends


def test_a_repeated_call_changes_nothing(world: World) -> None:
    put(world)
    first, before = publish(world).json(), revision(world)
    assert (publish(world).json(), revision(world)) == (first, before)


@pytest.mark.parametrize("image", ["own", "debian"])
def test_an_uncertified_guest_is_refused_by_name(world: World, image: str) -> None:
    put(world, image=image)
    status, kind, detail = problem(publish(world))
    assert (status, kind) == (403, "not-admitted")
    assert f"g1 of cluster demo (image {image})" in detail
    assert published(world) == ()


def test_a_hosts_own_image_with_a_certified_name_is_refused(world: World) -> None:
    ask(world, "DELETE", "/v1/images/good", token=token_of(world))
    put(world)
    assert ask(world, "PUT", "/v1/images/good", URL_IMAGE | {"sha256": "0" * 64}, token=token_of(world)).is_success
    certify(world)
    assert problem(publish(world))[:2] == (403, "not-admitted")


def test_the_error_names_the_sites_that_publish_ports(world: World) -> None:
    put(world)
    status, kind, detail = problem(publish(world, site="praha"))
    assert (status, kind) == (409, "no-gateway")
    assert "sites that publish ports: brno" in detail


def test_an_exhausted_range_is_a_named_error(world: World) -> None:
    put(world)
    for port in (22, 80):
        assert publish(world, port=port).is_success
    assert problem(publish(world, port=443))[:2] == (409, "no-port-free")


def test_a_cluster_has_a_limited_number_of_publications(world: World) -> None:
    put(world)
    limits = world.service.settings.limits.model_copy(update={"publications": 1})
    object.__setattr__(world.service, "settings", world.service.settings.model_copy(update={"limits": limits}))
    publish(world)
    assert problem(publish(world, port=80))[:2] == (422, "beyond-limit")


def test_an_unknown_guest_is_refused(world: World) -> None:
    put(world)
    assert problem(publish(world, guest="g9"))[:2] == (404, "not-found")


def test_a_stranger_publishes_nothing(world: World) -> None:
    put(world)
    assert problem(publish(world, user="bob"))[0] == 404
    assert published(world) == ()


def test_an_invited_user_publishes_nothing(world: World) -> None:
    put(world)
    assert ask(world, "PUT", "/v1/clusters/demo/vpn/invitations/bob", token=token_of(world)).is_success
    assert problem(publish(world, user="bob"))[0] in {403, 404}


def test_an_uncertified_member_suspends_the_publication(world: World) -> None:
    put(world)
    publish(world)
    put(world, "other", "own", joins="demo")
    assert published(world) == ()
    assert "other1 of cluster other (image own)" in (suspensions(world)[0] or "")


def test_an_uncertified_guest_in_quarantine_prevents_publications(world: World) -> None:
    put(world)
    put(world, "other", "own", host="brno-h2", joins="demo")
    world.dead_hosts.add("brno-h2")
    world.delete("other")
    world.settle()
    world.clock.advance(61)
    world.sweep()
    assert world.view("other").quarantined
    status, kind, detail = problem(publish(world))
    assert (status, kind) == (403, "not-admitted")
    assert "other1 of cluster other (image own; the cluster has ended, but the guest may still run);" in detail
    world.dead_hosts.clear()
    world.settle()
    assert publish(world).status_code == 201


def test_a_certified_member_suspends_nothing(world: World) -> None:
    put(world)
    publish(world)
    put(world, "other", joins="demo")
    assert (len(published(world)), suspensions(world)) == (1, [None])


def test_the_transaction_that_creates_a_member_suspends_the_publication(world: World) -> None:
    """When SBF suspends the publication, no element has confirmed the member."""
    put(world)
    publish(world)
    world.settle()
    before = revision(world)
    world.put("other", spec(guests=[{"name": "o1", "host": "brno-h1", "image": "own"}], joins="demo"))
    assert published(world) == ()
    assert revision(world) > before


def test_a_suspended_publication_stays_suspended_until_the_call_is_repeated(world: World) -> None:
    put(world)
    port = publish(world).json()["port"]
    put(world, "other", "own", joins="demo")
    assert problem(publish(world))[:2] == (403, "not-admitted")
    world.delete("other")
    world.settle()
    assert published(world) == ()
    assert publish(world).json()["port"] == port
    assert (len(published(world)), suspensions(world)) == (1, [None])


def test_a_lost_certification_suspends_the_publication(world: World) -> None:
    put(world)
    publish(world)
    certify(world, "DELETE")
    assert published(world) == ()
    assert "image good" in (suspensions(world)[0] or "")


def test_a_lost_certification_suspends_unreadable_networks(world: World) -> None:
    """The stored spec of the member ``broken`` is invalid JSON, so SBF cannot read which images its guests use."""
    put(world)
    put(world, "broken", joins="demo", subnets=[])
    publish(world)
    with world.store.change() as unit:
        unit.session.get_one(ClusterRow, world.view("broken").id).resolved = "{"
    certify(world, "DELETE")
    (view,) = ask(world, "GET", "/v1/clusters/demo/publications").json()
    assert view["suspended"].startswith("SBF cannot read the images of the network's guests")


def test_the_owner_ends_a_publication(world: World) -> None:
    put(world)
    publish(world)
    path = "/v1/clusters/demo/publications/g1/22"
    assert [view["port"] for view in ask(world, "DELETE", path, token=token_of(world)).json()] == [40000]
    assert published(world) == ()
    assert ask(world, "DELETE", path, token=token_of(world)).json() == []


@pytest.mark.parametrize("end", ["delete", "lease"])
def test_a_publication_ends_with_its_cluster(world: World, end: str) -> None:
    put(world, lease_s=600)
    publish(world)
    if end == "delete":
        world.delete("demo")
    else:
        world.clock.advance(601)
        world.settle()
    assert published(world) == ()
    assert suspensions(world) == []


def test_the_publication_of_an_ending_member_leaves_the_networks_gateway(world: World) -> None:
    put(world)
    put(world, "other", joins="demo")
    assert publish(world, "other", guest="other1").is_success
    assert len(published(world)) == 1
    world.settle()
    before = revision(world)
    world.delete("other")
    assert published(world) == ()
    assert revision(world) > before


def test_a_port_removed_from_the_topology_is_not_published(world: World) -> None:
    put(world)
    publish(world)
    changed = OUTSIDE | {"publish_ports": "50000-50001"}
    topology = topology_with_gateways(brno=(gateway("brno-gw", outside=changed),), praha=(gateway("praha-gw"),))
    world.put_topology(topology)
    assert published(world) == ()
    assert "no longer publishes port 40000" in (suspensions(world)[0] or "")


@pytest.mark.parametrize(
    "drained",
    [{"vpn": {"address": "brno-gw.example.org"}}, {"vpn": None}, None],
    ids=["other role", "no role", "removed"],
)
def test_a_gateway_that_returns_publishes_again(world: World, drained: dict[str, object] | None) -> None:
    put(world)
    publish(world)
    world.settle()
    praha = (gateway("praha-gw"),)
    if drained is None:
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", vpn=None),), praha=praha))
        world.settle()
        world.put_topology(topology_with_gateways(praha=praha))
    else:
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", **drained),), praha=praha))
    world.settle()
    assert "no longer publishes port 40000" in (suspensions(world)[0] or "")
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", outside=OUTSIDE),), praha=praha))
    world.settle()
    assert ([one.port for one in published(world)], suspensions(world)) == ([40000], [None])


def remove_gateway(world: World) -> None:
    for brno in ((gateway("brno-gw", vpn=None),), ()):
        world.put_topology(topology_with_gateways(brno=brno, praha=(gateway("praha-gw"),)))
        world.settle()


@pytest.mark.parametrize("change", ["revoked certification", "uncertified member"])
def test_a_gateway_that_returns_publishes_no_uncertified_guest(world: World, change: str) -> None:
    put(world)
    publish(world)
    remove_gateway(world)
    if change == "uncertified member":
        put(world, "extra", image="own", joins="demo")
    else:
        certify(world, "DELETE")
    world.put_topology(
        topology_with_gateways(brno=(gateway("brno-gw", outside=OUTSIDE),), praha=(gateway("praha-gw"),))
    )
    world.settle()
    assert published(world) == ()
    assert f"image {'own' if change == 'uncertified member' else 'good'}" in (suspensions(world)[0] or "")


def test_a_moved_gateway_needs_certifications_for_its_new_site(world: World) -> None:
    put(world, sites=["praha"])
    publish(world)
    remove_gateway(world)
    world.put_topology(topology_with_gateways(praha=(gateway("praha-gw"), gateway("brno-gw", outside=OUTSIDE))))
    world.settle()
    assert published(world) == ()
    assert "praha" in (suspensions(world)[0] or "")


def test_a_removed_gateway_returns_only_to_sites_of_its_clusters(world: World) -> None:
    put(world)
    publish(world)
    remove_gateway(world)
    with pytest.raises(Conflict, match="cluster demo used gateway brno-gw at another site, and is not at praha: "):
        world.put_topology(topology_with_gateways(praha=(gateway("praha-gw"), gateway("brno-gw", outside=OUTSIDE))))


def test_another_call_replaces_a_port_that_the_topology_lacks(world: World) -> None:
    put(world)
    publish(world)
    changed = OUTSIDE | {"publish_ports": "41000-41002"}
    world.put_topology(
        topology_with_gateways(brno=(gateway("brno-gw", outside=changed),), praha=(gateway("praha-gw"),))
    )
    view = publish(world).json()
    assert (view["port"], view["suspended"], suspensions(world)) == (41000, None, [None])
    assert [one.port for one in published(world)] == [41000]


def test_another_call_replaces_a_publication_of_a_removed_gateway(world: World) -> None:
    put(world)
    publish(world)
    praha = (gateway("praha-gw"),)
    for gateways in ((gateway("brno-gw", vpn=None),), (gateway("brno-gw2", outside=OUTSIDE),)):
        world.put_topology(topology_with_gateways(brno=gateways, praha=praha))
        world.settle()
    assert publish(world).json()["gateway"] == "brno-gw2"
    views = ask(world, "GET", "/v1/clusters/demo/publications").json()
    assert [view["gateway"] for view in views] == ["brno-gw2"]


def test_the_audit_log_names_the_user(world: World) -> None:
    put(world)
    publish(world)
    rows = ask(world, "GET", "/v1/audit?cluster=demo", token=token_of(world)).json()
    found = [row for row in (rows["entries"] if isinstance(rows, dict) else rows) if row["what"] == "guest_published"]
    assert [(row["who"], row["element"]) for row in found] == [("alice", "brno-gw")]


def test_a_udp_port_is_published_for_udp(world: World) -> None:
    put(world)
    view = publish(world, port=53, protocol="udp").json()
    assert (view["protocol"], view["port"]) == ("udp", 40000)
    (found,) = published(world)
    assert found.protocol == "udp"
    (segment,) = world.wanted_of_host("brno-gw").segments
    assert UDP_PUBLICATIONS in segment.requires


def test_tcp_and_udp_of_one_port_are_independent(world: World) -> None:
    put(world)
    ports = [publish(world, port=53, protocol=protocol).json()["port"] for protocol in ("udp", "tcp")]
    assert ports == [40000, 40000]
    ended = ask(world, "DELETE", "/v1/clusters/demo/publications/g1/53", token=token_of(world)).json()
    assert [view["protocol"] for view in ended] == ["tcp"]
    assert [one.protocol for one in published(world)] == ["udp"]


def test_an_uncertified_guest_is_not_published_by_udp(world: World) -> None:
    put(world, image="own")
    assert problem(publish(world, port=53, protocol="udp"))[:2] == (403, "not-admitted")


def test_documents_without_udp_publications_have_no_key_protocol(world: World) -> None:
    """An agent of an earlier version does not know a publication's key ``protocol``."""
    put(world)
    publish(world)
    (segment,) = world.wanted_of_host("brno-gw").segments
    assert "protocol" not in segment.model_dump(mode="json")["publications"][0]
    assert UDP_PUBLICATIONS not in segment.requires
