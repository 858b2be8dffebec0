"""Tests of the SSH certificate by which a gateway identifies a user."""

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretBytes
from support.gateways.ssh_world import SECRET

from sbf_service.domain.ssh_authority import SshCertificate, parse_certified_key, sign_certificate
from sbf_service.domain.ssh_key_pairs import derive_authority_key
from virtcloud.agent.gateway.ssh_admission import ProvenUser
from virtcloud.agent.gateway.ssh_certificates import verify_certificate
from virtcloud.client.gateway_logins import make_login_key
from virtcloud.model.errors import Forbidden
from virtcloud.model.values import UserName

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
AUTHORITY = derive_authority_key(SECRET).public
KEY = parse_certified_key(make_login_key().public)
ALICE = ProvenUser("c1", UserName("alice"), 7)


def certify(cluster: str = "c1", secret: SecretBytes = SECRET) -> str:
    stated = SshCertificate(cluster, UserName("alice"), 7, NOW, NOW + timedelta(minutes=10))
    return f"publickey {sign_certificate(secret, KEY, stated)}\n"


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
def test_anything_but_one_user_certificate_is_refused(proof: str) -> None:
    with pytest.raises(Forbidden, match="expected one certificate of a user"):
        verify_certificate(proof, AUTHORITY, NOW)
