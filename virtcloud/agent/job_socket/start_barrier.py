"""The start barrier: decides whether a job's script can start.

The script can start when the cluster is active and each running guest with an address has answered a probe.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_interface
from types import TracebackType
from typing import Protocol, Self

from virtcloud.agent.job_socket.job_records import UNCOUNTED_ATTEMPT, JobRecord, RecordPhase
from virtcloud.agent.network import names
from virtcloud.agent.network.address_probe import AddressProber, IpAddress, OpenProber
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, ClusterState
from virtcloud.model.errors import Gone, NotFound, VirtcloudError
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.guest_spec import Guest
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, PlacementProgress, PlacementView

POLL_S = 1.0
"""Longest time in seconds of one check. A waiting caller learns of a cancellation within this time."""
MIN_PROBE_S = 0.3
"""Smallest time limit of a probe in seconds. A probe may take this time even if the caller does not want to wait."""


class BarrierState(StrEnum):
    """The state of the barrier.

    ``WAITING``: the job's script must wait. ``UP``: the script can start. In every other state, the script will not
    start.
    """

    WAITING = "waiting"
    UP = "up"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BarrierResult:
    """The state of the barrier, and its reasons.

    ``missing`` has a sentence for each awaited element or guest. ``reason`` is why the script will not start, or None.
    """

    state: BarrierState
    missing: tuple[str, ...] = ()
    reason: str | None = None


class JobClusterApi(Protocol):
    """The calls to SBF that the job socket needs."""

    def cluster(self, key: str, after: int | None = None, wait: float = 0) -> ClusterView:
        """Return the cluster. With ``after``, wait at most ``wait`` seconds for a version higher than ``after``."""

    def peers(self, key: str, cluster_id: str | None = None) -> ClusterPeers:
        """Return the guests of the cluster's network with their host keys.

        Also return the login name in the cluster's own guests.
        """

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        """Request the end of a cluster if it has this attempt number and owner (None: any value). Idempotent."""


class StartBarrier:
    """The barrier for one caller, with SBF's last answer and the addresses at which guests have answered."""

    def __init__(
        self, element: Name, sbf: JobClusterApi, open_prober: OpenProber, pause: Callable[[float], object]
    ) -> None:
        """Create a barrier on the host ``element``. After an error, the barrier waits with ``pause`` (seconds)."""
        self._element = element
        self._sbf = sbf
        self._open_prober = open_prober
        self._pause = pause
        self._exit_stack = ExitStack()
        self._prober: AddressProber | None = None
        self._answered: frozenset[IpAddress] = frozenset()
        self.view: ClusterView | None = None

    def __enter__(self) -> Self:
        """Return the barrier."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the prober."""
        self._exit_stack.close()

    @property
    def site(self) -> Name | None:
        """The site of this host, or None if SBF has not answered yet or the cluster has no placement on this host."""
        return self._site(self.view) if self.view else None

    def _site(self, view: ClusterView) -> Name | None:
        placement = find_placement(view, self._element)
        return placement.site if placement else None

    def check(self, job: JobRecord, seconds: float) -> BarrierResult:
        """Wait for a change of the cluster or for answers of guests. Then return the barrier's state.

        Wait at most ``seconds``, and at most `POLL_S`. A probe may take `MIN_PROBE_S` even if less time is left. Raise
        Gone if the key of the job's cluster belongs to a later attempt or to another user's cluster.
        """
        deadline = time.monotonic() + min(seconds, POLL_S)
        try:
            return self._check(job, deadline)
        except Gone:
            raise
        except NotFound:
            result = waiting_for(f"SBF has no cluster {job.cluster} on host {self._element}")
        except VirtcloudError as error:
            result = waiting_for(str(error))
        self._pause(max(0, deadline - time.monotonic()))
        return result

    def _check(self, job: JobRecord, deadline: float) -> BarrierResult:
        view = self._fetch_view(job, max(0, deadline - time.monotonic()))
        if job.belongs_to_other(view.spec.owner):
            raise Gone(
                f"cluster {job.cluster}: expected a cluster of {job.user}, but at SBF the key belongs to a cluster of "
                "another user"
            )
        if is_attempt_active(view, job.attempt):
            site = self._site(view)
            if site is None:
                return waiting_for(f"cluster {job.cluster} is not on host {self._element}")
            self._probe_guests(view, view.vlans[site], max(MIN_PROBE_S, deadline - time.monotonic()))
        return evaluate_view(view, job.attempt, self._answered)

    def _fetch_view(self, job: JobRecord, seconds: float) -> ClusterView:
        """Return the cluster from SBF. Wait at most ``seconds`` for a change since SBF's last answer.

        Do not wait at the first call. Do not wait either if the last answer shows that the attempt is active on this
        host: the caller then probes the guests.
        """
        former = self.view
        if former is None:
            view = self._sbf.cluster(job.cluster)
        else:
            probes_guests = is_attempt_active(former, job.attempt) and self.site is not None
            view = self._sbf.cluster(job.cluster, after=former.version, wait=0 if probes_guests else seconds)
            if view.id != former.id:
                self._reset()
        self.view = view
        return view

    def _reset(self) -> None:
        self._exit_stack.close()
        self._prober, self._answered = None, frozenset()

    def _probe_guests(self, view: ClusterView, vlan: int, seconds: float) -> None:
        unanswered = find_unanswered_guests(view, self._answered)
        if not unanswered:
            return
        if self._prober is None:
            self._prober = self._exit_stack.enter_context(self._open_prober(names.bridge_name(vlan)))
        wanted = frozenset(address for guest in unanswered for address in guest_addresses(guest))
        self._answered |= self._prober.probe(wanted, seconds)


