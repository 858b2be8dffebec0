"""Tests of the agent's decision who reaches which guest through a gateway. No sshd is needed."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretBytes
from ssh_world import SECRET, make_segment

from sbf_service.domain.ssh_authority import SshCertificate, parse_certified_key, sign_certificate
from sbf_service.domain.ssh_key_pairs import derive_authority_key
from virtcloud.agent.gateway.ssh_admission import (
    ProvenUser,
    SshSession,
    find_ended_ssh_sessions,
    find_target,
    verify_certificate,
)
from virtcloud.client.gateway_logins import make_login_key
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import UserName

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AUTHORITY = derive_authority_key(SECRET).public
KEY = parse_certified_key(make_login_key().public)
ALICE = ProvenUser("c1", UserName("alice"), 7)
LATER = NOW + timedelta(hours=1)
SESSION = SshSession.model_validate(
    {
        "pid": 1,
        "started": 1,
        "network": "c1",
        "cluster": "c1",
        "user": "alice",
        "guest": "g1@c1",
        "serial": 7,
        "remote": "192.0.2.1 22",
        "expires_at": LATER,
    }
)


def certify(cluster: str = "c1", secret: SecretBytes = SECRET) -> str:
    stated = SshCertificate(cluster, UserName("alice"), 7, NOW, NOW + timedelta(minutes=10))
    return f"publickey {sign_certificate(secret, KEY, stated)}\n"


def ended(session: SshSession, *users: str, now: datetime = NOW) -> list[str]:
    segments = [make_segment(*users, ends=LATER)] if users else None
    return [found.reason for found in find_ended_ssh_sessions([session], segments, now)]


def test_a_certificate_proves_the_user_and_the_cluster() -> None:
    assert verify_certificate(certify(), AUTHORITY, NOW) == ALICE


def test_a_certificate_of_another_authority_proves_nothing() -> None:
    with pytest.raises(Forbidden, match="not signed by SBF's SSH authority"):
        verify_certificate(certify(secret=SecretBytes(b"x" * 32)), AUTHORITY, NOW)


def test_an_edited_certificate_proves_nothing() -> None:
    other = certify("c2").split()[2]
    text = certify().split()[2]
    mixed = text[: len(text) // 2] + other[len(text) // 2 :]
    with pytest.raises(Forbidden):
        verify_certificate(f"publickey ssh-ed25519-cert-v01@openssh.com {mixed}", AUTHORITY, NOW)


def test_a_certificate_proves_nothing_after_its_end() -> None:
    with pytest.raises(Forbidden, match="has expired"):
        verify_certificate(certify(), AUTHORITY, NOW + timedelta(minutes=10))


@pytest.mark.parametrize("proof", ["", "publickey ssh-ed25519 AAAA", f"{certify()}{certify()}", "password"])
def test_only_one_certificate_is_a_proof(proof: str) -> None:
    with pytest.raises(Forbidden, match="expected one certificate of a user"):
        verify_certificate(proof, AUTHORITY, NOW)


def test_a_grant_that_has_ended_gives_no_access() -> None:
    with pytest.raises(Forbidden, match="the lease of this cluster has ended"):
        find_target(ALICE, "g1", [make_segment("alice", ends=NOW)], NOW)


def test_guests_of_the_users_cluster_precede_other_members() -> None:
    segment = make_segment("alice", ends=LATER)
    assert segment.ssh is not None
    other = segment.ssh.guests[0].model_copy(update={"cluster": "c2"})
    shared = segment.ssh.model_copy(update={"guests": (other, *segment.ssh.guests)})
    target = find_target(ALICE, "g1", [segment.model_copy(update={"ssh": shared})], NOW)
    assert target.guest.cluster == "c1"


def test_a_session_with_a_grant_continues() -> None:
    assert ended(SESSION, "alice") == []


def test_a_session_without_a_grant_ends() -> None:
    assert ended(SESSION, "bob") == ["the grant or the guest is gone"]


def test_a_session_ends_with_an_extended_lease() -> None:
    short = SESSION.model_copy(update={"expires_at": NOW})
    assert ended(short, "alice") == []
    assert ended(short, "alice", now=LATER) == ["the lease of the cluster has ended"]


def test_without_a_wanted_document_a_session_ends_with_the_known_lease() -> None:
    assert ended(SESSION) == []
    assert ended(SESSION, now=LATER) == ["the lease of the cluster has ended"]
