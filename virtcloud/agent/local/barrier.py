"""PURE. Whether a job's script may start: what SBF says of its cluster and which guests answered, in a user's words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_interface

from virtcloud.agent.local.job import UNCOUNTED, Job, Phase
from virtcloud.agent.local.probes import IP
from virtcloud.model.cluster import ENDED, LEAVING, Guest, State
from virtcloud.model.errors import Gone
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView, PlacementView, Progress


class Verdict(StrEnum):
    """What a job's script, or who waits to start it, can make of it."""

    WAITING = "waiting"
    UP = "up"
    CANCELLED = "cancelled"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Standing:
    """A verdict, what is missing where it is ``waiting``, and why where it is over."""

    verdict: Verdict
    missing: tuple[str, ...] = ()
    reason: str | None = None


def waiting(*missing: str) -> Standing:
    """Something is missing."""
    return Standing(Verdict.WAITING, tuple(" ".join(one.split()) for one in missing))


def of_job(job: Job) -> Standing | None:
    """Say what this host knows by itself; None where SBF is to be asked."""
    if job.phase is Phase.CANCELLED:
        return Standing(Verdict.CANCELLED, reason=job.reason)
    if job.phase in {Phase.LEAVING, Phase.GONE}:
        return Standing(Verdict.ENDED, reason=job.reason)
    return None


def of_view(view: ClusterView, attempt: int, answered: Iterable[IP]) -> Standing:
    """Say how far the cluster is; raises Gone when SBF has seen a later attempt."""
    if attempt not in {UNCOUNTED, view.attempt}:
        return _of_other_attempt(view, attempt)
    if view.state in LEAVING | ENDED:
        failed = view.state in {State.FAILING, State.FAILED}
        return Standing(Verdict.FAILED if failed else Verdict.ENDED, reason=view.reason)
    if view.state is not State.ACTIVE:
        return waiting(*(_lacks(view) or [f"SBF says that it is {view.state}" + _because(view.reason)]))
    silent = [_silent(guest) for guest in silent_guests(view, answered)]
    return waiting(*silent) if silent else Standing(Verdict.UP)


def is_active(view: ClusterView, attempt: int) -> bool:
    """Say whether all elements carry this very attempt."""
    return view.state is State.ACTIVE and attempt in {UNCOUNTED, view.attempt}


def silent_guests(view: ClusterView, answered: Iterable[IP]) -> list[Guest]:
    """Give the guests with addresses of which none answered."""
    heard = frozenset(answered)
    return [guest for guest in view.spec.guests if guest.addresses and not heard.intersection(addresses(guest))]


def addresses(guest: Guest) -> Iterator[IP]:
    """Give a guest's addresses without their prefix lengths."""
    return (ip_interface(one).ip for one in guest.addresses)


def part_of(view: ClusterView, element: Name) -> PlacementView | None:
    """Give an element's part of the cluster."""
    return next((part for part in view.placements if part.element == element), None)


def unconfirmed(part: PlacementView, what: str = "") -> str:
    """Say that an element has not confirmed, and what it said went wrong."""
    return f"{part.kind} {part.element} at {part.site} has not confirmed{what}" + _because(part.trouble)


def _of_other_attempt(view: ClusterView, attempt: int) -> Standing:
    if view.attempt > attempt:
        raise Gone(f"cluster {view.key}: attempt {attempt} is over, SBF has attempt {view.attempt}")
    return waiting(f"SBF has attempt {view.attempt} of cluster {view.key} only, not yet {attempt}")


def _lacks(view: ClusterView) -> list[str]:
    return [unconfirmed(part) for part in view.placements if part.progress is not Progress.CONFIRMED]


def _silent(guest: Guest) -> str:
    return f"guest {guest.name} does not answer at {' or '.join(str(one) for one in addresses(guest))}"


def _because(words: str | None) -> str:
    return f" ({words})" if words else ""
