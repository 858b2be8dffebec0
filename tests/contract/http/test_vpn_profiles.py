"""Tests of VPN profiles over HTTP: grants in the gateways' wanted documents, revocation, leases, members and rights."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from sbf_fakes.http_calls import ask, problem
from sbf_fakes.vpn_world import (
    CSR,
    furnish,
    gateway,
    grants_of,
    make_csr,
    make_profile,
    topology_with_gateways,
)
from sbf_fakes.world import World, make_world, spec

from sbf_service.domain.admission import RequestLimits
from sbf_service.domain.vpn_authority import parse_device_key
from sbf_service.store import vpn_profiles
from sbf_service.store.vpn_profiles import NewDevice
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState
from virtcloud.model.errors import Conflict, GuestTaken, NoAddressFree, NoGateway
from virtcloud.model.values import Name, UserName
from virtcloud.model.views import PlacementProgress

PROFILES = "/v1/clusters/demo/vpn/profiles"


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


def revoke(world: World, token: str, profile: str, key: str = "demo") -> httpx.Response:
    return ask(world, "DELETE", f"/v1/clusters/{key}/vpn/profiles/{profile}", token=token)


def invite(world: World, token: str, user: str) -> httpx.Response:
    return ask(world, "PUT", f"/v1/clusters/demo/vpn/invitations/{user}", token=token)


def stop_agent(world: World, gateway: str) -> None:
    """Stop the agent of a gateway. Advance the clock until SBF considers the agent stale."""
    world.dead_hosts.add(gateway)
    world.service.scheduler.sweep.clock = lambda: 1e12
    world.service.scheduler.sweep._started = 0
    world.clock.advance(world.service.settings.timing.agent_silence + 1)
    world.settle()


def devices(world: World, gateway: str = "brno-gw", key: str = "demo") -> list[str]:
    return [grant.device for grant in grants_of(world, gateway, key)]


def test_a_profile_is_a_grant_on_the_clusters_gateways(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice)
    assert made.status_code == 201, made.text
    (grant,) = grants_of(world, "brno-gw")
    assert (grant.profile, grant.fingerprint) == (made.json()["id"], made.json()["fingerprint"])
    assert grants_of(world, "brno-gw2") == (grant,)
    assert grants_of(world, "praha-gw") == ()


def test_a_profile_names_all_udp_servers_before_tcp_servers(world: World, alice: str) -> None:
    put(world)
    remotes = make_profile(world, alice).json()["remotes"]
    assert [(remote["gateway"], remote["protocol"], remote["port"]) for remote in remotes] == [
        ("brno-gw", "udp", 1194),
        ("brno-gw2", "udp", 1194),
        ("brno-gw", "tcp", 443),
        ("brno-gw2", "tcp", 443),
    ]


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
    assert ask(world, "GET", f"{PROFILES}/{made['id']}", token=alice).json()["pending"] == []
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_segment_without_grants_does_not_require_vpn(world: World) -> None:
    put(world, vpn=True)
    (segment,) = world.wanted_of_host("brno-gw").segments
    assert (segment.requires, segment.grants) == ((), ())


def test_a_segment_with_grants_requires_vpn(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    (segment,) = world.wanted_of_host("brno-gw").segments
    assert segment.requires == ("vpn",)
    (of_host,) = world.wanted_of_host("brno-h1").segments
    assert of_host.requires == ()


def test_a_cluster_with_vpn_has_gateways_from_its_creation(world: World) -> None:
    world.put("demo", spec("brno-h1", "praha-h1", vpn=True))
    world.settle()
    assert [part.element for part in world.view("demo").placements if part.kind == "gateway"] == ["brno-gw", "brno-gw2"]


def test_a_cluster_without_profiles_has_no_gateways(world: World) -> None:
    put(world)
    assert world.wanted_of_host("brno-gw").segments == ()


def test_an_unreachable_gateway_is_not_chosen(world: World) -> None:
    stop_agent(world, "brno-gw")
    put(world, vpn=True)
    assert world.view("demo").state is ClusterState.ACTIVE
    assert [part.element for part in world.view("demo").placements if part.kind == "gateway"] == ["brno-gw2"]


def test_a_cluster_is_active_while_one_of_its_gateways_answers(world: World) -> None:
    put(world, vpn=True)
    stop_agent(world, "brno-gw")
    assert world.view("demo").state is ClusterState.ACTIVE
    stop_agent(world, "brno-gw2")
    assert world.view("demo").state is ClusterState.DEGRADED


def test_a_gateway_that_dies_during_set_up_fails_no_cluster(world: World) -> None:
    world.dead_hosts.add("brno-gw")
    world.put("demo", spec("brno-h1", vpn=True))
    assert "brno-gw" in {part.element for part in world.view("demo").placements}
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_new_profile_adds_a_gateway_if_another_died(world: World, alice: str) -> None:
    world.put_topology(topology_with_gateways(brno=tuple(gateway(f"brno-gw{n}") for n in range(3))))
    world.settle()
    put(world, vpn=True)
    stop_agent(world, "brno-gw0")
    assert make_profile(world, alice).json()["gateways"] == ["brno-gw1", "brno-gw2", "brno-gw0"]


def test_a_cluster_without_a_gateway_names_sites_and_gateways(world: World, alice: str) -> None:
    put(world, "demo", "plzen-h1")
    failed = make_profile(world, alice)
    assert problem(failed)[:2] == (409, "no-gateway")
    assert "expected a gateway with an OpenVPN server at plzen, got none" in problem(failed)[2]
    assert "brno-gw at brno, brno-gw2 at brno, praha-gw at praha" in problem(failed)[2]


def test_a_cluster_with_vpn_is_refused_without_a_gateway(world: World) -> None:
    with pytest.raises(NoGateway, match="at plzen"):
        world.put("demo", spec("plzen-h1", vpn=True))


def test_a_dry_run_shows_the_gateways(world: World, alice: str) -> None:
    request = {"spec": spec("brno-h1", vpn=True).model_dump(mode="json")}
    answer = ask(world, "PUT", "/v1/clusters/demo?dry_run=true", request, token=alice).json()
    assert "brno-gw" in {element["element"] for element in answer["elements"]}
    assert world.wanted_of_host("brno-gw").segments == ()


def test_a_revoked_profile_is_no_grant(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice).json()
    world.settle()
    revoked = revoke(world, alice, made["id"]).json()
    assert devices(world) == []
    assert [element["element"] for element in revoked["pending"]] == ["brno-gw", "brno-gw2"]
    world.settle()
    again = revoke(world, alice, made["id"]).json()
    assert (again["revoked_at"], again["pending"]) == (revoked["revoked_at"], [])
    assert len(world.audit("vpn_profile_revoked")) == 1


def test_a_device_keeps_its_addresses_in_a_new_profile(world: World, alice: str) -> None:
    put(world)
    first = make_profile(world, alice).json()
    make_profile(world, alice, device="phone")
    second = make_profile(world, alice).json()
    assert second["addresses"] == first["addresses"]
    assert {grant.profile for grant in grants_of(world, "brno-gw")} & {first["id"], second["id"]} == {second["id"]}


def test_devices_get_addresses_below_those_of_hosts(world: World, alice: str) -> None:
    """Hosts use the last 8 addresses of a subnet for job access (virtcloud/agent/job_access)."""
    put(world)
    assert make_profile(world, alice).json()["addresses"][0] == "10.0.0.246/24"
    assert make_profile(world, alice, device="phone").json()["addresses"][0] == "10.0.0.245/24"


def test_guests_that_join_later_keep_their_order(world: World, alice: str) -> None:
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


def test_a_full_subnet_is_named(world: World, alice: str) -> None:
    put(world, subnets=["10.0.0.0/30"])
    assert make_profile(world, alice).json()["addresses"] == ["10.0.0.2/30"]
    failed = make_profile(world, alice, device="phone")
    assert problem(failed)[1] == NoAddressFree.slug
    assert (
        "subnet 10.0.0.0/30 for the device, got 0: the subnet is used by 1 guest and 1 address of devices"
        in (problem(failed)[2])
    )
    assert devices(world) == ["laptop"]


def test_a_network_without_subnets_gives_no_addresses(world: World, alice: str) -> None:
    put(world, subnets=[])
    assert make_profile(world, alice).json()["addresses"] == []


def test_two_profiles_at_once_have_different_addresses(world: World) -> None:
    """Two replicas create profiles at the same time, as far as locks allow (MeetingClock)."""
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


def test_the_database_refuses_an_address_twice(world: World, alice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database constraint prevents duplicate addresses even if the choice of addresses has a bug."""
    put(world)
    first = make_profile(world, alice).json()["addresses"]
    monkeypatch.setattr(vpn_profiles, "choose_device_addresses", lambda _network: tuple(first))
    assert make_profile(world, alice, device="phone").status_code == 409
    assert devices(world) == ["laptop"]


