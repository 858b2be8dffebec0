"""Derivation of all keys and serial numbers from SBF's secrets (HKDF, RFC 5869). Pure.

The same secret and purpose always yield the same bytes, so SBF stores no private key.
"""

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import SecretBytes


def derive_bytes(secret: SecretBytes, length: int, *purpose: str) -> bytes:
    """Return ``length`` bytes for ``purpose``.

    NUL separates the parts of a purpose, and no part contains NUL.
    """
    info = "\0".join(("virtcloud 1", *purpose)).encode()
    return HKDF(SHA256(), length, salt=None, info=info).derive(secret.get_secret_value())
