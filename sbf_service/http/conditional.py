"""Long polls: a client waits without a thread, and hears of a change at once.

Preconditions of calls that replace a whole document (RFC 9110, 13.1.1; RFC 6585, 3).
"""

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Header, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.change_feed import ChangeFeed, wait_for_change
from virtcloud.model.errors import PreconditionFailed, PreconditionRequired

MAX_WAIT_S = 60
POLL_INTERVAL_S = 1.0
"""Another replica may have made the change: look this often."""

After = Annotated[int | None, Query(description="Answer when there is something newer than this.")]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for it at most.")]


async def wait_until_newer(
    change_feed: ChangeFeed, name: str, number: Callable[[], int], after: int | None, wait: float
) -> None:
    """Return when ``number()`` is past ``after``, after ``wait`` seconds, or when the service stops."""
    if after is None or wait <= 0:
        return
    ends = time.monotonic() + wait
    with change_feed.watch(name) as event:
        while await run_in_threadpool(number) <= after and not change_feed.closed:
            left = ends - time.monotonic()
            if left <= 0:
                return
            await wait_for_change(event, min(POLL_INTERVAL_S, left))


ANY_ETAG = "*"
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


def check_if_match(given: str | None, version: object, what: str) -> None:
    """Raise PreconditionRequired without a condition, PreconditionFailed when no given tag is that of ``version``."""
    if given is None:
        raise PreconditionRequired(
            f"{what} would be replaced: expected If-Match with the version that was read before the change, got none; "
            f"it is {version} now. Read it, apply the change to that, and name its version ('*' replaces any)"
        )
    tags = {tag.strip() for tag in given.split(",")}
    if not tags & {ANY_ETAG, etag(version)}:
        raise PreconditionFailed(
            f"{what} is version {version}, and the change was made to version {given.replace(chr(34), '')}: somebody "
            "changed it meanwhile; nothing was replaced. Read it again, apply the change to that, and try again"
        )
