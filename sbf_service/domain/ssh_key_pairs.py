"""SSH key pairs of guests, clusters, gateways and the SSH authority, derived from a secret. Pure.

The same secret and the same cluster, guest or gateway always yield the same key pair (HKDF, RFC 5869; Ed25519, RFC
8032). Therefore, no private key is stored, and an agent always receives the same text.
"""

from base64 import b64encode
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import SecretBytes, SecretStr

from sbf_service.domain.key_derivation import derive_bytes
from virtcloud.model.guest_seed import PublicKey

KEY_TYPE: Final = b"ssh-ed25519"
SEED_BYTES: Final = 32
CHECK_BYTES: Final = 4
BLOCK_BYTES: Final = 8
"""The private part of an unencrypted file is padded to this block size (OpenSSH's PROTOCOL.key)."""
LINE: Final = 70
MAX_CACHED: Final = 8192


@dataclass(frozen=True, slots=True)
class SshKeyPair:
    """An SSH key pair. ``private`` is a file in OpenSSH's format."""

    private: SecretStr
    public: PublicKey


def derive_host_key(secret: SecretBytes, cluster_id: str, guest: str) -> SshKeyPair:
    """Return the host key of a guest's SSH server."""
    return _derive(secret, "host key", cluster_id, guest)


def derive_cluster_key(secret: SecretBytes, cluster_id: str) -> SshKeyPair:
    """Return the key pair with which the guests of one cluster reach each other."""
    return _derive(secret, "cluster key", cluster_id)


def derive_gateway_key(secret: SecretBytes, gateway: str) -> SshKeyPair:
    """Return the host key of a gateway's SSH server."""
    return _derive(secret, "SSH gateway", gateway)


def derive_authority_key(secret: SecretBytes) -> SshKeyPair:
    """Return the key pair of the authority that signs the SSH certificates of users."""
    return _derive(secret, "SSH authority")


@lru_cache(maxsize=MAX_CACHED)
def _derive(secret: SecretBytes, *purpose: str) -> SshKeyPair:
    seed = derive_bytes(secret, SEED_BYTES + CHECK_BYTES, *purpose)
    private, check = seed[:SEED_BYTES], seed[SEED_BYTES:]
    public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    data = _string(KEY_TYPE) + _string(public)
    return SshKeyPair(
        private=SecretStr(_format_private_key(data, private + public, check)),
        public=PublicKey(f"{KEY_TYPE.decode()} {b64encode(data).decode()}"),
    )


def _format_private_key(public: bytes, private: bytes, check: bytes) -> str:
    """Return an unencrypted private key as a file (OpenSSH's PROTOCOL.key).

    ``check`` contains check bytes derived from the secret. The library ``cryptography`` would write random check bytes,
    so the files of one key would differ.
    """
    inner = check + check + public + _string(private) + _string(b"")
    inner += bytes(range(1, -len(inner) % BLOCK_BYTES + 1))
    outer = b"openssh-key-v1\0" + _string(b"none") + _string(b"none") + _string(b"") + (1).to_bytes(4)
    text = b64encode(outer + _string(public) + _string(inner)).decode()
    lines = [text[start : start + LINE] for start in range(0, len(text), LINE)]
    return "\n".join(("-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""))


def _string(data: bytes) -> bytes:
    """Return a string in the encoding of SSH (RFC 4251, 5)."""
    return len(data).to_bytes(4) + data
