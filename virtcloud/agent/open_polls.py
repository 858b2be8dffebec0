"""The open poll of an agent: a long poll that continues while the agent reads its host.

By default, the agent reads its host every 30 s, but a long poll lasts up to 55 s. If the wanted document cannot change
without a new revision, the agent leaves the poll open while the agent compares its host with the present document. This
overlap halves the number of polls.
"""

import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Protocol

from virtcloud.agent import log
from virtcloud.agent.host_reports import ElementApi
from virtcloud.model.wanted import WantedDocument

OPEN_S = 55.0
"""Longest time in seconds of an open poll. Many proxies end a call that the server has not answered within 60 s."""
Spawn = Callable[[Callable[[], None]], object]


class PolledSbf(ElementApi, Protocol):
    """The calls of SBF that the reconciler and the open poll need."""

    def find_settled(self, element: str, revision: int) -> WantedDocument | None:
        """Return the stored document of ``revision``, or None if the agent must read the document from SBF again."""


def spawn_thread(work: Callable[[], None]) -> None:
    """Run ``work`` in a daemon thread, which does not delay the end of the process."""
    threading.Thread(target=work, name="open-poll", daemon=True).start()


class OpenPoll:
    """The calls to SBF for a reconciler, with at most one open poll.

    Only the reconciler's thread may use an object of this class.
    """

    def __init__(self, sbf: PolledSbf, spawn: Spawn = spawn_thread) -> None:
        """Create an object that sends all calls to ``sbf``. ``spawn`` runs a function in a new thread."""
        self._sbf = sbf
        self._spawn = spawn
        self._open: tuple[int, Future[WantedDocument]] | None = None
        self.confirm, self.report_error, self.report_drift = sbf.confirm, sbf.report_error, sbf.report_drift

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Wait at most ``wait`` seconds for a revision later than ``after``. Return the wanted document.

        If no such revision arrives in time, return the document of ``after``. If the open poll has failed, raise its
        error. If no thread can be started, send a separate poll.
        """
        settled = None if after is None else self._sbf.find_settled(element, after)
        if after is None or settled is None:
            self._open = None  # the thread of the open poll ends when SBF answers
            return self._sbf.wanted(element, after, wait)
        answer = self._find_or_start(element, after)
        if answer is None:
            return self._sbf.wanted(element, after, wait)
        if not futures.wait([answer], wait).done:
            return settled
        self._open = None
        return answer.result()

    def _find_or_start(self, element: str, after: int) -> "Future[WantedDocument] | None":
        """Return the answer of the open poll. Start the poll if necessary. Return None if no thread can be started."""
        if self._open is not None and self._open[0] == after:
            return self._open[1]
        answer: Future[WantedDocument] = Future()
        self._open = None
        try:
            self._spawn(lambda: self._poll(element, after, answer))
        except RuntimeError as error:  # the host has no thread or no memory left
            log.warning("open_poll_not_started", element=element, error=error)
            return None
        self._open = after, answer
        return answer

    def _poll(self, element: str, after: int, answer: "Future[WantedDocument]") -> None:
        try:
            answer.set_result(self._sbf.wanted(element, after, OPEN_S))
        except BaseException as error:  # noqa: BLE001 - `OpenPoll.wanted` raises this error in the reconciler's thread
            answer.set_exception(error)
