from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import CSR, grants_of, make_profile
from support.sbf_fakes.world import World, spec

from sbf_service.store.access import vpn_profiles
from sbf_service.store.tables.vpn_tables import VpnProfileRow
from sbf_service.store.unit_of_work import Unit
from virtcloud.model.access import Role
from virtcloud.model.values import Name

PROFILES = "/v1/clusters/demo/vpn/profiles"


def put(world: World, key: str = "demo", **changes: Any) -> None:
    world.put(key, spec("brno-h1", **{"router": "device", **changes}))
    world.settle()


def make_router(world: World, token: str, device: str = "router", key: str = "demo") -> httpx.Response:
    body = {"device": device, "csr": CSR, "router": True}
    return ask(world, "POST", f"/v1/clusters/{key}/vpn/profiles", body, token=token)


def test_a_router_has_the_router_addresses(world: World, alice: str) -> None:
    put(world)
    made = make_router(world, alice)
    assert made.status_code == 201, made.text
    (grant,) = grants_of(world, "brno-gw")
    assert grant.router
    assert grant.addresses == tuple(made.json()["addresses"]) == world.view("demo").spec.router_addresses != ()


def test_no_other_device_has_the_router_addresses(world: World, alice: str) -> None:
    put(world)
    addresses = make_profile(world, alice).json()["addresses"]
    assert not set(addresses) & set(world.view("demo").spec.router_addresses or ())


def test_the_refusal_of_a_second_router_names_the_first(world: World, alice: str) -> None:
    put(world)
    make_router(world, alice)
    status, _, text = problem(make_router(world, alice, "other"))
    assert (status, "got device router of alice: revoke its profile" in text) == (409, True), text


def test_another_device_can_replace_a_revoked_router(world: World, alice: str) -> None:
    put(world)
    first = make_router(world, alice).json()
    ask(world, "DELETE", f"{PROFILES}/{first['id']}", token=alice)
    assert make_router(world, alice, "other").json()["addresses"] == first["addresses"]


def test_a_new_profile_of_the_router_replaces_the_former(world: World, alice: str) -> None:
    put(world)
    first = make_router(world, alice).json()
    assert make_router(world, alice).json()["addresses"] == first["addresses"]


def test_a_router_that_becomes_a_device_gets_other_addresses(world: World, alice: str) -> None:
    put(world)
    router = make_router(world, alice, "laptop").json()
    device = make_profile(world, alice).json()
    assert not set(router["addresses"]) & set(device["addresses"])
    assert make_router(world, alice, "laptop").json()["addresses"] == router["addresses"]


def test_a_cluster_without_a_router_is_refused(world: World, alice: str) -> None:
    put(world, router=None)
    status, _, text = problem(make_router(world, alice))
    assert (status, "create the cluster with --router device" in text) == (422, True), text


def test_an_invited_user_cannot_become_the_router(world: World, alice: str) -> None:
    put(world)
    ask(world, "PUT", "/v1/clusters/demo/vpn/invitations/bob", token=alice)
    status, _, text = problem(make_router(world, world.token(Role.USER, "bob")))
    assert (status, "bob may not make a device the router" in text) == (403, True), text


def test_the_owner_of_a_member_cannot_become_the_router(world: World) -> None:
    put(world, shares_with=["bob"])
    world.put("guest", spec(owner="bob", joins="demo", hosts=("praha-h1",)))
    world.settle()
    status, _, text = problem(make_router(world, world.token(Role.USER, "bob"), key="guest"))
    assert (status, "only the owner of demo" in text) == (422, True), text


def test_the_database_refuses_a_second_router(world: World, alice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test disables ``check_router``, and stores no addresses for the second router, so no address is in use twice.

    The constraint of the database refuses the second router nevertheless.
    """

    def insert(unit: Unit, created: VpnProfileRow, gateways: Sequence[Name], _: object) -> None:
        original(unit, created, gateways, ())

    put(world)
    make_router(world, alice)
    original = vpn_profiles._insert
    monkeypatch.setattr(vpn_profiles, "check_router", lambda *_: None)
    monkeypatch.setattr(vpn_profiles, "_insert", insert)
    assert make_router(world, alice, "other").status_code == 409


def test_the_audit_names_the_router(world: World, alice: str) -> None:
    put(world)
    make_router(world, alice)
    (row,) = world.audit("vpn_profile_created")
    assert "for device router, router of the network" in row.why
