"""Tests of SSH certificates over HTTP.

The owner of a cluster *invites* other users, who may then access the cluster's network. A *stranger* is not invited.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.vpn_world import furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.elements.elements import make_wanted_document
from virtcloud.client.gateway_logins import make_login_key
from virtcloud.model.access import Role
from virtcloud.model.ssh_access import SshAccess, SshServer
from virtcloud.model.topology import Topology

PUBLIC_KEY = make_login_key().public
SSH = {"address": "gw.example.org"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    topology = topology_with_gateways(brno=(gateway("brno-gw", ssh=SSH), gateway("brno-gw2")))
    installation = furnish(make_world(tmp_path), topology)
    yield installation
    installation.close()


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")


@pytest.fixture
def bob(world: World) -> str:
    return world.token(Role.USER, "bob")


def put(world: World, *hosts: str, key: str = "demo", **changes: Any) -> None:
    world.put(key, spec(*(hosts or ("brno-h1",)), **changes))
    world.settle()


def certify(world: World, token: str | None, key: str = "demo", public_key: str = PUBLIC_KEY) -> httpx.Response:
    path = f"/v1/clusters/{key}/ssh/certificates"
    return ask(world, "POST", path, {"public_key": public_key}, token=token)


def invite(world: World, token: str, user: str, method: str = "PUT") -> None:
    assert ask(world, method, f"/v1/clusters/demo/vpn/invitations/{user}", token=token).is_success


def access_of(world: World, name: str = "brno-gw", key: str = "demo") -> SshAccess | None:
    segments = world.wanted_of_host(name).segments
    return next((segment.ssh for segment in segments if segment.key == key), None)


def revision_of(world: World) -> int:
    with world.service.store.read() as unit:
        return make_wanted_document(unit, "brno-gw").revision


def users_of(world: World) -> list[str]:
    access = access_of(world)
    return [grant.user for grant in access.grants] if access else []


def parse(answer: httpx.Response) -> SSHCertificate:
    found = load_ssh_public_identity(answer.json()["certificate"].encode())
    assert isinstance(found, SSHCertificate)
    return found


def test_a_certificate_names_the_user_and_the_cluster(world: World, alice: str) -> None:
    put(world)
    answer = certify(world, alice)
    assert answer.status_code == 201, answer.text
    found = parse(answer)
    found.verify_cert_signature()
    assert found.valid_principals == [b"virtcloud", world.view("demo").id.encode()]
    assert found.key_id == f"alice/{answer.json()['serial']}".encode()


def test_a_certificate_permits_only_the_forced_command(world: World, alice: str) -> None:
    put(world)
    found = parse(certify(world, alice))
    assert (found.critical_options, found.extensions) == ({b"force-command": b"virtcloud"}, {})


def test_a_certificate_is_valid_for_ten_minutes(world: World, alice: str) -> None:
    put(world)
    ends = datetime.fromtimestamp(parse(certify(world, alice)).valid_before, UTC)
    assert timedelta(minutes=9, seconds=59) < ends - world.clock.now <= timedelta(minutes=10)


def test_a_certificate_ends_with_the_lease(world: World, alice: str) -> None:
    put(world, lease_s=60)
    found = parse(certify(world, alice))
    assert found.valid_before <= world.view("demo").lease_ends.timestamp()


def test_the_first_certificate_makes_a_grant_on_the_gateway(world: World, alice: str) -> None:
    put(world)
    assert access_of(world) is None
    answer = certify(world, alice)
    access = access_of(world)
    assert access is not None
    assert [(grant.cluster, grant.user) for grant in access.grants] == [(world.view("demo").id, "alice")]
    assert [gateway["name"] for gateway in answer.json()["gateways"]] == ["brno-gw"]
    assert access_of(world, "brno-gw2") is None


def test_a_gateway_knows_the_guests_of_the_network(world: World, alice: str) -> None:
    put(world, "brno-h1", "praha-h1")
    certify(world, alice)
    access = access_of(world)
    (host,) = world.wanted_of_host("praha-h1").segments
    assert access is not None
    assert host.guests[0].addresses in [guest.addresses for guest in access.guests]


def test_the_gateway_gets_the_key_of_its_sshd(world: World, alice: str) -> None:
    put(world)
    server = world.wanted_of_host("brno-gw").ssh
    assert isinstance(server, SshServer)
    assert "PRIVATE KEY" in server.host_key.get_secret_value()
    (view,) = certify(world, alice).json()["gateways"]
    assert server.authority != view["host_key"]


def test_an_invited_user_gets_a_grant_and_a_certificate(world: World, alice: str, bob: str) -> None:
    put(world)
    certify(world, alice)
    invite(world, alice, "bob")
    assert users_of(world) == ["alice", "bob"]
    assert certify(world, bob).status_code == 201


@pytest.mark.parametrize(("user", "holder"), [("alice", "cluster ring"), ("bob", "another cluster")])
def test_an_invited_user_cannot_read_which_cluster_has_a_port(world: World, alice: str, user: str, holder: str) -> None:
    document = topology_with_gateways(brno=(gateway("brno-gw", ssh=SSH, vpn=None),)).model_dump(mode="json")
    document["links"][-1]["access"] = True
    world.put_topology(Topology.model_validate(document))
    put(world, key="ring")
    put(world)
    invite(world, alice, "bob")
    assert certify(world, alice, key="ring").is_success
    refused = certify(world, world.token(Role.USER, user))
    assert (refused.status_code, f"but {holder} uses this port" in refused.text) == (409, True)


def test_a_withdrawn_invitation_removes_the_grant(world: World, alice: str, bob: str) -> None:
    put(world)
    invite(world, alice, "bob")
    certify(world, alice)
    world.settle()
    before = revision_of(world)
    invite(world, alice, "bob", "DELETE")
    assert users_of(world) == ["alice"]
    assert revision_of(world) > before
    assert certify(world, bob).status_code == 404


def test_a_stranger_gets_no_certificate(world: World, bob: str) -> None:
    put(world)
    assert certify(world, bob).status_code == 404


def test_an_operator_gets_no_certificate(world: World) -> None:
    put(world)
    answer = certify(world, world.token(Role.OPERATOR, "olga"))
    assert (answer.status_code, "virtcloud access invite" in answer.text) == (403, True)


def test_an_ending_cluster_has_no_grants(world: World, alice: str) -> None:
    put(world)
    certify(world, alice)
    assert ask(world, "DELETE", "/v1/clusters/demo", token=alice).is_success
    assert users_of(world) == []
    assert certify(world, alice).status_code == 409


def test_the_error_without_an_sshd_names_known_gateways(world: World, alice: str) -> None:
    put(world, "praha-h1")
    status, _, text = problem(certify(world, alice))
    assert status == 409
    assert "expected a gateway with an sshd for users at praha, got none; known gateways: brno-gw at brno" in text


def test_a_gateway_with_only_an_sshd_suffices_for_certificates(world: World, alice: str) -> None:
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", vpn=None, ssh=SSH),)))
    put(world)
    assert certify(world, alice).status_code == 201
    assert users_of(world) == ["alice"]


def test_another_gateway_serves_after_the_removal_of_the_first(world: World, alice: str) -> None:
    put(world)
    certify(world, alice)
    for removed in ((gateway("brno-gw", vpn=None),), ()):
        world.put_topology(topology_with_gateways(brno=(*removed, gateway("brno-gw2", ssh=SSH))))
        world.settle()
    answers = ask(world, "GET", "/v1/clusters/demo/ssh", token=alice), certify(world, alice)
    assert [[found["name"] for found in answer.json()["gateways"]] for answer in answers] == [[], ["brno-gw2"]]


def test_a_key_of_a_security_token_is_refused(world: World, alice: str) -> None:
    put(world)
    key = (
        "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
        "AQEBAQEBAAAABHNzaDo="
    )
    answer = certify(world, alice, public_key=key)
    assert (answer.status_code, "expected a key of type Ed25519, ECDSA or RSA" in answer.text) == (422, True)


def test_certificates_are_in_the_audit_log(world: World, alice: str) -> None:
    put(world)
    serial = certify(world, alice).json()["serial"]
    entries = ask(world, "GET", "/v1/audit?cluster=demo", token=alice).text
    assert f"serial {serial} for alice" in entries


def test_a_renewed_authority_replaces_the_keys(world: World, alice: str) -> None:
    put(world)
    before = world.wanted_of_host("brno-gw").ssh
    assert ask(world, "POST", "/v1/vpn/authority/renew", token=world.token(Role.OPERATOR, "olga")).is_success
    after = world.wanted_of_host("brno-gw").ssh
    assert before is not None
    assert after is not None
    assert after.authority != before.authority
    assert after.host_key != before.host_key


def put_full(world: World, guests: int) -> None:
    """Create a cluster whose network has six addresses and two gateways with an sshd."""
    world.put_topology(topology_with_gateways(brno=(gateway("brno-gw", ssh=SSH), gateway("brno-gw2", ssh=SSH))))
    described = [{"name": f"g{number}", "host": "brno-h1", "image": "debian"} for number in range(guests)]
    put(world, guests=described, subnets=["10.0.0.0/29"])


def test_a_gateway_without_a_free_address_prevents_no_certificate(world: World, alice: str) -> None:
    put_full(world, guests=5)
    answer = certify(world, alice)
    assert answer.status_code == 201, answer.text
    (found,) = answer.json()["gateways"]
    addresses = {name: world.wanted_of_host(name).segments[0].gateway_addresses for name in ("brno-gw", "brno-gw2")}
    assert [name for name, own in addresses.items() if own] == [found["name"]]


def test_a_network_without_free_addresses_is_refused(world: World, alice: str) -> None:
    put_full(world, guests=6)
    assert problem(certify(world, alice))[:2] == (409, "no-address-free")


def test_a_network_without_subnets_is_refused(world: World, alice: str) -> None:
    guests = [{"name": "g1", "host": "brno-h1", "image": "debian", "addresses": ["10.0.0.5/24"]}]
    put(world, guests=guests, subnets=[], vpn=True)
    answer = certify(world, alice)
    assert problem(answer)[:2] == (409, "no-address-free")
    assert "--through sbf" in answer.text
    assert users_of(world) == []
