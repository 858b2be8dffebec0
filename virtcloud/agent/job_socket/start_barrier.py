"""PURE. Whether a job's script may start: what SBF says of its cluster and which guests answered, in a user's words.

One caller's wait for one cluster: asks SBF, and then the guests.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_interface
from types import TracebackType
from typing import Protocol, Self

from virtcloud.agent.job_socket.job_records import UNCOUNTED_ATTEMPT, JobRecord, RecordPhase
from virtcloud.agent.network import names
from virtcloud.agent.network.address_probe import IpAddress
from virtcloud.model.cluster import ENDED_STATES, LEAVING_STATES, ClusterState, Guest
from virtcloud.model.errors import Gone, NotFound, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, PlacementProgress, PlacementView


class BarrierState(StrEnum):
    """What a job's script, or who waits to start it, can make of it."""

    WAITING = "waiting"
    UP = "up"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class BarrierResult:
    """A verdict, what is missing where it is ``waiting``, and why where it is over."""

    verdict: BarrierState
    missing: tuple[str, ...] = ()
    reason: str | None = None


def waiting_for(*missing: str) -> BarrierResult:
    """Something is missing."""
    return BarrierResult(BarrierState.WAITING, tuple(" ".join(one.split()) for one in missing))


def evaluate_record(job: JobRecord) -> BarrierResult | None:
    """Say what this host knows by itself; None where SBF is to be asked."""
    if job.phase is RecordPhase.CANCELLED:
        return BarrierResult(BarrierState.CANCELLED, reason=job.reason)
    if job.phase in {RecordPhase.LEAVING, RecordPhase.GONE}:
        return BarrierResult(BarrierState.ENDED, reason=job.reason)
    return None


def evaluate_view(view: ClusterView, attempt: int, answered: Iterable[IpAddress]) -> BarrierResult:
    """Say how far the cluster is; raises Gone when SBF has seen a later attempt."""
    if attempt not in {UNCOUNTED_ATTEMPT, view.attempt}:
        return _evaluate_other_attempt(view, attempt)
    if view.state in LEAVING_STATES | ENDED_STATES:
        failed = view.state in {ClusterState.FAILING, ClusterState.FAILED}
        return BarrierResult(BarrierState.FAILED if failed else BarrierState.ENDED, reason=view.reason)
    if view.state is not ClusterState.ACTIVE:
        return waiting_for(
            *(_list_unconfirmed(view) or [f"SBF says that it is {view.state}" + _format_reason(view.reason)])
        )
    silent = [_format_unanswered(guest) for guest in find_unanswered_guests(view, answered)]
    return waiting_for(*silent) if silent else BarrierResult(BarrierState.UP)


def is_attempt_active(view: ClusterView, attempt: int) -> bool:
    """Say whether all elements carry this very attempt."""
    return view.state is ClusterState.ACTIVE and attempt in {UNCOUNTED_ATTEMPT, view.attempt}


def find_unanswered_guests(view: ClusterView, answered: Iterable[IpAddress]) -> list[Guest]:
    """Give the guests with addresses of which none answered."""
    heard = frozenset(answered)
    return [guest for guest in view.spec.guests if guest.addresses and not heard.intersection(guest_addresses(guest))]


def guest_addresses(guest: Guest) -> Iterator[IpAddress]:
    """Give a guest's addresses without their prefix lengths."""
    return (ip_interface(one).ip for one in guest.addresses)


def find_placement(view: ClusterView, element: Name) -> PlacementView | None:
    """Give an element's part of the cluster."""
    return next((part for part in view.placements if part.element == element), None)


def format_unconfirmed(part: PlacementView, what: str = "") -> str:
    """Say that an element has not confirmed, and what it said went wrong."""
    return f"{part.kind} {part.element} at {part.site} has not confirmed{what}" + _format_reason(part.trouble)


def _evaluate_other_attempt(view: ClusterView, attempt: int) -> BarrierResult:
    if view.attempt > attempt:
        raise Gone(f"cluster {view.key}: attempt {attempt} is over, SBF has attempt {view.attempt}")
    return waiting_for(f"SBF has attempt {view.attempt} of cluster {view.key} only, not yet {attempt}")


def _list_unconfirmed(view: ClusterView) -> list[str]:
    return [format_unconfirmed(part) for part in view.placements if part.progress is not PlacementProgress.CONFIRMED]


