"""The reconciler of a host.

It fetches the wanted state, reads the host, applies the difference, reads the host again, and confirms the revision.

==============================  ========================================================================
event                           reaction
==============================  ========================================================================
SBF does not answer             the host is not changed; the request is retried with growing pauses
the agent cannot read the       the host is not changed; SBF receives an error report; the request is retried
wanted document                 with growing pauses
a step fails                    the steps of other clusters are applied; SBF receives an error report; all
                                steps are retried with growing pauses, or immediately when the wanted state
                                changes or a job waits for its cluster
only removals of clusters fail  the revision is confirmed, except the removal of these clusters; the removals are
                                retried with growing pauses
a hypervisor does not answer    segments are reconciled nevertheless, even if guests of a removed cluster
                                are still running; no revision is confirmed until every hypervisor was read
the host refuses a cluster      SBF receives the refusal, so the cluster fails before its deadline
three times in a row
a guest ended by itself         the guest starts again after a pause that grows with each end; its cluster is not
                                confirmed until the guest has run for a while; other clusters are
a guest's image is being        all other clusters are reconciled and confirmed; SBF receives the progress of the fetch
fetched
SBF holds a network after a     what exists of the network stays; nothing more is set up until SBF requests it in a
restore of its database         later document
a segment has requirements      the segment is neither built nor confirmed; its guests continue to run; SBF
that this agent does not know   receives an error report
the host differs from a         SBF receives a drift report; then the host is corrected and the revision is
confirmed revision, or was      confirmed again
rebooted
a stop of the agent is          the agent stops when the current step is complete; segments and guests stay
requested                       on the host
==============================  ========================================================================
"""

import random
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from virtcloud import __version__
from virtcloud.agent import log
from virtcloud.agent.difference import compute_difference
from virtcloud.agent.guest_ends import GuestEnds
from virtcloud.agent.host_boot import HostBoot
from virtcloud.agent.host_conclusions import (
    format_steps,
    has_drifted,
    list_failed_removals,
    map_cluster_keys,
    select_certain_steps,
)
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import ClusterErrors, ManagedHost, StepApplication, unsupported_segments
from virtcloud.agent.steps import StartGuest, Step
from virtcloud.agent.supervision import StopRequested, StopSignal
from virtcloud.client.call_headers import calling_for
from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.model.call_context import CallContext, join_request_ids
from virtcloud.model.errors import AnswerUnreadable, BadInput, ServiceUnreachable, VirtcloudError
from virtcloud.model.wanted import HostWanted, WantedDocument
from virtcloud.tracing import span_of_calls

WAKE_CHECK_S = 1.0
"""Longest time in seconds between a call of `wake` and the end of a wait for SBF."""
PENDING_ROUNDS = 2
"""While a cluster waits for an image, the pause between two rounds is as long as after this number of failures."""
MAX_REFUSALS = 3
"""A cluster that is refused this many times in a row is reported as refused.

The cause of fewer refusals may be temporary, for example while an image is still being copied to the host.
"""


