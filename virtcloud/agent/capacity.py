"""Reports to SBF about a host: its capacity and the names of its images."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from virtcloud.agent import log
from virtcloud.agent.guests.images import IMAGE_FILE
from virtcloud.model.errors import BadInput, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import MAX_HOST_IMAGES, HostCapacity

REPORT_INTERVAL_S = 3600.0
"""Seconds between two reports of an unchanged capacity.

The agent repeats the report, because a restored database of SBF may lack the latest report.
"""
RETRY_S = 60.0
MIB = 1 << 20


class CapacityApi(Protocol):
    """The API call with which the agent sends its reports to SBF."""

    def report_capacity(self, element: str, capacity: HostCapacity) -> None:
        """Report the capacity of the host ``element``."""


def read_capacity(images: Path | None = None) -> HostCapacity:
    """Return the number of online processors, the machine's memory, and the names of the images in ``images``."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostCapacity(
        cpus=os.sysconf("SC_NPROCESSORS_ONLN"),
        memory_mb=max(1, memory // MIB),
        images=tuple(_list_names(images)) if images is not None else (),
    )


def _list_names(folder: Path) -> list[Name]:
    found: list[Name] = []
    with suppress(OSError):
        for path in sorted(folder.glob(f"*/{IMAGE_FILE}")):
            with suppress(VirtcloudError):
                found.append(Name(path.parent.name))
    return found[:MAX_HOST_IMAGES]


class CapacityReporter:
    """Reports the capacity of one host: at the agent's start, after each change, and each hour."""

    def __init__(
        self,
        element: str,
        sbf: CapacityApi,
        read: Callable[[], HostCapacity] = read_capacity,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a reporter."""
        self._element = element
        self._sbf = sbf
        self._read = read
        self._clock = clock
        self._reported: HostCapacity | None = None
        self._next_s = clock()

    def report(self) -> None:
        """Report the capacity if the capacity has changed or a report is due.

        If an earlier version of SBF refuses the names of images, send the report again without the names. After a
        failed report, the next report is due after `RETRY_S` seconds.
        """
        capacity = self._read()
        changed = self._reported is not None and capacity != self._reported
        if not changed and self._clock() < self._next_s:
            return
        try:
            self._send(capacity)
        except VirtcloudError as error:
            log.info("capacity_not_reported", element=self._element, error=error)
            self._reported, self._next_s = None, self._clock() + RETRY_S
            return
        self._reported, self._next_s = capacity, self._clock() + REPORT_INTERVAL_S

    def _send(self, capacity: HostCapacity) -> None:
        try:
            self._sbf.report_capacity(self._element, capacity)
        except BadInput:
            if not capacity.images:
                raise
            self._sbf.report_capacity(self._element, capacity.model_copy(update={"images": ()}))
