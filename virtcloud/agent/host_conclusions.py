"""Conclusions from a reading of a host: drift, failed removals, and steps that are still needed. Pure."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from virtcloud.agent.difference import list_unstopped
from virtcloud.agent.gateway.ssh_difference import StopSshd
from virtcloud.agent.gateway.vpn_difference import StopVpnServer
from virtcloud.agent.host_services.server_difference import StopServing
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import ClusterErrors
from virtcloud.agent.steps import BuildSegment, FilterGuests, RemoveSegment, StartGuest, Step, find_step_cluster
from virtcloud.model.values import ClusterKey, Name
from virtcloud.model.views import Confirmation
from virtcloud.model.wanted import HostWanted, WantedDocument


def has_drifted(steps: Iterable[Step], document: WantedDocument, reported: Container[str], *, rebooted: bool) -> bool:
    """Return whether the host differs from its last confirmed revision.

    ``steps`` are the difference from the wanted state. While the wanted revision is unconfirmed, a difference is no
    drift. After a reboot (``rebooted``), this rule does not apply, because the host lost its confirmed configuration.

    Ignore the steps of clusters that the latest confirmation excepted, according to SBF (``document.incomplete``) or to
    the agent (``reported``).

    Also ignore wrong MTUs of guests' ports: the reboot of a container can cause a wrong MTU, and drift degrades all
    clusters of the host. Also ignore remains that change no cluster (`_is_harmless`).
    """
    is_confirmed = rebooted or document.confirmed_revision >= document.revision
    return is_confirmed and any(
        find_step_cluster(step) not in document.incomplete and find_step_cluster(step) not in reported
        for step in steps
        if not _is_harmless(step)
    )


def _is_harmless(step: Step) -> bool:
    """Return whether a step only corrects MTUs of guests' ports, or removes remains that change no cluster.

    These are remains of servers that do not run, incomplete interfaces that a killed agent left, and renamed
    bridges of former clusters or beside a bridge with the correct name.
    """
    match step:
        case BuildSegment():
            return step.only_harmless
        case RemoveSegment():
            return not (step.cluster and step.vlan)
        case StopServing():
            return step.vlan is None
        case StopSshd() | StopVpnServer():
            return step.only_remains
        case _:
            return False


def list_failed_removals(wanted: HostWanted, errors: ClusterErrors) -> ClusterErrors:
    """Return the errors of clusters that are not wanted on this host: failed removals."""
    keys = map_cluster_keys(wanted)
    return {cluster: text for cluster, text in errors.items() if cluster and cluster not in keys}


NO_EFFECT: Final = "the stop had no effect"
"""The error of a stop without an error, after which the host still has the guest."""


@dataclass(slots=True)
class ReconcileRound:
    """The faults of one round of the reconciler that prevent only the confirmation of single clusters, by cluster ID.

    ``pending`` has the reason of each cluster that is not complete. These reasons include ``unstarted`` (failed starts,
    restarts and power-offs of guests), ``held`` (steps that wait for a later document) and ``fetches`` (progress of
    images). ``leaving`` are the errors of stops of guests whose clusters left a network, by the network's ID.
    ``stop_errors`` are the errors of power-offs, and ``unstopped`` are the guests that the host still has.
    """

    pending: ClusterErrors = field(default_factory=dict)
    held: ClusterErrors = field(default_factory=dict)
    fetches: ClusterErrors = field(default_factory=dict)
    unstarted: ClusterErrors = field(default_factory=dict)
    leaving: ClusterErrors = field(default_factory=dict)
    stop_errors: ClusterErrors = field(default_factory=dict)
    unstopped: dict[str, tuple[Name, ...]] = field(default_factory=dict)

    def describe_unstopped(self, wanted: HostWanted, observed: ObservedHost, pause_s: float) -> ClusterErrors:
        """Set ``unstopped``. Return why these guests could not be stopped, by cluster ID.

        The agent tries again after at most ``pause_s`` seconds.
        """
        found = list_unstopped(wanted, observed)
        self.unstopped = {cluster: guests for cluster, guests in found.items() if cluster in self.stop_errors}
        retry = f"the agent tries again at least every {pause_s:g} s; if the error stays, ask the host's administrator"
        return {
            cluster: f"guest {', '.join(guests)} should be off, but could not be stopped: {self.stop_errors[cluster]}; "
            f"{retry}"
            for cluster, guests in self.unstopped.items()
        }


def make_confirmation(document: WantedDocument, faults: ReconcileRound, remaining: ClusterErrors) -> Confirmation:
    """Return the confirmation of the document's revision. ``remaining`` are the errors of failed removals.

    Omit empty keys, because an earlier SBF does not know all keys.
    """
    return Confirmation(
        revision=document.revision,
        incomplete=faults.pending or None,
        only_guests=tuple(list_without_guests(document.wanted, faults.pending, faults.held)) or None,
        unstopped_guests=faults.unstopped or None,
        remaining={**remaining, **faults.leaving} or None,
    )


def select_certain_steps(steps: Iterable[Step], observed: ObservedHost) -> list[Step]:
    """Return the steps that are certainly needed.

    If a hypervisor did not answer, omit all starts of guests: a guest may run on this hypervisor.
    """
    return [step for step in steps if not (observed.hypervisor_errors and isinstance(step, StartGuest))]


def list_without_guests(wanted: HostWanted, pending: Container[str], held: Container[str]) -> list[str]:
    """Return the incomplete clusters whose networks other clusters on this host can use nevertheless.

    Of the returned clusters, only guests, their ports, or the link to the outside are missing. ``pending`` are the
    clusters that are not complete. In ``held`` clusters, parts of the network can be missing, too.
    """
    with_members = (segment.id for segment in wanted.segments if segment.members)
    return [cluster for cluster in with_members if cluster in pending and cluster not in held]


def describe_remaining_steps(steps: Iterable[Step], pending: Container[str], held: Container[str]) -> ClusterErrors:
    """Return errors by cluster ID: the steps that are still needed after all steps were applied.

    Omit the steps of ``held`` clusters. Of ``pending`` clusters, include only the steps that build or filter a network.
    """
    remaining: dict[str, list[str]] = {}
    for step in steps:
        if step.cluster not in pending or (step.cluster not in held and isinstance(step, BuildSegment | FilterGuests)):
            remaining.setdefault(step.cluster, []).append(str(step))
    differs = "after all steps, the host still differs from the wanted state: "
    return {cluster: differs + ", ".join(left) for cluster, left in remaining.items()}


def map_cluster_keys(wanted: HostWanted) -> dict[str, ClusterKey]:
    """Return the keys of this host's clusters by cluster ID.

    Include the clusters on this host that joined another cluster's network.
    """
    return {
        cluster: key
        for segment in wanted.segments
        for cluster, key in ((segment.id, segment.key), *segment.members.items())
    }


def format_steps(steps: Iterable[Step]) -> str:
    """Return the steps with their clusters, for a log event."""
    return "; ".join(f"{step} of cluster {step.cluster}" for step in steps)
