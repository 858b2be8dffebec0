"""Authentication: principals, tokens, and local users. Pure: callers pass in the random bytes.

Decision 16 explains the format of tokens and why SBF stores a fast hash of each token.
"""

import re
from base64 import b32encode, urlsafe_b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256

from pydantic import SecretStr

from virtcloud.model.access import Identity, Role, TokenId
from virtcloud.model.errors import BadInput, Unauthenticated
from virtcloud.model.values import Name, UserName

MACHINE_ROLES = frozenset({Role.AGENT, Role.SCHEDULER, Role.JOB_STARTER})


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    ``sites`` are the sites of a site administrator, and ``token`` is the ID of the presented token.
    """

    name: str
    role: Role
    sites: frozenset[Name] = field(default_factory=frozenset)
    token: TokenId | None = None

    @property
    def who(self) -> str:
        """The name in the audit log: a person's name, or the role and name of a program (``agent@brno-h1``)."""
        return f"{self.role}@{self.name}" if self.role in MACHINE_ROLES else self.name

    def __str__(self) -> str:
        """Return the name and the role: ``alice (user)``."""
        return f"{self.name} ({self.role})"

    @property
    def identity(self) -> Identity:
        """The document that describes the principal to clients."""
        return Identity(name=self.name, role=self.role, sites=tuple(sorted(self.sites)), token=self.token)


TOKEN_PREFIX = "vc"  # noqa: S105 - the public prefix of every token
ID_BYTES, SECRET_BYTES = 5, 32
TOKEN_PATTERN = re.compile(rf"{TOKEN_PREFIX}_({TokenId.pattern})_([A-Za-z0-9_-]{{43}})")


@dataclass(frozen=True, slots=True)
class Token:
    """A token: ``vc_``, its ID, and 256 secret random bits."""

    id: TokenId
    secret: SecretStr

    @classmethod
    def make(cls, random_bytes: bytes) -> "Token":
        """Create a token from ``ID_BYTES + SECRET_BYTES`` random bytes."""
        plain = urlsafe_b64encode(random_bytes[ID_BYTES:]).rstrip(b"=").decode()
        return cls(TokenId(b32encode(random_bytes[:ID_BYTES]).decode().lower()), SecretStr(plain))

    @classmethod
    def parse(cls, text: str) -> "Token | None":
        """Parse a token. Return None for a text that is not a token."""
        match = TOKEN_PATTERN.fullmatch(text)
        return cls(TokenId(match[1]), SecretStr(match[2])) if match else None

    @property
    def text(self) -> str:
        """The whole token. SBF shows this text only once, when the token is created."""
        return f"{TOKEN_PREFIX}_{self.id}_{self.secret.get_secret_value()}"

    @property
    def digest(self) -> str:
        """The SHA-256 hash of the whole token. SBF stores this hash instead of the token."""
        return sha256(self.text.encode()).hexdigest()


ROOT_UID = 0


class LocalUsers(StrEnum):
    """The authentication of local users, except root and the service's user: by user ID, or only by token."""

    USER = "user"
    TOKEN = "token"  # noqa: S105 - a value of a setting, not a password


def identify_local_user(uid: int, name: str | None, service_uid: int, setting: LocalUsers) -> Principal:
    """Return the principal of a local user.

    Raise Unauthenticated if ``setting`` requires a token, or if the user's name is not valid for SBF.
    """
    if uid in {ROOT_UID, service_uid}:
        return Principal(name or f"uid-{uid}", Role.OPERATOR)
    user = _describe_user(uid, name)
    if setting is LocalUsers.TOKEN:
        raise Unauthenticated(
            f"{user} must present a token, because SBF's setting local_users is 'token': {LOGIN_HINT}"
        )
    try:
        return Principal(UserName(name or ""), Role.USER)
    except BadInput as error:
        raise Unauthenticated(f"{user} has no valid user name for SBF ({UserName.meaning}): {LOGIN_HINT}") from error


LOGIN_HINT = "log in with 'virtcloud login', or name a token's file with --token-file or VIRTCLOUD_TOKEN_FILE"


def _describe_user(uid: int, name: str | None) -> str:
    return f"the local user {name}" if name else f"the local user with the user ID {uid}"
