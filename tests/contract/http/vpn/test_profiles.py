"""Tests of VPN profiles over HTTP.

The owner of a cluster *invites* other users, who may then create profiles for the network. A *stranger* is not invited.
"""

import json
from datetime import timedelta

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy import select
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import (
    CSR,
    devices,
    gateway,
    grants_of,
    make_csr,
    make_profile,
    put,
    stop_agents,
    topology_with_gateways,
)
from support.sbf_fakes.world import World

from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.access import Role
from virtcloud.model.cluster import ClusterState

PROFILES = "/v1/clusters/demo/vpn/profiles"


def revoke(world: World, token: str, profile: str, key: str = "demo") -> httpx.Response:
    return ask(world, "DELETE", f"/v1/clusters/{key}/vpn/profiles/{profile}", token=token)


def invite(world: World, token: str, user: str) -> httpx.Response:
    return ask(world, "PUT", f"/v1/clusters/demo/vpn/invitations/{user}", token=token)


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


def test_gateways_get_documents_despite_unreadable_clusters_in_quarantine(
    world: World, alice: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(world)
    make_profile(world, alice)
    put(world, "member", hosts=["brno-h2"], joins="demo", guests=[{"name": "g9", "host": "brno-h2", "image": "img"}])
    (with_member,) = world.wanted_of_host("brno-gw").segments
    world.dead_hosts.add("brno-h2")
    world.delete("member")
    world.settle()
    world.clock.advance(3600)
    world.sweep()
    assert world.view("member").quarantined
    assert world.wanted_of_host("brno-gw").segments[0].guest_macs == with_member.guest_macs
    with world.store.change() as unit:
        row = unit.session.scalars(select(ClusterRow).where(ClusterRow.key == "member")).one()
        row.spec, row.resolved = json.dumps(json.loads(row.spec) | {"later_key": 1}), None
    (segment,) = world.wanted_of_host("brno-gw").segments
    assert set(segment.guest_macs) < set(with_member.guest_macs)
    assert "cluster_unreadable" in caplog.text


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


def test_a_members_grant_expires_with_the_networks_lease(world: World, alice: str) -> None:
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


def test_too_many_profiles_are_refused(world: World, alice: str) -> None:
    put(world)
    limits = world.service.settings.limits.model_copy(update={"profiles": 1})
    world.service.settings.__dict__["limits"] = limits
    make_profile(world, alice)
    failed = make_profile(world, alice, device="phone")
    assert (failed.status_code, "has 1 VPN profile (limit 1)" in problem(failed)[2]) == (422, True)
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
    """The cluster has a host in Praha too, but the cluster's gateways are in Brno."""
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


def test_a_gateway_connected_later_learns_of_a_revocation(world: World, alice: str) -> None:
    """The first gateway's agent stops, so the creation of a second profile connects the cluster to a third gateway."""
    names = ("brno-gw", "brno-gw2", "brno-gw3")
    world.put_topology(topology_with_gateways(brno=tuple(map(gateway, names))))
    world.settle()
    put(world)
    made = make_profile(world, alice).json()
    world.settle()
    stop_agents(world, "brno-gw")
    make_profile(world, alice, device="phone")
    before = world.element("brno-gw3").wanted_revision
    revoke(world, alice, made["id"])
    assert devices(world, "brno-gw3") == ["phone"]
    assert world.element("brno-gw3").wanted_revision > before


def test_a_former_authoritys_profile_is_pending_until_gateways_confirm(world: World, alice: str) -> None:
    put(world)
    made = make_profile(world, alice).json()
    world.settle()
    ask(world, "POST", "/v1/vpn/authority/renew")
    assert pending_of(world, alice, made["id"]) == ["brno-gw", "brno-gw2"]
    world.settle()
    assert pending_of(world, alice, made["id"]) == []


def test_a_revocation_is_pending_at_gateways_without_the_cluster(world: World, alice: str) -> None:
    """The gateways have confirmed neither the cluster nor the grant, but may already have received the grant."""
    put(world)
    made = make_profile(world, alice).json()
    revoke(world, alice, made["id"])
    assert pending_of(world, alice, made["id"]) == ["brno-gw", "brno-gw2"]


def test_the_end_of_a_cluster_is_pending_at_its_gateways(world: World, alice: str) -> None:
    """A device stays connected until its gateway has removed the cluster."""
    put(world)
    made = make_profile(world, alice).json()
    world.settle()
    world.delete("demo")
    assert pending_of(world, alice, made["id"]) == ["brno-gw", "brno-gw2"]
    world.settle()
    assert pending_of(world, alice, made["id"]) == []


def pending_of(world: World, token: str, profile: str) -> list[str]:
    return [element["element"] for element in ask(world, "GET", f"{PROFILES}/{profile}", token=token).json()["pending"]]


def test_a_profile_request_is_limited_by_rate(world: World, alice: str) -> None:
    put(world)
    limit_rate(world)
    make_profile(world, alice)
    assert make_profile(world, alice).status_code == 429


def limit_rate(world: World) -> None:
    rates = world.service.settings.rates.model_copy(update={"profiles": "1/minute"})
    world.service.settings.__dict__["rates"] = rates
