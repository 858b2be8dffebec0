import subprocess
from pathlib import Path

from pydantic import SecretBytes

from sbf_service.domain import ssh_key_pairs
from sbf_service.domain.ssh_key_pairs import SshKeyPair, derive_cluster_key, derive_host_key

SECRET = SecretBytes(bytes(range(32)))


def test_openssh_computes_the_same_public_key(tmp_path: Path) -> None:
    pair, file = derive_host_key(SECRET, "id", "g1"), tmp_path / "key"
    file.touch(mode=0o600)
    file.write_text(pair.private.get_secret_value())
    shown = subprocess.run(["ssh-keygen", "-y", "-f", file], check=True, capture_output=True, text=True)  # noqa: S603, S607 - our own
    assert shown.stdout.strip() == pair.public


def test_a_derived_key_never_changes() -> None:
    expected = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINELyerx/mO7lIUjOWVfD8Z4EwuOvGL1XRO0IwdolTAQ"
    assert derive_host_key(SECRET, "id", "g1").public == expected
    first = derive_host_key(SECRET, "id", "g1").private
    ssh_key_pairs._derive.cache_clear()
    assert derive_host_key(SECRET, "id", "g1").private == first


def test_every_guest_and_cluster_has_its_own_key() -> None:
    pairs: list[SshKeyPair] = [
        derive_host_key(SECRET, "id", "g1"),
        derive_host_key(SECRET, "id", "g2"),
        derive_host_key(SECRET, "other", "g1"),
        derive_host_key(SecretBytes(bytes(32)), "id", "g1"),
        derive_cluster_key(SECRET, "id"),
        derive_cluster_key(SECRET, "other"),
    ]
    assert len({pair.public for pair in pairs}) == len(pairs)
    assert len({pair.private.get_secret_value() for pair in pairs}) == len(pairs)


def test_a_derived_key_is_not_shown() -> None:
    assert "PRIVATE" not in repr(derive_host_key(SECRET, "id", "g1"))
