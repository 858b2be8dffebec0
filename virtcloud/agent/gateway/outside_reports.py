"""Reports to SBF about the use of destinations outside the guests' networks: the counters, and the addresses of FQDNs.

The agent reports a changed use: at the agent's start, each minute, and when addresses of FQDNs change.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from virtcloud.agent import log
from virtcloud.agent.gateway.outside_links import DIRECTIONS
from virtcloud.agent.supervision import ReportProgress, StartSupervisedThread
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.outside_use import DestinationUse, OutsideReport
from virtcloud.model.values import Name

INTERVAL_S: Final = 60.0
MAX_IDLE_S: Final = 300.0


class DestinationUseApi(Protocol):
    """The call to SBF that sends the reports."""

    def report_destination_uses(self, gateway: str, report: OutsideReport) -> None:
        """Report the use of all destinations of the networks that a gateway serves as router."""


def parse_uses(listing: Mapping[str, Any] | None) -> tuple[DestinationUse, ...]:
    """Return the counters of each network and destination in ``listing``. Pure.

    ``listing`` is the packet filter's table in the JSON format of libnftables, or None if the table is missing.
    """
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for item in listing["nftables"] if listing is not None else ():
        counter = item.get("counter")
        if counter is None or counter["name"].count(".") != 2:  # noqa: PLR2004 - names of `outside_links`
            continue
        kind, network, destination = counter["name"].split(".")
        if kind in DIRECTIONS:
            found[network, destination][f"{kind}_bytes"] = counter["bytes"]
        else:
            found[network, destination]["connections"] = counter["packets"]
    return tuple(
        DestinationUse(network=network, destination=Name(destination), **values)
        for (network, destination), values in sorted(found.items())
    )


class DestinationUseReporter:
    """Reports to SBF how guests use outside destinations through one gateway."""

    def __init__(self, gateway: Name, sbf: DestinationUseApi, read: Callable[[], tuple[DestinationUse, ...]]) -> None:
        """Create a reporter."""
        self._gateway = gateway
        self._sbf = sbf
        self._read = read
        self._stopping = False
        self._woken = threading.Event()
        self._reported: tuple[DestinationUse, ...] = ()

    def start(self, start: StartSupervisedThread) -> None:
        """Start the thread that reports."""
        start("destinations outside", self._run, MAX_IDLE_S)

    def stop(self) -> None:
        """Request the end of the thread."""
        self._stopping = True
        self._woken.set()

    def notice_change(self) -> None:
        """Wake the reporting thread. Thread-safe."""
        self._woken.set()

    def report(self) -> None:
        """Send a report if the use differs from the last report. Log an error; the next call tries again."""
        uses = self._read()
        if uses == self._reported:
            return
        try:
            self._sbf.report_destination_uses(self._gateway, OutsideReport(uses=uses))
        except VirtcloudError as error:
            log.warning("destination_uses_not_reported", gateway=self._gateway, error=error)
            return
        self._reported = uses

    def _run(self, progress: ReportProgress) -> None:
        while not self._stopping:
            self._woken.clear()
            self.report()
            progress()
            self._woken.wait(INTERVAL_S)