def test_a_longer_lease_extends_the_grant(world: World, alice: str) -> None:
    put(world, lease_s=3600)
    made = make_profile(world, alice).json()
    world.settle()
    before = world.element("brno-gw").wanted_revision
    ask(world, "POST", "/v1/clusters/demo/lease", {"seconds": 7200}, token=alice)
    (grant,) = grants_of(world, "brno-gw")
    assert grant.expires_at == world.clock.now + timedelta(seconds=7200)
    assert world.element("brno-gw").wanted_revision == before + 1
    (view,) = ask(world, "GET", PROFILES, token=alice).json()
    assert (view["expires_at"], view["lease_ends"] > view["expires_at"]) == (made["expires_at"], True)


def test_a_member_is_cut_off_with_its_network(world: World, alice: str) -> None:
    put(world, lease_s=3600)
    put(world, "more", "brno-h2", joins="demo", lease_s=7200, guests=[], hosts=["brno-h2"])
    make_profile(world, alice, "more")
    (grant,) = grants_of(world, "brno-gw")
    assert grant.expires_at == world.clock.now + timedelta(seconds=3600)


def test_a_draining_cluster_has_no_grants(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice).json()
    world.settle()
    world.delete("demo")
    assert world.view("demo").state is ClusterState.DRAINING
    assert devices(world) == []
    assert ask(world, "GET", f"{PROFILES}/{made['id']}", token=alice).json()["revoked_at"] is not None
    assert make_profile(world, alice).status_code == 409


