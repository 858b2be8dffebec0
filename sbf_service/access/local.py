"""Whom a user of the service's own machine is taken for, when the kernel says who it is. Pure."""

from enum import StrEnum

from sbf_service.access.principal import Principal
from virtcloud.model.access import Role
from virtcloud.model.errors import BadInput, Unauthenticated
from virtcloud.model.values import UserName

ROOT = 0


class LocalUsers(StrEnum):
    """What local users are who are neither root nor the service itself."""

    USER = "user"
    TOKEN = "token"  # noqa: S105 - no password: a word of the settings


def local_principal(uid: int, name: str | None, service_uid: int, others: LocalUsers) -> Principal:
    """Give the principal. Raises Unauthenticated for a user who needs a token."""
    if uid in {ROOT, service_uid}:
        return Principal(name or f"uid-{uid}", Role.OPERATOR)
    if others is LocalUsers.TOKEN:
        raise Unauthenticated(f"{_user(uid, name)} needs a token here, as everybody but root: {HOW}")
    try:
        return Principal(UserName(name or ""), Role.USER)
    except BadInput as error:
        raise Unauthenticated(
            f"{_user(uid, name)} cannot be a user of SBF by that name ({UserName.meaning}): {HOW}"
        ) from error


HOW = "log in with 'virtcloud login', or name a token's file with --token-file or VIRTCLOUD_TOKEN_FILE"


def _user(uid: int, name: str | None) -> str:
    return f"the local user {name}" if name else f"the local user with the number {uid}"
