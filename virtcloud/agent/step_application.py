"""Applying steps to a host: starts of guests come last, several at the same time; all other steps run one by one.

After an error of a step, the later steps of the same cluster are skipped, with these exceptions:

* A segment is removed even if its guests could not be stopped. These guests then have no network,
  except through a renamed bridge that stays, or the cluster's next bridge.
* The filters are set nevertheless, because the cluster's running guests need them.
* If the start of one guest fails, the cluster's other guests are started nevertheless.
* If a guest cannot be stopped for a restart, only starts of the cluster's guests are skipped.
* If a guest cannot be stopped that has the power "off" or whose cluster has left the network, no step is skipped.
* Steps that concern no single cluster do not depend on each other.

A guest is also not started if the step that builds its segment, or the step that sets the segment's filters, failed or
was skipped. This rule also applies to the guests of a cluster that has joined the network of another cluster, although
their segment belongs to the other cluster.
"""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final, Protocol

from virtcloud import __version__
from virtcloud.agent import log
from virtcloud.agent.guest_ends import EndCause
from virtcloud.agent.held_steps import CreationStep, split_held_steps
from virtcloud.agent.observed_host import ObservedHost
from virtcloud.agent.steps import (
    BuildSegment,
    FilterGuests,
    RemoveSegment,
    StartGuest,
    Step,
    StepPending,
    StopGuests,
    is_leave,
    is_power_off,
)
from virtcloud.agent.supervision import StopSignal
from virtcloud.model.errors import Refused, Unsafe, VirtcloudError
from virtcloud.model.gateway_access import (
    GATEWAY_ADDRESSES,
    GATEWAY_FQDNS,
    GATEWAY_PUBLICATIONS,
    GATEWAY_ROUTER,
    UDP_PUBLICATIONS,
)
from virtcloud.model.guest_spec import GUEST_LIMITS
from virtcloud.model.nfs import NFS
from virtcloud.model.ssh_access import SSH_REVOCATIONS
from virtcloud.model.values import ClusterKey
from virtcloud.model.vpn import VPN
from virtcloud.model.wanted import (
    ADDRESS_FILTERS,
    GUEST_POWER,
    HOST_SERVICES,
    IMAGES,
    UNCHECKED_NETWORK,
    HostWanted,
    Segment,
)
from virtcloud.tracing import child_span

SUPPORTED_REQUIREMENTS: frozenset[str] = frozenset(
    {
        ADDRESS_FILTERS,
        GATEWAY_ADDRESSES,
        GATEWAY_FQDNS,
        GATEWAY_PUBLICATIONS,
        GATEWAY_ROUTER,
        GUEST_LIMITS,
        GUEST_POWER,
        HOST_SERVICES,
        IMAGES,
        NFS,
        SSH_REVOCATIONS,
        UDP_PUBLICATIONS,
        UNCHECKED_NETWORK,
        VPN,
    }
)
"""The requirements (``Segment.requires``) that this agent supports.

The agent refuses a segment with a requirement that is not in this set. SBF adds a requirement to a segment if an
earlier version of the agent would ignore a key of the segment.
"""
MAX_STARTS: Final = 16
"""Limit of guests that start at the same time on a host. The limit also applies to hosts with many processors."""
MAX_REASONS: Final = 3
"""Limit of reasons in the text about a cluster's pending steps."""
ClusterErrors = dict[str, str]
"""Errors by cluster ID. An error that concerns no single cluster has the key `""`."""


class ManagedHost(Protocol):
    """The operations of a host that the reconciler needs."""

    def remove_orphaned_files(self, wanted: HostWanted) -> None:
        """Remove the files of guests that are not wanted and do not run. An error is only logged."""

    def read(self) -> ObservedHost:
        """Return the observed state."""

    def find_end_cause(self, step: StartGuest, within_s: float) -> EndCause:
        """Return why a guest ended by itself within the last ``within_s`` seconds, or UNKNOWN.

        ``step`` starts the guest again.
        """

    def apply(self, step: Step) -> None:
        """Apply one step. Several threads can start different guests at the same time."""


