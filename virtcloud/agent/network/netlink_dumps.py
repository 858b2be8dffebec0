"""Dumps of netlink (netlink(7)): a dump lists all interfaces or all addresses, and consists of many messages."""

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

T = TypeVar("T")
ATTEMPTS: Final = 4
"""Maximum number of dumps that one call of `read_dump` requests."""
MESSAGES_IN_MEMORY = 20
"""Limit of parsed messages that `release_memory` leaves in memory."""
_INTERRUPTED: Final = 0x10  # NLM_F_DUMP_INTR, linux/netlink.h


def read_dump(request: Callable[[], Iterable[Any]], parse: Callable[[Any], T]) -> list[T]:
    """Return the parsed messages of a dump. If the dump was interrupted, request a new dump.

    If an interface or an address changes during a dump, the kernel marks the later messages as interrupted. Such a dump
    can lack an interface that existed during the whole dump (seen with Linux 6.1). pyroute2 0.9 ignores the mark.
    pyroute2 0.7 raises NetlinkDumpInterrupted.

    Interfaces may change all the time, so even the last of `ATTEMPTS` dumps may be interrupted. If pyroute2 ignores the
    mark, return all messages of this dump. If pyroute2 raises NetlinkDumpInterrupted, raise this error, because the
    messages after the mark are missing.
    """
    for attempt in range(ATTEMPTS):
        found, interrupted = [], 0
        try:
            for message in request():
                interrupted |= message["header"]["flags"] & _INTERRUPTED
                found.append(parse(message))
        except NetlinkDumpInterrupted:
            if attempt == ATTEMPTS - 1:
                raise
            continue
        if not interrupted:
            break
    return found


def release_memory(messages: Iterable[Any]) -> Iterator[Any]:
    """Yield messages, and release the memory of earlier messages.

    A message of pyroute2 contains reference cycles, so only a garbage collection releases the message's memory.
    """
    for number, message in enumerate(messages, start=1):
        yield message
        if number % MESSAGES_IN_MEMORY == 0:
            gc.collect()
