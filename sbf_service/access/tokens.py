"""What a token looks like, and what is kept of it (docs/decisions says why a fast hash). Pure; chance is passed in."""

import re
from base64 import b32encode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256

from sbf_service.secret import Secret
from virtcloud.model.access import TokenId

PREFIX = "vc"
ID_BYTES, SECRET_BYTES = 5, 32
SHAPE = re.compile(rf"{PREFIX}_({TokenId.pattern})_([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: ``vc_``, its id, and 256 random bits; the last are secret."""

    id: TokenId
    secret: Secret

    @classmethod
    def make(cls, chance: bytes) -> "Token":
        """Make one of ``ID_BYTES + SECRET_BYTES`` random bytes."""
        plain = urlsafe_b64encode(chance[ID_BYTES:]).rstrip(b"=").decode()
        return cls(TokenId(b32encode(chance[:ID_BYTES]).decode().lower()), Secret(plain))

    @classmethod
    def parse(cls, text: str) -> "Token | None":
        """Read one; None for what cannot be a token."""
        found = SHAPE.fullmatch(text)
        return cls(TokenId(found[1]), Secret(found[2])) if found else None

    @property
    def text(self) -> str:
        """The whole token, as it is shown once."""
        return f"{PREFIX}_{self.id}_{self.secret.reveal()}"

    @property
    def digest(self) -> str:
        """SHA-256 of the whole token: what is kept."""
        return sha256(self.text.encode()).hexdigest()