@dataclass(frozen=True, slots=True)
class StepOutcomes:
    """The outcomes of steps, by cluster ID.

    ``errors`` are the errors of failed steps. ``pending`` are the reasons of steps that could not be applied yet.
    ``held`` are the reasons of steps that wait until SBF requests them in a later document. ``refused`` are the IDs of
    clusters with a step that the host refused. ``unstarted`` are the IDs of wanted clusters of which only starts and
    restarts of guests failed. A guest is restarted if a reset was requested or the guest's spec was changed.
    ``leaving`` are the errors of stops of guests whose clusters left a network, by the network's ID. ``unstopped`` are
    the errors of stops of guests with the power "off".
    """

    errors: ClusterErrors = field(default_factory=dict)
    pending: ClusterErrors = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unstarted: set[str] = field(default_factory=set)
    held: ClusterErrors = field(default_factory=dict)
    leaving: ClusterErrors = field(default_factory=dict)
    unstopped: ClusterErrors = field(default_factory=dict)

    def record(self, outcomes: Iterable[tuple[Step, VirtcloudError | None]]) -> None:
        """Record the errors of steps. The error of a successful step is None.

        StepPending is recorded in ``pending``. If several steps of a cluster fail with the same error, these steps get
        one common message.
        """
        pending: dict[str, list[str]] = {}
        failed: dict[tuple[str, str], list[str]] = {}
        for step, error in outcomes:
            if isinstance(error, StepPending):
                pending.setdefault(step.cluster, []).append(str(error))
            elif error is not None and is_leave(step):
                self.leaving[step.cluster] = f"could not {step}: {error}"
            elif error is not None and is_power_off(step):
                self.unstopped[step.powered_off] = str(error)
            elif error is not None:
                failed.setdefault((step.cluster, str(error)), []).append(str(step))
                if isinstance(error, Refused | Unsafe):
                    self.refused.add(step.cluster)
                if _serves_a_start(step):
                    self.unstarted.add(step.cluster)
        for cluster, reasons in pending.items():
            self.pending[cluster] = _join_reasons(reasons)
        for (cluster, text), steps in failed.items():
            earlier = f"{self.errors[cluster]}; " if cluster in self.errors else ""
            self.errors[cluster] = f"{earlier}could not {', '.join(steps)}: {text}"

    def split_errors(self) -> tuple[ClusterErrors, ClusterErrors]:
        """Return the errors of clusters outside ``unstarted``, and the errors of clusters in ``unstarted``."""
        others = {cluster: text for cluster, text in self.errors.items() if cluster not in self.unstarted}
        return others, {cluster: text for cluster, text in self.errors.items() if cluster in self.unstarted}


class StepApplication:
    """Applies steps to one host."""

    def __init__(
        self,
        element: str,
        host: ManagedHost,
        stop: StopSignal,
        progress: Callable[[], object],
        starts_at_once: int = 1,
    ) -> None:
        """Create an object. ``starts_at_once`` limits simultaneous starts. ``progress`` is called after each step."""
        self._element = element
        self._host = host
        self._stop = stop
        self._progress = progress
        self._starts_at_once = starts_at_once

    def apply(self, steps: Iterable[Step], keys: Mapping[str, ClusterKey]) -> StepOutcomes:
        """Apply the steps, and return their outcomes. ``keys`` are the keys of clusters by cluster ID, for the log.

        If a stop was requested, raise StopRequested before the next step.
        """
        permitted_steps, held = split_held_steps(steps)
        outcomes, unbuilt = StepOutcomes(held=held), set[str]()
        for batch in list_batches(permitted_steps):
            self._stop.check()
            permitted = [step for step in batch if not _is_blocked(step, outcomes, unbuilt)]
            applied = list(zip(permitted, self._apply_batch(permitted, keys), strict=True))
            outcomes.record(applied)
            done = [step for step, error in applied if error is None]
            unbuilt |= {step.cluster for step in batch if isinstance(step, _Network) and step not in done}
            others = {step.cluster for step in batch if step not in done and not _concerns_only_guests(step)}
            outcomes.unstarted.intersection_update(keys.keys() - others)
        return outcomes

    def _apply_batch(self, batch: list[Step], keys: Mapping[str, ClusterKey]) -> list[VirtcloudError | None]:
        threads = min(self._starts_at_once, len(batch))
        if threads <= 1:
            return [self._try_step(step, keys) for step in batch]
        with ThreadPoolExecutor(threads, thread_name_prefix="start of guests") as pool:
            contexts = [copy_context() for _ in batch]  # only one thread can enter a context
            return list(pool.map(lambda step, context: context.run(self._try_step, step, keys), batch, contexts))

    def _try_step(self, step: Step, keys: Mapping[str, ClusterKey]) -> VirtcloudError | None:
        self._stop.check()
        try:
            _check_supported(step)
            with child_span(f"step {type(step).__name__}", cluster=step.cluster):
                self._host.apply(step)
        except VirtcloudError as error:
            return error
        except Exception as error:  # noqa: BLE001 - reported with its type, and logged with its traceback
            return log.internal_error(error, element=self._element, step=step)
        finally:
            self._progress()
        log.info("applied", element=self._element, cluster=keys.get(step.cluster, step.cluster), step=step)
        return None