def test_the_end_of_a_lease_removes_grants(world: World, alice: str) -> None:
    put(world, lease_s=60)
    make_profile(world, alice)
    world.settle()
    world.clock.advance(61)
    assert "its lease ended" in problem(make_profile(world, alice, device="phone"))[2]
    world.sweep()
    assert devices(world) == []


def test_the_end_of_a_member_removes_its_grants(world: World, alice: str) -> None:
    put(world)
    put(world, "more", joins="demo", guests=[], hosts=["brno-h2"])
    make_profile(world, alice)
    make_profile(world, alice, "more", "phone")
    world.settle()
    assert sorted(devices(world)) == ["laptop", "phone"]
    world.delete("more")
    assert devices(world) == ["laptop"]
    world.settle()
    assert world.view("more").state is ClusterState.RELEASED


def test_a_members_gateway_is_connected_to_the_network(world: World, alice: str) -> None:
    """Only Praha has a gateway, and the member has no host there. The member's profile still uses this gateway."""
    world.put_topology(topology_with_gateways(praha=(gateway("praha-gw"),)))
    world.settle()
    put(world, "demo", "brno-h1", "praha-h1")
    put(world, "more", joins="demo", guests=[], hosts=["brno-h2"])
    assert make_profile(world, alice, "more").json()["gateways"] == ["praha-gw"]
    world.settle()
    assert world.view("more").state is ClusterState.ACTIVE
    assert {part.element for part in world.view("more").placements} >= {"praha-gw", "praha-sw1", "brno-h2"}


