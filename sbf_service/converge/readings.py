"""Reading devices for a caller: one that cannot be read is reported with the reason, and hides no other answer."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sbf_service.log import get_log
from sbf_service.threads import BoundedThreads
from virtcloud.model.errors import VirtcloudError

log = get_log(__name__)

LIMIT_S = 60.0
"""A device that has not answered by then is reported as not read; the others' answers do not wait for it."""
T = TypeVar("T")


async def read_or_reason(threads: BoundedThreads, read: Callable[[], T], named: str, limit_s: float) -> T | str:
    """Return what ``read`` returns, run in a thread of ``threads``, or the reason why the device was not read.

    ``named`` is the device in that reason; ``limit_s`` are the seconds for a free thread and the answer together.
    """
    try:
        return await asyncio.wait_for(threads.run(read, patience=limit_s), limit_s)
    except TimeoutError:
        return f"{named} has not answered for {limit_s:g} s"
    except VirtcloudError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a fault of one driver must not hide the others' answers
        log.fault("reading_fault", error, device=named)
        return f"{named}: a fault in the service, which is in its log: {type(error).__name__}"