class ElementApi(Protocol):
    """The calls of SBF that the reconciler needs."""

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Wait at most ``wait`` seconds for a revision later than ``after``. Return the wanted document."""

    def confirm(
        self,
        element: str,
        revision: int,
        incomplete: Mapping[str, str] | None = None,
        remaining: Mapping[str, str] | None = None,
    ) -> None:
        """Confirm that the element carries ``revision``, with exceptions by cluster ID.

        ``incomplete`` clusters still wait for something. ``remaining`` clusters could not be removed. Raise BadInput if
        SBF does not know an exception.
        """

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """Report why the element does not carry ``revision``. ``refused`` and ``clusters`` are errors by cluster ID."""

    def report_drift(self, element: str, revision: int) -> None:
        """Report that the element no longer carries ``revision``, although the element had confirmed ``revision``."""


@dataclass(frozen=True, slots=True)
class ReconcileTiming:
    """Seconds between two readings of an unchanged host, and seconds of the first and longest pause before a retry."""

    check_s: float = 30.0
    retry_first_s: float = 0.5
    retry_most_s: float = 30.0


class HostReconciler:
    """Reconciles one host, which is an element of SBF."""

    def __init__(  # noqa: PLR0913, PLR0917 - the dependencies
        self,
        element: str,
        sbf: ElementApi,
        host: ManagedHost,
        stop: StopSignal,
        timing: ReconcileTiming,
        woken: threading.Event | None = None,
        progress: Callable[[], object] = lambda: None,
        report_capacity: Callable[[], object] = lambda: None,
        starts_at_once: int = 1,
        boot: HostBoot | None = None,
        receive: Callable[[HostWanted], object] = lambda _wanted: None,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Reconcile ``host``. Start at most ``starts_at_once`` guests at the same time.

        Setting ``woken`` ends a pause. ``progress`` is called after each step and each call to SBF. ``receive`` is
        called with each wanted document before the host is changed, and ``report_capacity`` after each wanted document.
        ``boot`` detects a reboot of the host; None: no reboot is detected. ``clock`` returns seconds. ``jitter``
        returns a number from 0 to 1, which lengthens pauses.
        """
        self._boot = boot
        self._receive = receive
        self._jitter = jitter
        self._element = element
        self._sbf = sbf
        self._host = host
        self._application = StepApplication(element, host, stop, progress, starts_at_once)
        self._stop = stop
        self._timing = timing
        self._last_revision: int | None = None
        self._ends = GuestEnds(clock, host.find_end_cause)
        self._failed_rounds = 0
        self._refusals: dict[str, int] = {}
        self._pending: ClusterErrors = {}
        self._is_fetching = False
        self._reported: ClusterErrors = {}
        """The exceptions of the latest confirmation: pending clusters, and clusters that could not be removed."""
        self._may_be_in_error = True
        """Whether SBF may have an error report of this host, also of a former process. A confirmation clears it."""
        self._woken = woken or threading.Event()
        self._progress = progress
        self._report_capacity = report_capacity

    def wake(self) -> None:
        """End a pause between two attempts. Any thread may call this method."""
        self._woken.set()

    def run(self) -> None:
        """Reconcile until a stop is requested, then return. The segments and guests stay on the host."""
        try:
            while True:
                self.reconcile_once()
        except StopRequested:
            log.info("stopped", element=self._element)

    def reconcile_once(self) -> None:
        """Wait until the wanted state changes or the next check is due, then reconcile once."""
        try:
            with self._stop.interruptible():
                document = self._fetch()
            self._progress()
            traces = [call.traceparent for call in document.calls if call.traceparent is not None]
            traced = span_of_calls("reconcile host", traces, element=self._element, revision=document.revision)
            with traced, calling_for(_make_call(document.calls)):
                self._receive(document.wanted)
                self._report_capacity()
                self._reconcile_and_report(document)
        except VirtcloudError as error:
            unreachable = isinstance(error, ServiceUnreachable)
            log.warning("sbf_unreachable" if unreachable else "sbf_refused", element=self._element, error=error)
            self._failed_rounds += 1
            if isinstance(error, AnswerUnreadable):
                self._report_unreadable(error)
            with self._stop.interruptible():
                self._woken.wait(compute_retry_pause(error, self._retry_pause(), self._jitter))
                self._woken.clear()
        self._progress()

    def _report_unreadable(self, error: AnswerUnreadable) -> None:
        """Report that this version cannot read the wanted document. Otherwise, only the log would contain this."""
        message = (
            f"this agent (virtcloud {__version__}) cannot read the wanted document: {error.fault}; the host keeps its "
            "clusters and guests, but gets no changes: upgrade the agent to SBF's version"
        )
        self._may_be_in_error = True
        try:
            self._sbf.report_error(self._element, self._last_revision or 0, message)
        except VirtcloudError as failure:
            log.warning("error_not_reported", element=self._element, error=failure)

    def _fetch(self) -> WantedDocument:
        """Return the wanted document when its revision changes, the check interval ends, or `wake` is called."""
        if not self._failed_rounds:
            return self._sbf.wanted(self._element, self._last_revision, self._check_pause())
        pause = self._retry_pause()
        while True:
            wait = min(pause, WAKE_CHECK_S)
            document = self._sbf.wanted(self._element, self._last_revision, wait)
            pause -= wait
            if pause <= 0 or document.revision != self._last_revision or self._woken.is_set():
                self._woken.clear()
                return document

    def _check_pause(self) -> float:
        """Return the seconds until the host must be read again."""
        due = self._ends.seconds_until_due()
        return self._timing.check_s if due is None else min(self._timing.check_s, max(due, WAKE_CHECK_S))

    def _retry_pause(self) -> float:
        return min(self._timing.retry_first_s * 2.0 ** min(self._failed_rounds - 1, 30), self._timing.retry_most_s)

    def _reconcile_and_report(self, document: WantedDocument) -> None:
        errors, drifted = self._reconcile(document)
        remaining = list_failed_removals(document.wanted, errors)
        is_confirmed = remaining == errors and self._confirm(document, remaining, drifted=drifted)
        self._failed_rounds = self._failed_rounds + 1 if errors else PENDING_ROUNDS if self._is_fetching else 0
        self._last_revision = document.revision
        if not is_confirmed:
            self._report(document, errors)

    def _report(self, document: WantedDocument, errors: ClusterErrors) -> None:
        keys = map_cluster_keys(document.wanted)
        message = "; ".join(
            f"cluster {keys.get(cluster, cluster)}: {text}" if cluster else text for cluster, text in errors.items()
        )
        log.warning("reconcile_failed", element=self._element, revision=document.revision, message=message)
        by_cluster = {cluster: text for cluster, text in errors.items() if cluster}
        refused = self._persistent_refusals(keys, by_cluster)
        self._may_be_in_error = True
        self._sbf.report_error(self._element, document.revision, message, refused, by_cluster)

    def _persistent_refusals(self, wanted: Container[str], errors: ClusterErrors) -> dict[str, str]:
        """Return the last errors, by cluster ID, of clusters refused at least `MAX_REFUSALS` times in a row."""
        return {
            cluster: text
            for cluster, text in errors.items()
            if cluster in wanted and self._refusals.get(cluster, 0) >= MAX_REFUSALS
        }

    def _reconcile(self, document: WantedDocument) -> tuple[ClusterErrors, bool]:
        """Apply the difference, and read the host back. Return the errors, and whether the host had drifted."""
        self._pending, self._is_fetching, drifted = {}, False, False
        try:
            self._host.remove_orphaned_files(document.wanted)
            observed = self._host.read()
            steps = compute_difference(document.wanted, observed)
            self._ends.observe(steps, observed)
            certain = [step for step in select_certain_steps(steps, observed) if not self._ends.has_ended(step)]
            drifted = has_drifted(certain, document, self._reported, rebooted=self._is_rebooted())
            if drifted:
                log.warning("drifted", element=self._element, revision=document.revision, steps=format_steps(steps))
                self._sbf.report_drift(self._element, document.revision)
            if self._boot and (drifted or not observed.hypervisor_errors):
                self._boot.record_report()
            due = self._ends.select_due(steps)
            errors = self._apply(due, document) if due else {}
            if due and list_failed_removals(document.wanted, errors) == errors:
                remaining, observed = self._read_back(document, due)
                errors = {**remaining, **errors}
            self._pending |= self._ends.describe(map_cluster_keys(document.wanted))
            errors = {**unsupported_segments(document.wanted.segments), **errors}
            if observed.hypervisor_errors:
                errors[""] = "; ".join(observed.hypervisor_errors)
        except ServiceUnreachable:
            raise
        except VirtcloudError as error:
            return {"": str(error)}, drifted
        except Exception as error:  # noqa: BLE001 - reported and retried like any other error
            return {"": str(log.internal_error(error, element=self._element, revision=document.revision))}, drifted
        return errors, drifted

    def _is_rebooted(self) -> bool:
        return self._boot is not None and self._boot.is_unreported

    def _confirm(self, document: WantedDocument, remaining: ClusterErrors, *, drifted: bool) -> bool:
        """Confirm the revision, except pending clusters and failed removals.

        Confirm again if the exceptions changed, or if SBF may have an error report that is no longer true. Return False
        if SBF is a former version that does not know failed removals: it would regard them as removed.
        """
        exceptions = {**self._pending, **remaining}
        is_complete = document.confirmed_revision >= document.revision and not drifted
        is_recorded = set(self._pending) <= set(document.incomplete) and bool(exceptions) >= bool(document.incomplete)
        if is_complete and is_recorded and exceptions == self._reported and not self._may_be_in_error:
            return True
        try:
            self._sbf.confirm(self._element, document.revision, self._pending, remaining)
        except BadInput as error:
            if not remaining:
                raise
            log.warning("failed_removals_unknown_to_sbf", element=self._element, error=error)
            return False
        self._reported, self._may_be_in_error = exceptions, False
        log.info("confirmed", element=self._element, revision=document.revision, **_log_exceptions(exceptions))
        return True

    def _apply(self, steps: Iterable[Step], document: WantedDocument) -> ClusterErrors:
        """Apply the steps. Count the refusals of each cluster. Return the errors."""
        former, self._refusals = self._refusals, {}
        outcomes = self._application.apply(steps, map_cluster_keys(document.wanted))
        self._pending = {**outcomes.held, **outcomes.pending}
        self._is_fetching = bool(outcomes.pending)
        self._refusals = {cluster: former[cluster] for cluster in outcomes.pending if cluster in former}
        self._refusals |= {cluster: former.get(cluster, 0) + 1 for cluster in outcomes.refused}
        return outcomes.errors

    def _read_back(self, document: WantedDocument, applied: Iterable[Step]) -> tuple[ClusterErrors, ObservedHost]:
        """Read the host again. Return the remaining steps as errors, and the observed state."""
        observed = self._host.read()
        steps = compute_difference(document.wanted, observed)
        started = [step for step in applied if isinstance(step, StartGuest) and step.cluster not in self._pending]
        self._ends.observe(steps, observed, started)
        remaining: dict[str, list[str]] = {}
        for step in select_certain_steps(steps, observed):
            if step.cluster not in self._pending and not self._ends.has_ended(step):
                remaining.setdefault(step.cluster, []).append(str(step))
        differs = "after all steps, the host still differs from the wanted state: "
        return {cluster: differs + ", ".join(left) for cluster, left in remaining.items()}, observed


def _make_call(calls: Sequence[CallContext]) -> CallContext | None:
    """Return the context in which the agent works for ``calls``; None without calls."""
    if not calls:
        return None
    trace = calls[0].traceparent if len(calls) == 1 else None
    return CallContext(request_id=join_request_ids(calls), traceparent=trace)


def _log_exceptions(exceptions: ClusterErrors) -> dict[str, str]:
    return {"except_clusters": "; ".join(exceptions.values())} if exceptions else {}