def _format_unanswered(guest: Guest) -> str:
    return f"guest {guest.name} does not answer at {' or '.join(str(one) for one in guest_addresses(guest))}"


def _format_reason(words: str | None) -> str:
    return f" ({words})" if words else ""


POLL_S = 1.0
"""What is cancelled meanwhile is noticed after this long at most."""
MIN_PROBE_S = 0.3
"""So long guests have to answer one who does not wait at all."""


class JobClusterApi(Protocol):
    """What is asked of SBF."""

    def cluster(self, key: str, after: int | None = None, wait: float = 0) -> ClusterView:
        """Give a cluster; a long poll."""

    def delete_cluster(self, key: str, attempt: int | None = None, owner: str | None = None) -> ClusterView:
        """End an owner's attempt; may be repeated."""


class GuestProber(Protocol):
    """What is asked of the bridge."""

    def ask(self, addresses: frozenset[IpAddress], seconds: float) -> frozenset[IpAddress]:
        """Give those that answer; returns when all did, or ``seconds`` are over."""


OpenGuestProber = Callable[[str], AbstractContextManager[GuestProber]]
"""Listens on the bridge of that name; raises Refused when there is none."""


class StartBarrier:
    """Remembers, as long as a caller waits, what SBF said last and which guests were heard."""

    def __init__(
        self, element: Name, sbf: JobClusterApi, make_ear: OpenGuestProber, pause: Callable[[float], object]
    ) -> None:
        """Look from the host ``element``; ``pause`` waits some seconds where there is nobody to wait for."""
        self._element = element
        self._sbf = sbf
        self._make_ear = make_ear
        self._pause = pause
        self._held = ExitStack()
        self._ear: GuestProber | None = None
        self._answered: frozenset[IpAddress] = frozenset()
        self.view: ClusterView | None = None

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop listening."""
        self._held.close()

    @property
    def site(self) -> Name | None:
        """The site of this host, where it has a part of the cluster."""
        return self._site(self.view) if self.view else None

    def _site(self, view: ClusterView) -> Name | None:
        part = find_placement(view, self._element)
        return part.site if part else None

    def look(self, job: JobRecord, seconds: float) -> BarrierResult:
        """Say how far it is, as soon as there is news and after ``seconds`` (a second at most); raises Gone."""
        ends = time.monotonic() + min(seconds, POLL_S)
        try:
            return self._look(job, ends)
        except Gone:
            raise
        except NotFound:
            found = waiting_for(f"SBF knows no cluster {job.cluster} with a part on host {self._element}")
        except VirtcloudError as error:
            found = waiting_for(str(error))
        self._pause(max(0, ends - time.monotonic()))
        return found

    def _look(self, job: JobRecord, ends: float) -> BarrierResult:
        view = self._ask_sbf(job, max(0, ends - time.monotonic()))
        if job.is_not_of(view.spec.owner):
            raise Gone(f"cluster {job.cluster}: SBF has another user's under this key, not that of {job.user}")
        if is_attempt_active(view, job.attempt):
            site = self._site(view)
            if site is None:
                return waiting_for(f"host {self._element} has no part of cluster {job.cluster}")
            self._ask_guests(view, view.vlans[site], max(MIN_PROBE_S, ends - time.monotonic()))
        return evaluate_view(view, job.attempt, self._answered)

    def _ask_sbf(self, job: JobRecord, seconds: float) -> ClusterView:
        """Ask for news; once it is active there are guests to be asked instead of waiting for it."""
        before = self.view
        if before is None:
            view = self._sbf.cluster(job.cluster)
        else:
            guests = is_attempt_active(before, job.attempt) and self.site is not None
            view = self._sbf.cluster(job.cluster, after=before.version, wait=0 if guests else seconds)
            if view.id != before.id:
                self._forget()
        self.view = view
        return view

    def _forget(self) -> None:
        """Take nothing for granted of another cluster with the same key."""
        self._held.close()
        self._ear, self._answered = None, frozenset()

    def _ask_guests(self, view: ClusterView, vlan: int, seconds: float) -> None:
        silent = find_unanswered_guests(view, self._answered)
        if not silent:
            return
        if self._ear is None:
            self._ear = self._held.enter_context(self._make_ear(names.bridge_name(vlan)))
        wanted = frozenset(address for guest in silent for address in guest_addresses(guest))
        self._answered |= self._ear.ask(wanted, seconds)
