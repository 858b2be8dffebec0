"""Selects those public SSH keys of a job's user that SBF accepts. SBF refuses a request that contains any other key.

``virtcloud/model/ssh_keys.py`` has the same rules for keys that users send to SBF themselves.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from typing import Iterable, Iterator, List

MAX_KEYS = 8
"""Maximum number of keys of one job; lower than SBF's default limit (``limits.keys``)."""
MIN_RSA_BITS = 2048
FIELDS = {
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
"""The number of fields that follow the type in a key's data."""
LENGTH_BYTES = 4
LINE = re.compile(r"([a-z0-9@.-]+)[ \t]+([A-Za-z0-9+/]{16,16384}={0,2})([ \t].*)?")


def select_public_keys(texts: Iterable[str]) -> List[str]:
    """Return the keys in texts of files such as ``id_ed25519.pub``, each key once and without its comment.

    Omit every line that contains no key accepted by SBF. Return at most `MAX_KEYS` keys.
    """
    found = []  # type: List[str]
    for line in (line.strip() for text in texts for line in text.splitlines()):
        match = LINE.fullmatch(line)
        if match and _is_complete(match.group(1), match.group(2)):
            key = "%s %s" % (match.group(1), match.group(2))
            found += [] if key in found else [key]
    return found[:MAX_KEYS]


def _is_complete(kind: str, data: str) -> bool:
    try:
        fields = list(_split_fields(b64decode(data, validate=True)))
    except (NotBase64, ValueError):
        return False
    if kind not in FIELDS or len(fields) != 1 + FIELDS[kind] or fields[0] != kind.encode():
        return False
    return kind != "ssh-rsa" or int.from_bytes(fields[2], "big").bit_length() >= MIN_RSA_BITS


def _split_fields(data: bytes) -> Iterator[bytes]:
    while data:
        end = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big")
        if len(data) < end:
            raise ValueError("a field is longer than the data")
        yield data[LENGTH_BYTES:end]
        data = data[end:]
