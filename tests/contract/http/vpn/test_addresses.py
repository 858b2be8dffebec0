import threading

import pytest
from support.sbf_fakes.http_calls import problem
from support.sbf_fakes.vpn_world import CSR, devices, grants_of, make_profile, put
from support.sbf_fakes.world import World, spec

from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.vpn_authority import parse_device_key
from sbf_service.store.access import vpn_profiles
from sbf_service.store.access.vpn_profiles import NewDevice
from virtcloud.model.errors import Conflict, GuestTaken, NoAddressFree
from virtcloud.model.values import Name, UserName

PROFILES = "/v1/clusters/demo/vpn/profiles"


def test_a_device_keeps_its_addresses_in_a_new_profile(world: World, alice: str) -> None:
    put(world)
    first = make_profile(world, alice).json()
    make_profile(world, alice, device="phone")
    second = make_profile(world, alice).json()
    assert second["addresses"] == first["addresses"]
    assert {grant.profile for grant in grants_of(world, "brno-gw")} & {first["id"], second["id"]} == {second["id"]}


def test_devices_get_addresses_below_those_of_hosts(world: World, alice: str) -> None:
    """Hosts use the last 8 addresses of a subnet for job access. Devices get these addresses only after all others."""
    put(world)
    assert make_profile(world, alice).json()["addresses"][0] == "10.0.0.246/24"
    assert make_profile(world, alice, device="phone").json()["addresses"][0] == "10.0.0.245/24"


def test_a_device_does_not_change_the_addresses_of_later_guests(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    guest = {"name": "m1", "host": "brno-h2", "image": "debian"}
    world.put("more", spec(guests=[guest], joins="demo"))
    assert world.view("more").spec.guests[0].addresses[0] == "10.0.0.2/24"


def test_a_guest_cannot_have_the_address_of_a_device(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    guest = {"name": "m1", "host": "brno-h2", "image": "debian", "addresses": ["10.0.0.246/24"]}
    with pytest.raises(GuestTaken, match="which device laptop of alice has in the same network"):
        world.put("more", spec(guests=[guest], joins="demo"))


def test_the_error_names_a_full_subnet(world: World, alice: str) -> None:
    put(world, subnets=["10.0.0.0/30"])
    assert make_profile(world, alice).json()["addresses"] == ["10.0.0.2/30"]
    failed = make_profile(world, alice, device="phone")
    assert problem(failed)[1] == NoAddressFree.slug
    expected = "subnet 10.0.0.0/30 for the device, got 0: the network has 1 guest and 1 device address; "
    assert expected in problem(failed)[2]
    assert devices(world) == ["laptop"]


def test_a_network_without_subnets_assigns_no_addresses(world: World, alice: str) -> None:
    put(world, subnets=[])
    assert make_profile(world, alice).json()["addresses"] == []


def test_simultaneous_profiles_get_different_addresses(world: World) -> None:
    """Two replicas create profiles at the same time, unless a lock delays one of them (see MeetingClock)."""
    world.clock.stands = False
    put(world, vpn=True)
    results: list[object] = []

    def create(store: object, name: str) -> None:
        device = NewDevice(name, UserName("alice"), Name(name), parse_device_key(CSR))
        try:
            with store.change(who="alice") as unit:  # type: ignore[attr-defined]
                results.append(vpn_profiles.create_profile(unit, "demo", device, RequestLimits()).addresses)
        except Conflict as error:
            results.append(error)

    threads = [
        threading.Thread(target=create, args=(store, f"device{number}"))
        for number, store in enumerate(world.meeting_stores())
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(set(map(str, results))) == 2
    granted = [address for grant in grants_of(world, "brno-gw") for address in grant.addresses]
    assert len(granted) == len(set(granted)) > 0


def test_the_database_refuses_a_duplicate_address(world: World, alice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database constraint prevents duplicates even if the choice of addresses has a bug."""
    put(world)
    first = make_profile(world, alice).json()["addresses"]
    monkeypatch.setattr(vpn_profiles, "choose_device_addresses", lambda _network: tuple(first))
    assert make_profile(world, alice, device="phone").status_code == 409
    assert devices(world) == ["laptop"]
