"""Keys for OpenVPN's tls-crypt-v2 (doc/tls-crypt-v2.txt in OpenVPN's repository), derived from a secret. Pure.

With tls-crypt-v2, a server answers only clients that have a client key made for this server. Each client sends its key
wrapped with the server's key, so the server stores no client keys.
"""

from base64 import b64encode
from collections.abc import Iterator
from typing import Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC
from pydantic import SecretBytes, SecretStr

from sbf_service.domain.key_derivation import derive_bytes

SERVER_KEY_BYTES: Final = 128
"""Two keys of 64 bytes, for AES-256 and HMAC-SHA-256. Only the first 32 bytes of each key are used."""
CLIENT_KEY_BYTES: Final = 256
USED_BYTES: Final = 32
TAG_BYTES, IV_BYTES, LENGTH_BYTES = 32, 16, 2
USER_METADATA: Final = b"\x00"
"""The type of metadata whose content OpenVPN does not interpret."""
LINE: Final = 64


def make_server_key(secret: SecretBytes, gateway: str) -> SecretStr:
    """Return the server key of a gateway as a file in PEM form."""
    return SecretStr(_format_pem("server", _derive_server_key(secret, gateway)))


def make_client_key(secret: SecretBytes, gateway: str, profile: str) -> str:
    """Return the client key of a profile for one gateway, as a file in PEM form. ``profile`` is the profile's ID."""
    server = _derive_server_key(secret, gateway)
    key = derive_bytes(secret, CLIENT_KEY_BYTES, "tls-crypt-v2 client", gateway, profile)
    return _format_pem("client", key + wrap_client_key(server, key, USER_METADATA + profile.encode()))


def wrap_client_key(server_key: bytes, client_key: bytes, metadata: bytes) -> bytes:
    """Return a client key and its metadata, encrypted and authenticated with a server key."""
    encryption, authentication = server_key[:USED_BYTES], server_key[SERVER_KEY_BYTES // 2 :][:USED_BYTES]
    content = client_key + metadata
    length = (TAG_BYTES + len(content) + LENGTH_BYTES).to_bytes(LENGTH_BYTES)
    hmac = HMAC(authentication, SHA256())
    hmac.update(length + content)
    tag = hmac.finalize()
    encryptor = Cipher(AES256(encryption), CTR(tag[:IV_BYTES])).encryptor()
    return tag + encryptor.update(content) + encryptor.finalize() + length


def _derive_server_key(secret: SecretBytes, gateway: str) -> bytes:
    return derive_bytes(secret, SERVER_KEY_BYTES, "tls-crypt-v2 server", gateway)


def _format_pem(side: str, data: bytes) -> str:
    def lines() -> Iterator[str]:
        yield f"-----BEGIN OpenVPN tls-crypt-v2 {side} key-----"
        text = b64encode(data).decode()
        yield from (text[start : start + LINE] for start in range(0, len(text), LINE))
        yield f"-----END OpenVPN tls-crypt-v2 {side} key-----\n"

    return "\n".join(lines())
