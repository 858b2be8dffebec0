from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.sbf_fakes.http_calls import ask
from support.sbf_fakes.vpn_world import furnish, gateway, topology_with_gateways
from support.sbf_fakes.world import World, make_world, spec

from sbf_service.store.access import ssh_revocations
from virtcloud.client.gateway_logins import make_login_key
from virtcloud.model.access import Role
from virtcloud.model.ssh_access import SSH_REVOCATIONS

PUBLIC_KEY = make_login_key().public
SSH = {"address": "gw.example.org"}
TEN_MINUTES, HOUR = 600, 3600
CERTIFICATES = "/v1/clusters/demo/ssh/certificates"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    topology = topology_with_gateways(brno=(gateway("brno-gw", ssh=SSH), gateway("brno-gw2", ssh=SSH)))
    installation = furnish(make_world(tmp_path), topology)
    installation.put("demo", spec("brno-h1", lease_s=90_000))
    installation.settle()
    yield installation
    installation.close()


@pytest.fixture
def alice(world: World) -> str:
    return world.token(Role.USER, "alice")


@pytest.fixture
def bob(world: World, alice: str) -> str:
    invite(world, alice)
    return world.token(Role.USER, "bob")


def invite(world: World, token: str, method: str = "PUT") -> None:
    assert ask(world, method, "/v1/clusters/demo/vpn/invitations/bob", token=token).is_success


def certify(world: World, token: str) -> int:
    return int(ask(world, "POST", CERTIFICATES, {"public_key": PUBLIC_KEY}, token=token).json()["serial"])


def revoke(world: World, token: str, serial: int) -> int:
    return ask(world, "DELETE", f"{CERTIFICATES}/{serial}", token=token).status_code


def listed(world: World, token: str, query: str = "") -> list[int]:
    return [entry["serial"] for entry in ask(world, "GET", CERTIFICATES + query, token=token).json()]


def refused(world: World, name: str = "brno-gw") -> dict[str, tuple[int, ...]]:
    (segment,) = world.wanted_of_host(name).segments
    assert segment.ssh is not None
    found = {str(grant.user): grant.revoked for grant in segment.ssh.grants if grant.revoked}
    assert (SSH_REVOCATIONS in segment.requires) == bool(found)
    return found


def report(world: World, *serials: int, user: str = "alice", cluster: str | None = None) -> None:
    rows: list[dict[str, Any]] = [
        {
            "cluster": cluster or world.view("demo").id,
            "user": user,
            "serial": serial,
            "guest": "g1",
            "remote": "192.0.2.7 40000",
            "connected_at": world.clock.now.isoformat(),
        }
        for serial in serials
    ]
    path = "/v1/elements/brno-gw/ssh/connections"
    assert ask(world, "PUT", path, {"connections": rows}, token=world.token(Role.AGENT, "brno-gw")).status_code == 204


def sessions(world: World, token: str) -> list[int]:
    answer = ask(world, "GET", "/v1/clusters/demo/ssh/connections", token=token)
    return [connection["serial"] for connection in answer.json()]


def test_a_revocation_is_in_the_documents_of_all_gateways(world: World, alice: str) -> None:
    first, _ = certify(world, alice), certify(world, alice)
    before = world.element("brno-gw2").wanted_revision
    assert revoke(world, alice, first) == 200
    assert [refused(world, name) for name in ("brno-gw", "brno-gw2")] == [{"alice": (first,)}] * 2
    assert world.element("brno-gw2").wanted_revision > before


def test_a_second_revocation_changes_nothing(world: World, alice: str) -> None:
    serial = certify(world, alice)
    revoke(world, alice, serial)
    before = world.element("brno-gw").wanted_revision
    assert revoke(world, alice, serial) == 200
    assert world.element("brno-gw").wanted_revision == before
    assert [row.why for row in world.audit("ssh_certificate_revoked")] == [f"serial {serial} of alice"]


def test_valid_certificates_are_listed(world: World, alice: str) -> None:
    first, second = certify(world, alice), certify(world, alice)
    revoke(world, alice, first)
    assert (listed(world, alice), set(listed(world, alice, "?ended=true"))) == ([second], {first, second})


