"""The reconciler of a host.

The reconciler fetches the wanted state, reads the host, applies the difference, reads the host again, and confirms the
revision.

==============================  ========================================================================
event                           reaction
==============================  ========================================================================
SBF does not answer             the request is retried with growing pauses; the host is not changed, except that
                                filters of guests that differ from the last wanted state are set again
the agent cannot read the       the host is not changed; SBF receives an error report; the request is retried
wanted document                 with growing pauses
a step fails                    the steps of other clusters are applied; SBF receives an error report; all
                                steps are retried with growing pauses, or immediately when the wanted state
                                changes or a job waits for its cluster
only removals of clusters       the revision is confirmed, except the removal of these clusters; the removals are
fail, or only stops of guests   retried with growing pauses. If stops of guests fail, the agent reports only the ID of
whose clusters left a network   the network: SBF knows which clusters left this network
only starts of guests, or       the revision is confirmed, except the clusters of these guests; members of the
stops for restarts, fail        networks that these clusters created are confirmed if SBF's version supports this;
                                the steps are retried with growing pauses
a guest with the power "off"    the same, except that the confirmation names this guest; if SBF's version does not
cannot be stopped               support this, no revision is confirmed
a hypervisor does not answer    segments are reconciled nevertheless: the segment of a removed cluster is removed,
                                even if guests of this cluster are still running; no revision is confirmed until
                                every hypervisor was read
the host refuses a cluster      SBF receives a report of the refusal, and sets the cluster to failing without waiting
three times in a row            for the cluster's deadline
a guest ended by itself         the guest starts again after a pause that grows with each end; its cluster is not
                                confirmed until the guest has run for a while; other clusters are confirmed
a guest lacks its port on the   the cluster is not confirmed until its owner resets the guest, or until the
host for ten seconds, or a      administrator corrects the gateway; other clusters are confirmed
gateway lacks the link outside
a guest's image is fetched      all other clusters are reconciled and confirmed; SBF receives the progress of the fetch
SBF's database was restored,    existing interfaces and guests of the network stay; the agent creates further
and SBF has not yet checked a   interfaces and guests of the network only when a later document of SBF requests them
network's VLAN ID
a segment has requirements      the segment is neither built nor confirmed; its guests continue to run; SBF
that this agent does not know   receives an error report
drift, or a reboot of the host  SBF receives a drift report; then the host is corrected and the revision is
                                confirmed again
a stop of the agent is          the agent stops when the current step is complete; segments and guests stay
requested                       on the host
==============================  ========================================================================
"""

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from virtcloud.agent import log
from virtcloud.agent.difference import compute_difference, list_unstopped
from virtcloud.agent.guest_ends import GuestEnds
from virtcloud.agent.host_boot import HostBoot, record_boot
from virtcloud.agent.host_conclusions import (
    NO_EFFECT,
    ReconcileRound,
    describe_remaining_steps,
    has_drifted,
    list_failed_removals,
    make_confirmation,
    map_cluster_keys,
    select_certain_steps,
)
from virtcloud.agent.host_reports import ElementApi, HostReports, join_reasons
from virtcloud.agent.lasting_faults import LastingFaults
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import ClusterErrors, ManagedHost, StepApplication, unsupported_segments
from virtcloud.agent.steps import FilterGuests, StartGuest, Step, is_leave, is_power_off
from virtcloud.agent.supervision import StopRequested, StopSignal
from virtcloud.client.http_errors import compute_retry_pause
from virtcloud.current_call import work_for
from virtcloud.model.call_context import join_calls
from virtcloud.model.errors import AnswerUnreadable, ServiceUnreachable, VirtcloudError
from virtcloud.model.wanted import HostWanted, WantedDocument
from virtcloud.tracing import span_of_calls

WAKE_CHECK_S = 1.0
"""After a failed round, a call of `wake` ends the wait for SBF within this time, in seconds."""
PENDING_ROUNDS = 2
"""While a cluster waits for an image, the pause between two rounds is as long as after this number of failed rounds."""


