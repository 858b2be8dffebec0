"""Sessions of browsers with the web console: their secrets, and the tokens against forged requests. Pure.

The secret of a session is in a cookie, and SBF stores only its hash. Each form contains a token derived from the
secret. Another web site does not know this token, and therefore cannot send the form (OWASP, Cross-Site Request Forgery
Prevention).
"""

import hmac
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pydantic import SecretStr

from sbf_service.domain.authentication import MACHINE_ROLES, Principal
from virtcloud.model.errors import Forbidden

SECRET_BYTES: Final = 32
_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_FORM_CONTEXT: Final = b"virtcloud console form"


@dataclass(frozen=True, slots=True)
class SessionSecret:
    """The secret of a session: 256 random bits."""

    secret: SecretStr

    @classmethod
    def make(cls, random_bytes: bytes) -> "SessionSecret":
        """Create a secret from ``SECRET_BYTES`` random bytes."""
        return cls(SecretStr(urlsafe_b64encode(random_bytes).rstrip(b"=").decode()))

    @classmethod
    def parse(cls, text: str) -> "SessionSecret | None":
        """Parse a secret. Return None for a text that is not a secret."""
        return cls(SecretStr(text)) if _PATTERN.fullmatch(text) else None

    @property
    def text(self) -> str:
        """The secret itself, for the cookie."""
        return self.secret.get_secret_value()

    @property
    def digest(self) -> str:
        """The SHA-256 hash of the secret."""
        return sha256(self.text.encode()).hexdigest()

    @property
    def form_token(self) -> str:
        """The token of the session's forms."""
        return hmac.new(self.text.encode(), _FORM_CONTEXT, sha256).hexdigest()

    def matches(self, form_token: str) -> bool:
        """Return whether ``form_token`` is this session's token.

        The comparison takes constant time.
        """
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())


def check_person(principal: Principal) -> None:
    """Raise Forbidden for a program's role: the console is for persons."""
    if principal.role in MACHINE_ROLES:
        raise Forbidden(
            f"{principal} may not log in to the console: expected a token of a person (user, site-administrator or "
            f"operator), got a token of the role {principal.role}; ask an operator for a token of your own"
        )
