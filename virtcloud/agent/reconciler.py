"""The converger: fetch wanted, read, compute the difference, apply, read again, confirm; for ever.

========================  ==============================================================================
what happens              what follows
========================  ==============================================================================
SBF does not answer       everything keeps running; asked again with growing pauses
a step fails              the other clusters' steps are done; trouble is told; all is tried again, with
                          growing pauses, or at once when something else is wanted or a job asks for its
                          cluster
a hypervisor is silent    the network is converged without it; a cluster's segment is removed before its
                          guests; no revision is confirmed until every hypervisor was read
a cluster is refused      SBF is told so by name, that it need not wait for the cluster's deadline
three times in a row
a segment requires what   it is neither built nor confirmed, and what runs of it stays; SBF is told why
this agent does not know
the machine differs from  drifted is told first, then it is put right and confirmed again
a confirmed revision
asked to stop             at once, between two steps; the machine stays as it is
========================  ==============================================================================
"""

import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from virtcloud import __version__
from virtcloud.agent import log
from virtcloud.agent.difference import (
    BuildSegment,
    ObservedMachine,
    RemoveSegment,
    StartGuest,
    Step,
    compute_difference,
)
from virtcloud.agent.supervision import StopRequested, StopSignal
from virtcloud.model.errors import Refused, ServiceUnreachable, Unsafe, VirtcloudError
from virtcloud.model.values import ClusterKey
from virtcloud.model.wanted import Segment, WantedDocument

WAKE_CHECK_S = 1.0
"""Who wakes the converger while it waits for SBF is felt after this long at most."""
SUPPORTED_REQUIREMENTS: frozenset[str] = frozenset()
"""What a segment may require of an agent: a word for each key that this agent obeys and an older one would ignore."""
ClusterErrors = dict[str, str]
"""What failed, by the cluster's id; what is about no cluster by an empty one."""
MAX_REFUSALS = 3
"""So many times in a row is for good; an image may just be arriving, a driver just be starting."""