@dataclass(frozen=True, slots=True)
class ReconcileTiming:
    """Times in seconds.

    ``check_s`` is the interval between two readings of the host while the wanted state does not change.
    ``retry_first_s`` is the first pause before a retry, and ``retry_most_s`` is the longest pause.
    """

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
        """Create the reconciler of ``host``. At most ``starts_at_once`` guests of the host start at the same time.

        If another thread sets ``woken``, a pause before a retry ends. ``progress`` is called after each step and each
        call to SBF. After each fetch of the wanted state, the reconciler calls ``receive`` with this state, then
        ``report_capacity``, and then changes the host. If ``boot`` is None, the reconciler does not detect reboots of
        the host. ``clock`` returns seconds. ``jitter`` returns a random number from 0 to 1, which lengthens pauses.
        """
        self._boot = boot
        self._receive = receive
        self._jitter = jitter
        self._element = element
        self._sbf = sbf
        self._host = host
        self._reports = HostReports(element, sbf)
        self._application = StepApplication(element, host, stop, progress, starts_at_once)
        self._stop = stop
        self._timing = timing
        self._last_revision: int | None = None
        self._last_wanted: HostWanted | None = None
        self._ends, self._lasting = GuestEnds(clock, host.find_end_cause), LastingFaults(clock)
        self._failed_rounds = 0
        self._refusals: dict[str, int] = {}
        self._round = ReconcileRound()
        self._woken = woken or threading.Event()
        self._progress = progress
        self._report_capacity = report_capacity

    def wake(self) -> None:
        """End the current or the next pause before a retry. Thread-safe."""
        self._woken.set()

    def run(self) -> None:
        """Reconcile until a stop is requested. The segments and guests stay on the host."""
        try:
            while True:
                self.reconcile_once()
        except StopRequested:
            log.info("stopped", element=self._element)

    def reconcile_once(self) -> None:
        """Wait until the wanted state changes or the next check is due, then reconcile."""
        try:
            with self._stop.interruptible():
                document = self._fetch()
            self._progress()
            traces = [call.traceparent for call in document.calls if call.traceparent is not None]
            traced = span_of_calls("reconcile host", traces, element=self._element, revision=document.revision)
            with traced, work_for(join_calls(document.calls)):
                self._receive(document.wanted)
                self._report_capacity()
                self._reconcile_and_report(document)
        except VirtcloudError as error:
            unreachable = isinstance(error, ServiceUnreachable)
            log.warning("sbf_unreachable" if unreachable else "sbf_refused", element=self._element, error=error)
            self._failed_rounds += 1
            if unreachable:
                self._restore_filters()
            if isinstance(error, AnswerUnreadable):
                self._reports.report_unreadable(error, self._last_revision or 0)
            self._progress()  # the call and the pause together can take longer than systemd's watchdog waits
            with self._stop.interruptible():
                self._woken.wait(compute_retry_pause(error, self._retry_pause(), self._jitter))
                self._woken.clear()
        self._progress()

    def _fetch(self) -> WantedDocument:
        """Return the wanted document when the wanted state changes, or when the next reading of the host is due.

        After a failed round, a call of `wake` also ends the wait.
        """
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
        due = self._ends.seconds_until_due()
        return self._timing.check_s if due is None else min(self._timing.check_s, max(due, WAKE_CHECK_S))

    def _retry_pause(self) -> float:
        return min(self._timing.retry_first_s * 2.0 ** min(self._failed_rounds - 1, 30), self._timing.retry_most_s)

    def _restore_filters(self) -> None:
        if self._last_wanted is None:
            return
        try:
            steps = compute_difference(self._last_wanted, self._host.read())
        except VirtcloudError as error:
            log.warning("host_not_read", element=self._element, error=error)
        except Exception as error:  # noqa: BLE001 - logged, and tried again with the next request to SBF
            log.internal_error(error, element=self._element)
        else:
            filters = [step for step in steps if isinstance(step, FilterGuests)]
            self._application.apply(filters, map_cluster_keys(self._last_wanted))

    def _reconcile_and_report(self, document: WantedDocument) -> None:
        self._last_wanted = document.wanted
        errors, drifted = self._reconcile(document)
        remaining = list_failed_removals(document.wanted, errors)
        failed = join_reasons(errors, self._round.unstarted, self._round.leaving)
        if remaining == errors:
            self._reports.report_refusals(document, self._round.unstarted, self._refusals)
        is_confirmed = remaining == errors and self._reports.confirm(
            document, make_confirmation(document, self._round, remaining), drifted=drifted
        )
        self._failed_rounds = self._failed_rounds + 1 if failed else PENDING_ROUNDS if self._round.fetches else 0
        self._last_revision = document.revision
        if not is_confirmed:
            self._reports.report_errors(document, failed, self._refusals)

    def _reconcile(self, document: WantedDocument) -> tuple[ClusterErrors, bool]:
        """Read the host, and apply the difference.

        Return the errors, and whether the host had drifted before the difference was applied. The errors do not include
        the faults of single clusters in ``_round``.
        """
        self._round, drifted = ReconcileRound(), False
        try:
            self._host.remove_orphaned_files(document.wanted)
            observed = self._host.read()
            steps = compute_difference(document.wanted, observed)
            self._ends.observe(steps, observed)
            certain = [step for step in select_certain_steps(steps, observed) if not self._ends.has_ended(step)]
            rebooted = self._boot is not None and self._boot.is_unreported
            drifted = has_drifted(certain, document, self._reports.exceptions, rebooted=rebooted)
            if drifted:
                self._reports.report_drift(document, steps)
            if drifted or not observed.hypervisor_errors:
                record_boot(self._boot, self._element)
            due = self._ends.select_due(steps)
            errors = self._apply(due, document) if due else {}
            if due and list_failed_removals(document.wanted, errors) == errors:
                remaining, observed = self._read_back(document, due)
                errors = {**remaining, **errors}
            faults = self._round
            ended = self._ends.describe(map_cluster_keys(document.wanted), faults.unstarted)
            unstopped = faults.describe_unstopped(document.wanted, observed, self._timing.retry_most_s)
            faults.unstarted = join_reasons(faults.unstarted, unstopped)
            lasting = self._lasting.describe(document.wanted, observed)
            faults.pending = join_reasons(faults.unstarted, ended, lasting, faults.held, faults.fetches)
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

    def _apply(self, steps: Iterable[Step], document: WantedDocument) -> ClusterErrors:
        former, self._refusals = self._refusals, {}
        outcomes = self._application.apply(steps, map_cluster_keys(document.wanted))
        (errors, unstarted), fetches = outcomes.split_errors(), outcomes.pending
        pending = join_reasons(unstarted, outcomes.held, fetches)
        self._round = ReconcileRound(pending, outcomes.held, fetches, unstarted, outcomes.leaving, outcomes.unstopped)
        self._refusals = {cluster: former[cluster] for cluster in outcomes.pending if cluster in former}
        self._refusals |= {cluster: former.get(cluster, 0) + 1 for cluster in outcomes.refused}
        return errors

    def _read_back(self, document: WantedDocument, applied: Iterable[Step]) -> tuple[ClusterErrors, ObservedHost]:
        """Read the host again. Return the remaining steps as errors, and the host's state.

        Starts of guests that ended by themselves, and most steps of pending clusters, do not count as errors
        (:func:`describe_remaining_steps`).
        """
        observed, faults = self._host.read(), self._round
        steps = compute_difference(document.wanted, observed)
        started = [step for step in applied if isinstance(step, StartGuest) and step.cluster not in faults.pending]
        self._ends.observe(steps, observed, started)
        certain = select_certain_steps(steps, observed)
        left = [step for step in certain if not (self._ends.has_ended(step) or is_leave(step) or is_power_off(step))]
        faults.leaving = {**describe_remaining_steps(filter(is_leave, certain), (), ()), **faults.leaving}
        faults.stop_errors = dict.fromkeys(list_unstopped(document.wanted, observed), NO_EFFECT) | faults.stop_errors
        return describe_remaining_steps(left, faults.pending, faults.held), observed
