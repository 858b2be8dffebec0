"""Conclusions from a reading of a host: drift, failed removals, and steps that are still needed. Pure."""

from collections.abc import Container, Iterable

from virtcloud.agent.gateway.ssh_difference import StopSshd
from virtcloud.agent.gateway.vpn_difference import StopVpnServer
from virtcloud.agent.host_services.server_difference import StopServing
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.step_application import ClusterErrors
from virtcloud.agent.steps import BuildSegment, FilterGuests, RemoveSegment, StartGuest, Step
from virtcloud.model.values import ClusterKey
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
        step.cluster not in document.incomplete and step.cluster not in reported
        for step in steps
        if not _is_harmless(step)
    )


def _is_harmless(step: Step) -> bool:
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