class ElementApi(Protocol):
    """What the loop needs of SBF."""

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Fetch the wanted document; answers when its revision is past ``after``, or when ``wait`` seconds are over."""

    def confirm(self, element: str, revision: int) -> None:
        """Say that the element carries what ``revision`` wants."""

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """Say why it does not, which clusters it refuses for good, and what is about which cluster."""

    def report_drift(self, element: str, revision: int) -> None:
        """Say that it does not any more, though it was confirmed."""


class ManagedMachine(Protocol):
    """What the loop needs of the machine."""

    def read(self) -> ObservedMachine:
        """Read what it carries."""

    def apply(self, step: Step) -> None:
        """Do one step."""


@dataclass(frozen=True, slots=True)
class ReconcileTiming:
    """In seconds: how often the machine is read when nothing changes; the pauses after failures."""

    check_s: float = 30.0
    retry_first_s: float = 0.5
    retry_most_s: float = 30.0


class MachineReconciler:
    """Converges one element."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        element: str,
        service: ElementApi,
        machine: ManagedMachine,
        stop: StopSignal,
        timing: ReconcileTiming,
        woken: threading.Event | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Converge ``machine``, which SBF calls ``element``; setting ``woken`` ends a pause.

        ``progress`` is called after each completed piece of work.
        """
        self._element = element
        self._service = service
        self._machine = machine
        self._stop = stop
        self._timing = timing
        self._settled: int | None = None
        self._failures = 0
        self._refusals: dict[str, int] = {}
        self._woken = woken or threading.Event()
        self._progress = progress

    def wake(self) -> None:
        """End a pause between two tries, from any thread: somebody waits for what failed."""
        self._woken.set()

    def run(self) -> None:
        """Converge until asked to stop; then return, and leave the machine as it is."""
        try:
            while True:
                self.round()
        except StopRequested:
            log.info("stopped", element=self._element)

    def round(self) -> None:
        """Wait for what is wanted, or for the time to look again, and settle it once."""
        try:
            with self._stop.interruptible():
                document = self._fetch()
            self._progress()
            self._settle(document)
        except VirtcloudError as error:
            known = isinstance(error, ServiceUnreachable)
            log.warning("service_unreachable" if known else "service_refused", element=self._element, error=error)
            self._failures += 1
            with self._stop.interruptible():
                self._woken.wait(self._retry_pause())
                self._woken.clear()
        self._progress()

    def _fetch(self) -> WantedDocument:
        """Wait for another revision, or for the time to look again; in steps, where somebody may wake us meanwhile."""
        if not self._failures:
            return self._service.wanted(self._element, self._settled, self._timing.check_s)
        pause = self._retry_pause()
        while True:
            step = min(pause, WAKE_CHECK_S)
            document = self._service.wanted(self._element, self._settled, step)
            pause -= step
            if pause <= 0 or document.revision != self._settled or self._woken.is_set():
                self._woken.clear()
                return document

    def _retry_pause(self) -> float:
        return min(self._timing.retry_first_s * 2.0 ** min(self._failures - 1, 30), self._timing.retry_most_s)

    def _settle(self, document: WantedDocument) -> None:
        failures = self._converge(document)
        self._failures = self._failures + 1 if failures else 0
        self._settled = document.revision
        if failures:
            keys = _cluster_keys(document)
            message = "; ".join(
                f"cluster {keys.get(one, one)}: {text}" if one else text for one, text in failures.items()
            )
            log.warning("trouble", element=self._element, revision=document.revision, message=message)
            of_clusters = {one: text for one, text in failures.items() if one}
            self._service.report_error(
                self._element, document.revision, message, self._refused(keys, of_clusters), of_clusters
            )

    def _refused(self, wanted: Container[str], failures: ClusterErrors) -> dict[str, str]:
        """Give the clusters that were refused often enough, by id, with the words of the last time."""
        return {
            one: text for one, text in failures.items() if one in wanted and self._refusals.get(one, 0) >= MAX_REFUSALS
        }

    def _converge(self, document: WantedDocument) -> ClusterErrors:
        """Make the machine what is wanted and confirm it; give what failed."""
        try:
            carried = self._machine.read()
            steps = compute_difference(document.wanted, carried)
            drifted = bool(_certain_steps(steps, carried)) and document.confirmed_revision >= document.revision
            if drifted:
                log.warning("drifted", element=self._element, revision=document.revision, steps=_format_steps(steps))
                self._service.report_drift(self._element, document.revision)
            failures = self._apply(steps, document) if steps else {}
            if not failures and steps:
                failures, carried = self._left(document)
            failures = {**_unsupported_segments(document), **failures}
            if carried.silent:
                failures[""] = "; ".join(carried.silent)
        except ServiceUnreachable:
            raise
        except VirtcloudError as error:
            return {"": str(error)}
        except Exception as error:  # noqa: BLE001 - a fault of ours is told like any other, and tried again
            log.exception("fault", element=self._element, revision=document.revision)
            return {"": f"a fault in the agent: {type(error).__name__}: {error}; see its log"}
        if not failures and (drifted or document.confirmed_revision < document.revision):
            self._service.confirm(self._element, document.revision)
            log.info("confirmed", element=self._element, revision=document.revision)
        return failures

    def _apply(self, steps: Iterable[Step], document: WantedDocument) -> ClusterErrors:
        """Apply the steps; a failure ends that cluster's steps only; no guest starts without its network.

        A segment is removed also when its guests could not be stopped: a guest that stays has no network then.
        """
        failures: ClusterErrors = {}
        unbuilt: set[str] = set()
        before, self._refusals = self._refusals, {}
        keys = _cluster_keys(document)
        for step in steps:
            self._stop.check()
            if _is_blocked(step, failures, unbuilt):
                continue
            error = self._tried(step)
            if error is None:
                log.info("applied", element=self._element, cluster=keys.get(step.cluster, step.cluster), step=step)
                continue
            former = f"{failures[step.cluster]}; " if step.cluster in failures else ""
            failures[step.cluster] = f"{former}could not {step}: {error}"
            unbuilt |= {step.cluster} if isinstance(step, BuildSegment) else set()
            if isinstance(error, Refused | Unsafe):
                self._refusals[step.cluster] = before.get(step.cluster, 0) + 1
        return failures

    def _tried(self, step: Step) -> VirtcloudError | None:
        """Apply a step; return its error. A defect of the agent fails this step only, and is retried like any error."""
        try:
            _check_supported(step)
            self._machine.apply(step)
        except VirtcloudError as error:
            return error
        except Exception as error:  # noqa: BLE001 - reported with its type, and logged with its traceback
            log.exception("fault", element=self._element, step=step)
            return VirtcloudError(f"a fault in the agent: {type(error).__name__}: {error}; see its log")
        finally:
            self._progress()
        return None

    def _left(self, document: WantedDocument) -> tuple[ClusterErrors, ObservedMachine]:
        """Read the machine again; return what is still to be done, and what was read."""
        carried = self._machine.read()
        left: dict[str, list[str]] = {}
        for step in _certain_steps(compute_difference(document.wanted, carried), carried):
            left.setdefault(step.cluster, []).append(str(step))
        text = "read back after all steps were done, there is still to do: {}".format
        return {cluster: text(", ".join(steps)) for cluster, steps in left.items()}, carried


def _is_blocked(step: Step, failures: Container[str], unbuilt: Container[str]) -> bool:
    """Return whether a former failure forbids this step."""
    if isinstance(step, StartGuest) and step.segment.id in unbuilt:
        return True
    return step.cluster in failures and not isinstance(step, RemoveSegment)


def _check_supported(step: Step) -> None:
    """Raise Refused for a step that sets up a segment whose requirements this agent does not understand."""
    if isinstance(step, BuildSegment | StartGuest) and (unknown := _unsupported_requirements(step.segment)):
        raise Refused(unknown)


def _unsupported_segments(document: WantedDocument) -> ClusterErrors:
    """Return the segments whose requirements this agent does not understand: none of them is confirmed."""
    return {
        segment.id: unknown for segment in document.wanted.segments if (unknown := _unsupported_requirements(segment))
    }


def _unsupported_requirements(segment: Segment) -> str | None:
    words = [word for word in segment.requires if word not in SUPPORTED_REQUIREMENTS]
    if not words:
        return None
    return f"SBF requires {', '.join(words)}, which this agent (virtcloud {__version__}) does not know: upgrade it"


def _certain_steps(steps: Iterable[Step], carried: ObservedMachine) -> list[Step]:
    """Return the steps that are needed for certain: a guest of a silent hypervisor may run already."""
    return [one for one in steps if not (carried.silent and isinstance(one, StartGuest))]


def _cluster_keys(document: WantedDocument) -> dict[str, ClusterKey]:
    """Give the keys of all clusters that are here, networks' own and members, by their ids."""
    return {
        one: key
        for segment in document.wanted.segments
        for one, key in ((segment.id, segment.key), *segment.members.items())
    }


def _format_steps(steps: Iterable[Step]) -> str:
    return "; ".join(f"{step} of cluster {step.cluster}" for step in steps)