def test_two_identical_clusters_have_different_vlans(world: World, alice: str) -> None:
    put(world)
    put(world, "twin")
    make_profile(world, alice)
    make_profile(world, alice, "twin")
    segments = world.wanted_of_host("brno-gw").segments
    assert len({segment.vlan for segment in segments}) == 2
    assert len({grant.fingerprint for segment in segments for grant in segment.grants}) == 2


def test_the_wanted_document_is_the_same_at_each_reading(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    first = world.wanted_of_host("brno-gw")
    world.service = world.restarted()
    assert world.wanted_of_host("brno-gw") == first


def test_only_agents_receive_the_gateways_private_key(world: World) -> None:
    path = "/v1/elements/brno-gw/wanted"
    shown = ask(world, "GET", path, token=world.token(Role.OPERATOR, "eva")).text
    assert ("PRIVATE KEY" in shown, "tls-crypt-v2 server" in shown) == (False, False)
    received = ask(world, "GET", path, token=world.token(Role.AGENT, "brno-gw")).json()
    assert received["wanted"]["vpn"]["private_key"].startswith("-----BEGIN PRIVATE KEY")


def test_a_gateway_without_vpn_loses_its_clusters(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    world.settle()
    world.put_topology(topology_with_gateways(brno=({"name": "brno-gw", "ports": ["eth0"]}, gateway("brno-gw2"))))
    world.settle()
    placed = {part.element: part.progress for part in world.view("demo").placements}
    assert placed["brno-gw"] is PlacementProgress.REMOVED
    wanted = world.wanted_of_host("brno-gw")
    assert (wanted.segments, wanted.vpn) == ((), None)
    assert devices(world, "brno-gw2") == ["laptop"]
    assert world.view("demo").state is ClusterState.ACTIVE


def test_a_gateway_in_use_cannot_vanish(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    with pytest.raises(
        Conflict, match=r"cluster demo .* needs brno-gw, .* first remove `vpn` and `nfs` of the gateway"
    ):
        world.put_topology(topology_with_gateways(brno=(gateway("brno-gw2"),)))


def test_a_gateway_without_vpn_can_vanish_afterwards(world: World, alice: str) -> None:
    put(world)
    make_profile(world, alice)
    world.put_topology(topology_with_gateways(brno=({"name": "brno-gw", "ports": ["eth0"]}, gateway("brno-gw2"))))
    world.settle()
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw2"),)))
    world.settle()
    assert world.view("demo").state is ClusterState.ACTIVE
    assert make_profile(world, alice).json()["gateways"] == ["brno-gw2"]


def test_too_many_profiles_are_refused(world: World, alice: str) -> None:
    put(world)
    limits = world.service.settings.limits.model_copy(update={"profiles": 1})
    world.service.settings.__dict__["limits"] = limits
    make_profile(world, alice)
    failed = make_profile(world, alice, device="phone")
    assert (failed.status_code, "expected at most 1" in problem(failed)[2]) == (422, True)
    assert make_profile(world, alice).status_code == 201


@pytest.mark.parametrize(
    ("csr", "message"),
    [
        ("hello", "expected a certificate signing request in PEM form"),
        (make_csr(ec.derive_private_key(7, ec.SECP521R1())), "expected a key of type P-256, P-384 or RSA"),
        (CSR.replace(CSR[200:204], "AAAA"), "expected a certificate signing request"),
    ],
    ids=["no PEM", "other curve", "changed"],
)
def test_a_bad_signing_request_is_refused(world: World, alice: str, csr: str, message: str) -> None:
    put(world)
    failed = make_profile(world, alice, csr=csr)
    assert (failed.status_code, message in failed.text) == (422, True)
    assert world.wanted_of_host("brno-gw").segments == ()


def test_each_profile_change_is_in_the_audit_log(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice).json()
    invite(world, alice, "bob")
    revoke(world, alice, made["id"])
    ask(world, "DELETE", "/v1/clusters/demo/vpn/invitations/bob", token=alice)
    rows = [(row.what, row.who) for row in world.audit() if row.what.startswith("vpn_")]
    assert rows == [
        ("vpn_profile_created", "alice"),
        ("vpn_user_invited", "alice"),
        ("vpn_profile_revoked", "alice"),
        ("vpn_invitation_withdrawn", "alice"),
    ]
    assert made["fingerprint"] in world.audit("vpn_profile_created")[0].why


def test_strangers_learn_nothing_about_profiles(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice).json()
    bob = world.token(Role.USER, "bob")
    answers = [
        make_profile(world, bob),
        ask(world, "GET", PROFILES, token=bob),
        ask(world, "GET", f"{PROFILES}/{made['id']}", token=bob),
        revoke(world, bob, made["id"]),
        ask(world, "GET", "/v1/clusters/demo/vpn/connections", token=bob),
        ask(world, "GET", "/v1/clusters/demo/vpn/invitations", token=bob),
        invite(world, bob, "bob"),
    ]
    unknown = ask(world, "GET", "/v1/clusters/demo2/vpn/profiles", token=bob)
    assert {(answer.status_code, problem(answer)[2]) for answer in answers} == {
        (404, problem(unknown)[2].replace("demo2", "demo"))
    }


def test_an_invited_user_has_own_profiles_only(world: World, alice: str) -> None:
    put(world)
    of_alice = make_profile(world, alice).json()
    bob = world.token(Role.USER, "bob")
    assert invite(world, alice, "bob").status_code == 200
    of_bob = make_profile(world, bob).json()
    assert (of_bob["user"], of_bob["created_by"]) == ("bob", "bob")
    assert [view["id"] for view in ask(world, "GET", PROFILES, token=bob).json()] == [of_bob["id"]]
    assert revoke(world, bob, of_alice["id"]).status_code == 403
    assert ask(world, "GET", f"{PROFILES}/{of_alice['id']}", token=bob).status_code == 403
    assert invite(world, bob, "carol").status_code == 404
    assert revoke(world, alice, of_bob["id"]).status_code == 200


def test_a_withdrawn_invitation_revokes_the_users_profiles(world: World, alice: str) -> None:
    put(world)
    bob = world.token(Role.USER, "bob")
    invite(world, alice, "bob")
    make_profile(world, bob)
    make_profile(world, alice, device="phone")
    withdrawn = ask(world, "DELETE", "/v1/clusters/demo/vpn/invitations/bob", token=alice)
    assert [view["device"] for view in withdrawn.json()] == ["laptop"]
    assert devices(world) == ["phone"]
    assert make_profile(world, bob).status_code == 404


def test_site_administrators_see_and_revoke_at_their_gateways(world: World, alice: str) -> None:
    """The cluster has a host in Praha too, but its gateways are in Brno."""
    put(world, "demo", "brno-h1", "praha-h1")
    made = make_profile(world, alice).json()
    praha = world.token(Role.SITE_ADMINISTRATOR, "petr", "praha")
    brno = world.token(Role.SITE_ADMINISTRATOR, "ivo", "brno")
    assert ask(world, "GET", PROFILES, token=praha).status_code == 403
    assert revoke(world, praha, made["id"]).status_code == 403
    assert [view["id"] for view in ask(world, "GET", PROFILES, token=brno).json()] == [made["id"]]
    assert make_profile(world, brno).status_code == 403
    assert revoke(world, brno, made["id"]).status_code == 200
    assert devices(world) == []


def test_a_renewed_authority_revokes_all_profiles(world: World, alice: str) -> None:
    put(world)
    former, made = world.wanted_of_host("praha-gw").vpn, make_profile(world, alice).json()
    revision = world.element("praha-gw").wanted_revision
    assert ask(world, "POST", "/v1/vpn/authority/renew", token=alice).status_code == 403
    assert ask(world, "POST", "/v1/vpn/authority/renew").json() == {"revoked": 1}
    renewed = world.wanted_of_host("praha-gw").vpn
    assert former is not None
    assert renewed is not None
    assert not {former.authority, former.certificate} & {renewed.authority, renewed.certificate}
    assert former.tls_crypt_key != renewed.tls_crypt_key
    assert world.element("praha-gw").wanted_revision > revision
    assert devices(world) == []
    assert make_profile(world, alice).json()["addresses"] == made["addresses"]
    assert [row.who for row in world.audit("vpn_authority_renewed")] == ["root"]


def report(world: World, token: str, *profiles: str, gateway: str = "brno-gw") -> httpx.Response:
    connections = [
        {"profile": profile, "protocol": "udp", "remote": "192.0.2.7:40000", "connected_at": "2026-01-01T00:00:00Z"}
        for profile in profiles
    ]
    body = {"connections": connections}
    return ask(world, "PUT", f"/v1/elements/{gateway}/vpn/connections", body, token=token)


def connections(world: World, token: str, key: str = "demo") -> list[tuple[str, str]]:
    views = ask(world, "GET", f"/v1/clusters/{key}/vpn/connections", token=token).json()
    return [(view["device"], view["gateway"]) for view in views]


def test_a_report_replaces_the_gateways_former_report(world: World, alice: str) -> None:
    put(world)
    laptop, phone = (make_profile(world, alice, device=name).json()["id"] for name in ("laptop", "phone"))
    agent, other = (world.token(Role.AGENT, name) for name in ("brno-gw", "brno-gw2"))
    report(world, agent, laptop)
    report(world, other, phone, gateway="brno-gw2")
    report(world, agent, phone, phone)
    assert sorted(connections(world, alice)) == [("phone", "brno-gw"), ("phone", "brno-gw2")]
    report(world, agent)
    assert connections(world, alice) == [("phone", "brno-gw2")]


def test_a_gateway_reports_only_for_its_own_clusters(world: World, alice: str) -> None:
    put(world)
    laptop = make_profile(world, alice).json()["id"]
    agent = world.token(Role.AGENT, "praha-gw")
    assert report(world, agent, laptop, "unknown", gateway="praha-gw").status_code == 204
    assert report(world, agent, laptop).status_code == 403
    assert connections(world, alice) == []


def test_control_characters_in_a_gateways_report_are_replaced(world: World, alice: str) -> None:
    put(world)
    laptop = make_profile(world, alice).json()["id"]
    entry = {"profile": laptop, "protocol": "udp", "remote": "\x1b[2J\x00x", "connected_at": "2026-01-01T00:00:00Z"}
    body = {"connections": [entry, entry | {"profile": "\x00"}]}
    agent = world.token(Role.AGENT, "brno-gw")
    assert ask(world, "PUT", "/v1/elements/brno-gw/vpn/connections", body, token=agent).status_code == 204
    (view,) = ask(world, "GET", "/v1/clusters/demo/vpn/connections", token=alice).json()
    assert view["remote"] == "\ufffd[2J\ufffdx"


def test_a_host_has_no_vpn_connections(world: World) -> None:
    failed = report(world, world.token(Role.AGENT, "brno-h1"), gateway="brno-h1")
    assert problem(failed) == (
        409,
        "conflict",
        "host brno-h1 is not a gateway: only gateways have VPN connections",
    )


def test_a_released_cluster_has_no_connections(world: World, alice: str) -> None:
    put(world)
    laptop = make_profile(world, alice).json()["id"]
    world.settle()
    report(world, world.token(Role.AGENT, "brno-gw"), laptop)
    world.delete("demo")
    world.settle()
    assert (world.view("demo").state, connections(world, alice)) == (ClusterState.RELEASED, [])


def test_a_profile_request_is_limited_by_rate(world: World, alice: str) -> None:
    put(world)
    limit_rate(world)
    make_profile(world, alice)
    assert make_profile(world, alice).status_code == 429


def limit_rate(world: World) -> None:
    rates = world.service.settings.rates.model_copy(update={"profiles": "1/minute"})
    world.service.settings.__dict__["rates"] = rates
