from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.vpn_world import furnish, grants_of, make_profile
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.clusters.clusters import require_cluster
from sbf_service.store.networks.gateway_addresses import ensure_gateway_addresses
from virtcloud.model.access import Role
from virtcloud.model.errors import GuestTaken, NoAddressFree
from virtcloud.model.gateway_access import GATEWAY_ADDRESSES, derive_gateway_mac
from virtcloud.model.values import Address, Name
from virtcloud.model.wanted import Segment


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = furnish(make_world(tmp_path))
    yield installation
    installation.close()


def address(world: World, gateway: str = "brno-gw", key: str = "demo") -> tuple[str, ...]:
    with world.service.store.change() as unit:
        return ensure_gateway_addresses(unit, require_cluster(unit, key), Name(gateway))


def put(world: World, key: str = "demo", **changes: Any) -> None:
    world.put(key, spec("brno-h1", vpn=True, **changes))
    world.settle()


def segment(world: World, gateway: str = "brno-gw") -> Segment:
    return next(one for one in world.wanted_of_host(gateway).segments if one.key == "demo")


def test_a_gateway_gets_one_address_of_each_subnet(world: World) -> None:
    put(world, subnets=["10.0.0.0/24", "fd00::/64"])
    assert address(world) == ("10.0.0.246/24", "fd00::ffff:ffff:ffff:ff77/64")


def test_a_gateway_keeps_its_addresses(world: World) -> None:
    put(world)
    assert address(world) == address(world)


def test_two_gateways_have_different_addresses(world: World) -> None:
    put(world)
    assert not set(address(world)) & set(address(world, "brno-gw2"))


def test_the_wanted_document_has_only_the_gateways_own_addresses(world: World) -> None:
    put(world)
    addresses = address(world)
    assert segment(world).gateway_addresses == addresses
    assert segment(world, "brno-gw2").gateway_addresses == ()


def test_gateway_addresses_require_an_agent_that_knows_them(world: World) -> None:
    put(world)
    assert GATEWAY_ADDRESSES not in segment(world).requires
    address(world)
    assert GATEWAY_ADDRESSES in segment(world).requires


def test_new_addresses_are_a_new_revision(world: World) -> None:
    put(world)
    before = world.element("brno-gw").wanted_revision
    address(world)
    assert world.element("brno-gw").wanted_revision == before + 1


def test_no_device_gets_a_gateways_address(world: World) -> None:
    put(world)
    addresses = address(world)
    make_profile(world, world.token(Role.USER, "alice"))
    (grant,) = grants_of(world, "brno-gw")
    assert not set(grant.addresses) & set(addresses)


def test_no_guest_gets_a_gateways_mac_address(world: World) -> None:
    put(world)
    mac = derive_gateway_mac(segment(world).id, Address(address(world)[0]))
    guest = {"name": "m1", "host": "brno-h2", "image": "debian", "mac": mac}
    message = f"guest m1 has the MAC address {mac}, which gateway brno-gw has in the same network: choose another"
    with pytest.raises(GuestTaken, match=message):
        put(world, "member", joins="demo", guests=[guest])


def test_a_gateway_gets_no_address_with_a_guests_mac_address(world: World) -> None:
    put(world, subnets=["10.0.0.0/24"])
    mac = derive_gateway_mac(segment(world).id, Address("10.0.0.246/24"))
    guest = {"name": "m1", "host": "brno-h2", "image": "debian", "mac": mac}
    put(world, "member", joins="demo", guests=[guest])
    assert address(world) == ("10.0.0.245/24",)


def test_no_guest_gets_a_gateways_address(world: World) -> None:
    put(world)
    guest = {"name": "m1", "host": "brno-h2", "image": "debian", "addresses": [address(world)[0]]}
    with pytest.raises(GuestTaken, match="which gateway brno-gw has in the same network"):
        world.put("more", spec(guests=[guest], joins="demo"))


def test_the_error_about_a_full_subnet_names_the_gateway(world: World) -> None:
    put(world, subnets=["10.0.0.0/30"])
    address(world)
    with pytest.raises(NoAddressFree, match=r"for gateway brno-gw2, got 0.* and 1 gateway address; "):
        address(world, "brno-gw2")


def test_an_ended_network_frees_its_gateways_addresses(world: World) -> None:
    put(world)
    first = address(world)
    world.delete("demo")
    world.settle()
    put(world)
    assert segment(world).gateway_addresses == ()
    assert address(world)[0] == first[0]


def test_only_the_networks_first_cluster_shows_gateway_and_device_addresses(world: World) -> None:
    put(world, subnets=["10.0.0.0/24"])
    gateway = address(world)[0].partition("/")[0]
    make_profile(world, world.token(Role.USER, "alice"))
    (grant,) = grants_of(world, "brno-gw")
    world.put("more", spec(hosts=["brno-h2"], joins="demo"))
    root, member = ask(world, "GET", "/v1/clusters?network=demo").json()
    assert root["other_addresses"] == [gateway, grant.addresses[0].partition("/")[0]]
    assert "other_addresses" not in member
