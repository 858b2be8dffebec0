"""Server-sent events: notices that a page has changed.

An event contains no data of the service: after an event, the page reads its changed part with an ordinary request. This
request checks the session and the rights again. A stream ends when the session ends.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from sbf_service.bootstrap import SbfService
from sbf_service.console.sessions import Browser, read_session
from sbf_service.store.users.console_sessions import CONSOLE_SESSIONS_TOPIC
from sbf_service.store.users.tokens import TOKENS_TOPIC
from virtcloud.model.errors import ServiceUnreachable, VirtcloudError

PAUSE_S: Final = 0.5
"""The pause in seconds after each event ``changed``, so that many changes cause few requests."""
SIGN_OF_LIFE_S: Final = 15.0
"""After this time in seconds without an event, the stream checks the session and sends the event ``alive``.

Proxies close idle streams, and a page must detect a broken stream.
"""
MAX_STREAMS: Final = 20
"""The maximum number of streams of one user at this replica. The console closes the stream of a hidden page."""


@dataclass(frozen=True, slots=True)
class LivePage:
    """The changes that concern a page. The page has changed when the value of ``read_version()`` has changed.

    ``topics`` are the topics under which the change feed publishes changes of this value. ``seen`` is the value when
    the page was rendered; None if the browser sent no value.
    """

    topics: Sequence[str]
    read_version: Callable[[], Hashable]
    seen: Hashable = None


@dataclass(frozen=True, slots=True)
class StreamCounts:
    """The numbers of open streams, by user. Only the event loop uses this object."""

    counts: Counter[str] = field(default_factory=Counter)


def stream_events(service: SbfService, browser: Browser, counts: StreamCounts, page: LivePage) -> StreamingResponse:
    """Return the stream of a page. After the event ``ready``, the stream sends ``changed`` when the page has changed.

    If the page has changed since it was rendered, the first ``changed`` follows ``ready`` immediately.
    """
    events = _count_stream(browser, counts, _follow(service, browser, page))
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


async def _count_stream(browser: Browser, counts: StreamCounts, events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield ``events``, and count their stream in ``counts`` while the stream is open.

    If the user already has ``MAX_STREAMS`` streams, yield only the event ``full``. An error status would be useless:
    scripts cannot read the status of an event stream.
    """
    if counts.counts[browser.caller.who] >= MAX_STREAMS:
        yield f"event: full\ndata: {MAX_STREAMS}\n\n"
        return
    counts.counts[browser.caller.who] += 1
    try:
        async for event in events:
            yield event
    finally:
        counts.counts[browser.caller.who] -= 1


async def _follow(service: SbfService, browser: Browser, page: LivePage) -> AsyncIterator[str]:
    feed, sent_at = service.change_feed, time.monotonic()
    with feed.watch(*page.topics, uncompared=(CONSOLE_SESSIONS_TOPIC, TOKENS_TOPIC)) as waiter:
        version = await run_in_threadpool(page.read_version)
        yield "retry: 3000\nevent: ready\ndata:\n\n"
        if page.seen not in {None, version}:
            yield "event: changed\ndata:\n\n"
        while not feed.closed:
            has_changed = await waiter.wait(max(0.0, sent_at + SIGN_OF_LIFE_S - time.monotonic()))
            try:
                await run_in_threadpool(partial(read_session, service, browser.secret))
                newest = await run_in_threadpool(page.read_version)
            except ServiceUnreachable:
                return  # the page connects again, and shows meanwhile that its content may be out of date
            except VirtcloudError:
                yield "event: end\ndata:\n\n"
                return
            if newest != version:
                version, sent_at = newest, time.monotonic()
                yield "event: changed\ndata:\n\n"
                await asyncio.sleep(PAUSE_S)
            elif not has_changed or time.monotonic() - sent_at >= SIGN_OF_LIFE_S:
                sent_at = time.monotonic()
                yield "event: alive\ndata:\n\n"
