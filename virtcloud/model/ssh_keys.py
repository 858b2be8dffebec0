"""SSH keys of users: validation, fingerprints as ``ssh-keygen`` shows them, and the documents of the API.

No error message contains the rejected text, because the text may be a private key.
"""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from typing import Final, Self

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.guest_seed import PublicKey
from virtcloud.model.values import PatternText, UserName

MIN_RSA_BITS: Final = 2048
"""The minimum length of an RSA key (NIST SP 800-131A)."""
MAX_COMMENT: Final = 256
_FIELDS: Final = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
"""The number of fields that follow the type in a key's data (RFC 4253 6.6, RFC 5656 3.1, RFC 8709 4, PROTOCOL.u2f)."""


class KeyFingerprint(PatternText):
    """The fingerprint of a public key, as ``ssh-keygen -l`` shows it."""

    __slots__ = ()
    pattern = r"SHA256:[A-Za-z0-9+/]{43}"
    meaning = "a fingerprint as ssh-keygen -l shows it: SHA256: and 43 characters"


class UserKey(PublicKey):
    """A public SSH key with which a user logs in. The data is complete, and an RSA key has at least 2048 bits.

    Spaces between the parts are normalized. Characters of the comment that are not printable ASCII become ``?``. The
    comment is truncated after 256 characters.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        """Check ``value``. For an invalid key, raise BadInput with a message that does not contain ``value``."""
        if type(value) is cls:
            return value
        text = _normalize(value) if isinstance(value, str) else ""
        if not cls.matches(text):
            raise BadInput(f"expected {cls.meaning}, got {_describe_other_text(value)}")
        kind, data = text.split(" ")[:2]
        _check_data(kind, data)
        return super().__new__(cls, text)

    @property
    def fingerprint(self) -> KeyFingerprint:
        """The SHA-256 of the key's data."""
        return KeyFingerprint(f"SHA256:{_encode_unpadded(sha256(b64decode(self.split(' ')[1])).digest())}")

    @property
    def kind(self) -> str:
        """The type of the key, such as ``ssh-ed25519``."""
        return self.split(" ", 1)[0]

    @property
    def comment(self) -> str:
        """The comment, or an empty string."""
        return self.split(" ", 2)[2] if self.count(" ") > 1 else ""


class NewUserKey(Document):
    """A public key to add to a user's keys."""

    key: UserKey
    """The public key: type, base64 data and an optional comment."""


class UserKeyView(Document):
    """A public key of a user."""

    user: UserName
    fingerprint: KeyFingerprint
    key: PublicKey
    """The public key: type, base64 data and an optional comment."""
    added_at: datetime
    """When the key was added."""
    added_by: str
    """The caller who added the key."""


def parse_user_keys(text: str, source: str) -> list[UserKey]:
    """Return the keys of a file such as ``id_ed25519.pub`` or ``authorized_keys``: one key a line.

    Empty lines, comments and a byte order mark are skipped. Each remaining line must be a valid key; otherwise, raise
    BadInput with the line's number. Also raise BadInput if the text contains a private key, or no key. ``source`` is
    the name of the text in messages. No message contains a rejected line.
    """
    text = text.removeprefix("\ufeff")
    _refuse_private_key(text, source)
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    keys = [_parse_line(line, f"{source}:{number}") for number, line in lines if line and not line.startswith("#")]
    if not keys:
        raise BadInput(f"{source}: expected {UserKey.meaning}, got no key")
    return keys


def _refuse_private_key(text: str, source: str) -> None:
    if _is_private(text):
        raise BadInput(f"{source}: expected {UserKey.meaning}, got {_describe_other_text(text)}")


def _parse_line(line: str, where: str) -> UserKey:
    try:
        return UserKey(line)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def _normalize(text: str) -> str:
    parts = text.strip(" \t\r\n").split(None, 2)
    comment = "".join(character if " " <= character <= "~" else "?" for character in "".join(parts[2:]).strip())
    return " ".join((*parts[:2], *filter(None, [comment[:MAX_COMMENT]]))) if "\n" not in text.strip() else ""


def _is_private(text: str) -> bool:
    return "PRIVATE KEY-----" in text or text.lstrip().startswith(("PuTTY-User-Key-File", "SSH PRIVATE KEY FILE"))


def _describe_other_text(value: object) -> str:
    """Describe a text that is no public key. The description contains no part of the text."""
    text = value if isinstance(value, str) else ""
    if _is_private(text):
        return "a private key, which was not stored: use the file that ends in .pub"
    if "BEGIN SSH2 PUBLIC KEY" in text or "BEGIN PUBLIC KEY" in text:
        return "another format: 'ssh-keygen -i -f FILE' converts a key of RFC 4716 (PKCS8: with '-m PKCS8')"
    if text.startswith("ssh-dss"):
        return "a DSA key, which OpenSSH no longer accepts: create a key with 'ssh-keygen -t ed25519'"
    if any(f"{kind} AAAA" in text for kind in _FIELDS):
        return "a key with options or with other text around it"
    return "other text (not shown)" if text.strip() else "no text"


def _check_data(kind: str, data: str) -> None:
    try:
        fields = list(_split_fields(b64decode(data, validate=True)))
    except (NotBase64, ValueError) as error:
        raise BadInput(f"expected complete data of the {kind} key, got damaged data: copy the whole line") from error
    if not fields or fields[0] != kind.encode() or len(fields) != 1 + _FIELDS[kind]:
        raise BadInput(f"expected complete data of the {kind} key, got damaged data: copy the whole line")
    if kind == "ssh-rsa" and (bits := int.from_bytes(fields[2]).bit_length()) < MIN_RSA_BITS:
        raise BadInput(
            f"expected an RSA key of at least {MIN_RSA_BITS} bits, got {bits} bits: create a key with "
            "'ssh-keygen -t ed25519'"
        )


def _split_fields(data: bytes) -> Iterator[bytes]:
    """Yield the fields of a key's data. Four bytes with a field's length precede each field (RFC 4251 5)."""
    while data:
        size = int.from_bytes(data[:4])
        if len(data) < 4 + size:
            raise ValueError("a field is longer than the data")
        yield data[4 : 4 + size]
        data = data[4 + size :]


def _encode_unpadded(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")