def waiting_for(*missing: str) -> BarrierResult:
    """Return the state ``WAITING`` with a sentence for each missing element or guest. Pure."""
    return BarrierResult(BarrierState.WAITING, tuple(" ".join(text.split()) for text in missing))


def evaluate_record(job: JobRecord) -> BarrierResult | None:
    """Return the barrier's state if the job's recorded run was cancelled or is over; otherwise None. Pure."""
    if job.phase is RecordPhase.CANCELLED:
        return BarrierResult(BarrierState.CANCELLED, reason=job.reason)
    if job.phase in {RecordPhase.LEAVING, RecordPhase.GONE}:
        return BarrierResult(BarrierState.ENDED, reason=job.reason)
    return None


def evaluate_view(view: ClusterView, attempt: int, answered: Iterable[IpAddress]) -> BarrierResult:
    """Return the barrier's state for a cluster. ``answered`` are the addresses at which guests have answered. Pure.

    Raise Gone if SBF has a later attempt.
    """
    if attempt not in {UNCOUNTED_ATTEMPT, view.attempt}:
        return _evaluate_other_attempt(view, attempt)
    if view.state in LEAVING_STATES | ENDED_STATES:
        failed = view.state in {ClusterState.FAILING, ClusterState.FAILED}
        return BarrierResult(BarrierState.FAILED if failed else BarrierState.ENDED, reason=view.reason)
    if view.state is not ClusterState.ACTIVE:
        missing = [
            format_unconfirmed(placement)
            for placement in view.placements
            if placement.progress is not PlacementProgress.CONFIRMED
        ]
        return waiting_for(*(missing or [f"cluster {view.key} is {view.state}" + _format_reason(view.reason)]))
    unanswered = [_format_unanswered(guest) for guest in find_unanswered_guests(view, answered)]
    return waiting_for(*unanswered) if unanswered else BarrierResult(BarrierState.UP)


def is_attempt_active(view: ClusterView, attempt: int) -> bool:
    """Return whether the cluster is active and has this attempt number (0: any number). Pure."""
    return view.state is ClusterState.ACTIVE and attempt in {UNCOUNTED_ATTEMPT, view.attempt}


def find_unanswered_guests(view: ClusterView, answered: Iterable[IpAddress]) -> list[Guest]:
    """Return the guests that have not answered at any address. Pure.

    Omit guests without addresses, and guests that a user has stopped.
    """
    answered_addresses = frozenset(answered)
    expected = (guest for guest in view.spec.guests if guest.addresses and guest.name not in view.stopped_guests)
    return [guest for guest in expected if not answered_addresses.intersection(guest_addresses(guest))]


def guest_addresses(guest: Guest) -> Iterator[IpAddress]:
    """Yield a guest's addresses without prefix lengths. Pure."""
    return (ip_interface(address).ip for address in guest.addresses)


def find_placement(view: ClusterView, element: Name) -> PlacementView | None:
    """Return the cluster's placement on an element, or None. Pure."""
    return next((placement for placement in view.placements if placement.element == element), None)


def format_unconfirmed(placement: PlacementView, change: str = "") -> str:
    """Return a sentence: the element has not confirmed ``change`` (such as " the removal").

    Append the element's error, if there is one. Pure.
    """
    subject = f"{placement.kind} {placement.element} at {placement.site}"
    return f"{subject} has not confirmed{change}" + _format_reason(placement.trouble)


def _evaluate_other_attempt(view: ClusterView, attempt: int) -> BarrierResult:
    if view.attempt > attempt:
        raise Gone(f"cluster {view.key}: attempt {attempt} is over; SBF has attempt {view.attempt}")
    return waiting_for(f"cluster {view.key}: SBF still has attempt {view.attempt}, not yet attempt {attempt}")


def _format_unanswered(guest: Guest) -> str:
    return f"guest {guest.name} does not answer at {' or '.join(str(address) for address in guest_addresses(guest))}"


def _format_reason(reason: str | None) -> str:
    return f" ({reason})" if reason else ""
