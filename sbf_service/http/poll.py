"""Long polls: a client waits without a thread, and hears of a change at once."""

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.notify import Notifier, changed_within

MOST_SECONDS = 60
LOOK_AGAIN_S = 1.0
"""Another replica may have made the change: look this often."""

After = Annotated[int | None, Query(description="Answer when there is something newer than this.")]
Wait = Annotated[float, Query(ge=0, le=MOST_SECONDS, description="Seconds to wait for it at most.")]


async def newer(notifier: Notifier, name: str, number: Callable[[], int], after: int | None, wait: float) -> None:
    """Return when ``number()`` is past ``after``, after ``wait`` seconds, or when the service stops."""
    if after is None or wait <= 0:
        return
    ends = time.monotonic() + wait
    with notifier.watch(name) as event:
        while await run_in_threadpool(number) <= after and not notifier.closed:
            left = ends - time.monotonic()
            if left <= 0:
                return
            await changed_within(event, min(LOOK_AGAIN_S, left))