def test_certificates_expire_when_the_cluster_ends(world: World, alice: str) -> None:
    serial = certify(world, alice)
    world.delete("demo")
    (entry,) = ask(world, "GET", f"{CERTIFICATES}?ended=true", token=alice).json()
    assert listed(world, alice) == []
    assert (entry["serial"], datetime.fromisoformat(entry["expires_at"])) == (serial, world.clock.now)


def test_an_expired_certificate_with_a_connection_is_listed(world: World, alice: str) -> None:
    opened, _ = certify(world, alice), certify(world, alice)
    report(world, opened)
    world.clock.advance(TEN_MINUTES + 1)
    assert listed(world, alice) == [opened]
    assert sessions(world, alice) == [opened]


def test_an_expired_certificate_with_a_connection_can_be_revoked(world: World, alice: str) -> None:
    serial = certify(world, alice)
    report(world, serial)
    world.clock.advance(2 * HOUR)
    certify(world, alice)
    assert revoke(world, alice, serial) == 200
    assert refused(world) == {"alice": (serial,)}


def test_a_connection_of_an_unknown_certificate_can_be_revoked(world: World, alice: str) -> None:
    certify(world, alice)
    report(world, 7)
    assert (revoke(world, alice, 7), revoke(world, alice, 8)) == (200, 404)
    assert refused(world) == {"alice": (7,)}


def test_documents_forget_revocations_after_the_certificates_end(world: World, alice: str) -> None:
    serial = certify(world, alice)
    revoke(world, alice, serial)
    world.clock.advance(TEN_MINUTES)
    assert refused(world) == {"alice": (serial,)}
    world.clock.advance(ssh_revocations.MAX_CLOCK_ERROR.total_seconds() + 1)
    assert refused(world) == {}


def test_a_gateway_that_was_away_ends_revoked_connections(world: World, alice: str) -> None:
    serial = certify(world, alice)
    revoke(world, alice, serial)
    world.clock.advance(3 * HOUR)
    certify(world, alice)
    before = world.element("brno-gw").wanted_revision
    report(world, serial)
    assert refused(world) == {"alice": (serial,)}
    assert world.element("brno-gw").wanted_revision > before


def test_certificates_are_forgotten_an_hour_after_their_end(world: World, alice: str) -> None:
    certify(world, alice)
    world.clock.advance(TEN_MINUTES + HOUR + 1)
    new = certify(world, alice)
    assert listed(world, alice, "?ended=true") == [new]


def test_an_invited_user_revokes_only_own_certificates(world: World, alice: str, bob: str) -> None:
    hers, his = certify(world, alice), certify(world, bob)
    assert (listed(world, bob), set(listed(world, alice))) == ([his], {hers, his})
    assert (revoke(world, bob, hers), revoke(world, bob, his)) == (404, 200)


def test_an_invited_user_sees_only_own_connections(world: World, alice: str, bob: str) -> None:
    certify(world, alice)
    report(world, 7)
    assert (sessions(world, bob), sessions(world, alice)) == ([], [7])


def test_a_new_invitation_does_not_revalidate_old_certificates(world: World, alice: str, bob: str) -> None:
    serial = certify(world, bob)
    invite(world, alice, "DELETE")
    invite(world, alice)
    assert refused(world) == {"bob": (serial,)}


def test_a_certificate_of_another_cluster_is_not_revoked(world: World, alice: str) -> None:
    world.put("other", spec("brno-h2"))
    serial = certify(world, alice)
    answer = ask(world, "DELETE", f"/v1/clusters/other/ssh/certificates/{serial}", token=alice)
    assert (answer.status_code, refused(world)) == (404, {})


def test_connections_of_clusters_elsewhere_are_ignored(world: World, alice: str) -> None:
    world.put("far", spec("praha-h1", owner="bob"))
    certify(world, alice)
    report(world, 7, cluster=world.view("far").id)
    report(world, 8, cluster="unknown")
    answer = ask(world, "GET", "/v1/clusters/far/ssh/connections")
    assert (answer.json(), sessions(world, alice)) == ([], [])


def test_a_report_replaces_the_former_report(world: World, alice: str) -> None:
    certify(world, alice)
    report(world, 7, 8)
    report(world, 8)
    assert sessions(world, alice) == [8]


def test_a_replaced_authority_leaves_no_valid_certificate(world: World, alice: str) -> None:
    certify(world, alice)
    assert ask(world, "POST", "/v1/vpn/authority/renew", token=world.token(Role.OPERATOR, "olga")).is_success
    assert listed(world, alice) == []
