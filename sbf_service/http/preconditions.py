"""Preconditions of calls that replace a whole document (RFC 9110, 13.1.1; RFC 6585, 3)."""

from typing import Annotated

from fastapi import Header

from virtcloud.model.errors import PreconditionFailed, PreconditionRequired

ANY = "*"
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="The `ETag` of the document that was read before the change; `*` replaces any. Not needed for the "
        "first document, and for the one that is there already.",
    ),
]


def etag(version: object) -> str:
    """Return the strong entity tag of a version."""
    return f'"{version}"'


def check_match(given: str | None, version: object, what: str) -> None:
    """Raise PreconditionRequired without a condition, PreconditionFailed when no given tag is that of ``version``."""
    if given is None:
        raise PreconditionRequired(
            f"{what} would be replaced: expected If-Match with the version that was read before the change, got none; "
            f"it is {version} now. Read it, apply the change to that, and name its version ('*' replaces any)"
        )
    tags = {tag.strip() for tag in given.split(",")}
    if not tags & {ANY, etag(version)}:
        raise PreconditionFailed(
            f"{what} is version {version}, and the change was made to version {given.replace(chr(34), '')}: somebody "
            "changed it meanwhile; nothing was replaced. Read it again, apply the change to that, and try again"
        )
