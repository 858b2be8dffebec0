"""Tests that SBF records guests' addresses with their clusters, and frees the addresses of ended clusters."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.world import World, spec

from sbf_service.store.clusters.cluster_creation import put_cluster
from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterRequest, ClusterSpec
from virtcloud.model.errors import BadInput, NoAddressFree, OtherSpec

DEMO = spec("brno-h1", "praha-h1")


def member(name: str, **changes: object) -> ClusterSpec:
    guests = [{"name": name, "host": "brno-h2", "image": "debian"}]
    return ClusterSpec.model_validate({"owner": "alice", "joins": "demo", "guests": guests} | changes)


def ipv4(world: World, key: str) -> list[str]:
    return [str(guest.addresses[0]) for guest in world.view(key).spec.guests]


def test_views_and_agents_have_the_assigned_addresses(world: World) -> None:
    view = world.put("demo", DEMO).view
    (segment,) = world.wanted_of_host("praha-h1").segments
    assert ipv4(world, "demo") == ["10.0.0.1/24", "10.0.0.2/24"]
    assert segment.guests[0].addresses == view.spec.guests[1].addresses == world.view("demo").spec.guests[1].addresses
    assert view.spec.subnets == ("10.0.0.0/24", segment.guests[0].addresses[1].replace("::2/", "::/"))


def test_a_dry_run_shows_the_addresses_of_the_cluster(world: World) -> None:
    body = {"spec": DEMO.model_dump(mode="json")}
    elements = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", body).json()["elements"]
    shown = [guest["addresses"] for one in elements if one["host"] for guest in one["host"]["add"][0]["guests"]]
    world.put("demo", DEMO)
    assert shown == [list(guest.addresses) for guest in world.view("demo").spec.guests]


def test_repeating_the_requested_or_returned_spec_changes_nothing(world: World) -> None:
    shown = world.put("demo", DEMO).view.spec
    of_version_0_1 = shown.model_copy(update={"subnets": None})
    assert [world.put("demo", again).created for again in (DEMO, shown, of_version_0_1)] == [False] * 3
    with pytest.raises(OtherSpec, match="differs from this request in subnets"):
        world.put("demo", DEMO.model_copy(update={"subnets": ()}))


def test_special_addresses_are_refused(world: World) -> None:
    with pytest.raises(BadInput, match=r"which has IPv4-mapped addresses \(::ffff:0:0/96\): choose another subnet"):
        world.put("demo", spec("brno-h1", subnets=["::ffff:10.0.0.0/120"]))
    assert ask(world, "GET", "/v1/clusters").json() == []


def test_members_get_the_next_addresses(world: World) -> None:
    world.put("demo", DEMO)
    for name in ("m1", "m2"):
        world.put(name, member(name))
    assert [*ipv4(world, "m1"), *ipv4(world, "m2")] == ["10.0.0.3/24", "10.0.0.4/24"]
    assert world.view("m1").spec.guests[0].addresses[1].endswith("::3/64")


def test_addresses_are_free_after_the_end_of_their_cluster(world: World) -> None:
    world.put("demo", spec("brno-h1", subnets=["10.1.0.0/30"]))
    world.put("m1", member("m1"))
    with pytest.raises(NoAddressFree):
        world.put("m2", member("m2"))
    world.settle()
    world.delete("m1")
    world.settle()
    world.put("m2", member("m2"))
    assert ipv4(world, "m2") == ["10.1.0.2/30"]


def test_simultaneous_members_get_different_addresses(world: World) -> None:
    world.put("demo", DEMO)
    names = [f"m{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: world.put(name, member(name)), names))
    assert sorted(address for name in names for address in ipv4(world, name)) == sorted(
        f"10.0.0.{number}/24" for number in range(3, 11)
    )


def test_the_last_address_goes_to_one_of_two_members(world: World) -> None:
    world.put("demo", spec("brno-h1", subnets=["10.1.0.0/30"]))
    stores = world.meeting_stores()

    def join(number: int) -> str:
        name = f"m{number}"
        try:
            put_cluster(stores[number], name, ClusterRequest(spec=member(name)), world.service.reserved, "alice")
        except NoAddressFree:
            return "refused"
        return "joined"

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(join, range(2))) == ["joined", "refused"]


def test_an_upgrade_assigns_no_addresses_to_existing_guests(world: World) -> None:
    """A cluster from before the upgrade has no value in the column ``resolved``. Its guests get no addresses."""
    world.put("demo", DEMO)
    with world.store.change() as unit:
        unit.session.query(ClusterRow).update({"resolved": None})
    world.put("m1", member("m1"))
    assert [guest.addresses for key in ("demo", "m1") for guest in world.view(key).spec.guests] == [(), (), ()]
    assert not world.put("demo", DEMO).created


def test_sbf_assigns_no_addresses_to_guests_of_jobs(world: World) -> None:
    token = world.token(Role.SCHEDULER, "pbssrv")
    body = {"spec": DEMO.model_dump(mode="json"), "attempt": 0}
    assert ask(world, "PUT", "/v1/clusters/12.pbssrv", body, token=token).status_code == 201
    assert [guest.addresses for guest in world.view("12.pbssrv").spec.guests] == [(), ()]


def test_clients_of_version_0_1_get_addresses_and_no_subnets(world: World) -> None:
    body = {"spec": DEMO.model_dump(mode="json", exclude={"subnets"})}
    answer = ask(world, "PUT", "/v1/clusters/demo", body, headers={"user-agent": "python-httpx/0.28.1"}).json()
    assert "subnets" not in answer["spec"]
    assert answer["spec"]["guests"][0]["addresses"][0] == "10.0.0.1/24"