def count_starts(per_processor: int) -> int:
    """Return how many guests this host starts at the same time: ``per_processor`` per processor, up to `MAX_STARTS`."""
    return min(per_processor * len(os.sched_getaffinity(0)), MAX_STARTS)


def list_batches(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """Yield batches; the steps of a batch can be applied at the same time. Pure.

    If there are starts, the last batch contains all starts. Every other batch contains a single step. The starts are
    last, because a start needs other steps, and no other step needs a start.
    """
    starts: list[Step] = []
    for step in steps:
        if isinstance(step, StartGuest):
            starts.append(step)
        else:
            yield [step]
    if starts:
        yield starts


_Network = BuildSegment | FilterGuests


def _serves_a_start(step: Step) -> bool:
    """Return whether a step starts a guest, or stops guests to start them again."""
    return isinstance(step, StartGuest) or (isinstance(step, StopGuests) and bool(step.kept) and not is_power_off(step))


def _concerns_only_guests(step: Step) -> bool:
    return _serves_a_start(step) or is_leave(step) or is_power_off(step)


def _join_reasons(reasons: Iterable[str]) -> str:
    """Return at most `MAX_REASONS` reasons, and the number of others. Of each fetch, use only the latest progress."""
    different = list({reason.partition(":")[0]: reason for reason in reasons}.values())
    omitted = len(different) - MAX_REASONS
    return "; ".join(different[:MAX_REASONS]) + (f"; and {omitted} more" if omitted > 0 else "")


def unsupported_segments(segments: Iterable[Segment]) -> ClusterErrors:
    """Return an error, by cluster ID, for each segment with requirements that this agent does not support."""
    return {segment.id: error for segment in segments if (error := _describe_unsupported(segment))}


def _is_blocked(step: Step, outcomes: StepOutcomes, unbuilt: Container[str]) -> bool:
    """Return whether an earlier error prevents this step.

    ``unbuilt``: IDs of networks whose bridge or filters could not be set up.
    """
    if isinstance(step, StartGuest):
        return step.segment.id in unbuilt or step.cluster in outcomes.errors
    is_of_host = not step.cluster  # for example the start of one of a gateway's servers
    has_failed = step.cluster in outcomes.errors and step.cluster not in outcomes.unstarted
    return has_failed and not (is_of_host or isinstance(step, RemoveSegment | FilterGuests))


def _check_supported(step: Step) -> None:
    if isinstance(step, CreationStep) and (error := _describe_unsupported(step.segment)):
        raise Refused(error)


def _describe_unsupported(segment: Segment) -> str | None:
    unknown = [name for name in segment.requires if name not in SUPPORTED_REQUIREMENTS]
    if not unknown:
        return None
    return f"SBF requires {', '.join(unknown)}, unknown to this agent (virtcloud {__version__}): upgrade the agent"
