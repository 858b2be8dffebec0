"""Tests of VPN profiles over HTTP: creation, grants in the gateways' wanted documents, and revocation."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sbf_fakes.http_calls import ask
from sbf_fakes.vpn_world import furnish, grants_of, make_profile
from sbf_fakes.world import World, make_world, spec

from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    installation = furnish(make_world(tmp_path))
    yield installation
    installation.close()


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")


def put(world: World, key: str = "demo", *hosts: str, **changes: object) -> None:
    world.put(key, spec(*(hosts or ("brno-h1",)), **changes))
    world.settle()


def test_a_profile_is_a_grant_on_the_cluster_s_gateways(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice)
    assert made.status_code == 201, made.text
    profile = made.json()
    (grant,) = grants_of(world, "brno-gw")
    assert (grant.profile, grant.fingerprint) == (profile["id"], profile["fingerprint"])
    assert grants_of(world, "brno-gw2") == (grant,)
    assert profile["gateways"] == ["brno-gw", "brno-gw2"]
    assert [(remote["gateway"], remote["protocol"], remote["port"]) for remote in profile["remotes"]] == [
        ("brno-gw", "udp", 1194),
        ("brno-gw2", "udp", 1194),
        ("brno-gw", "tcp", 443),
        ("brno-gw2", "tcp", 443),
    ]
    assert world.wanted_of_host("brno-gw").vpn is not None


def test_a_gateway_learns_the_addresses_that_devices_must_not_use(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    (segment,) = world.wanted_of_host("brno-gw").segments
    (host,) = world.wanted_of_host("brno-h1").segments
    assert segment.guest_macs == tuple(sorted(guest.mac for guest in host.guests)) != ()


def test_a_profile_is_pending_until_all_elements_confirmed(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice).json()
    assert {element["element"] for element in made["pending"]} == {"brno-gw", "brno-gw2", "brno-sw1"}
    world.settle()
    assert ask(world, "GET", f"/v1/clusters/demo/vpn/profiles/{made['id']}", token=alice).json()["pending"] == []
    assert world.view("demo").state is ClusterState.ACTIVE
