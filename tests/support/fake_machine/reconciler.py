"""Fakes in memory for tests of the reconciler."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from virtcloud.agent.difference import digest
from virtcloud.agent.gateway.fqdn_addresses import FqdnAddresses, RouteKernel
from virtcloud.agent.guest_ends import EndCause
from virtcloud.agent.network.guest_filters import list_elements
from virtcloud.agent.network.observed_filters import ObservedFilters
from virtcloud.agent.observed_host import ObservedGuest, ObservedHost, ObservedSegment
from virtcloud.agent.steps import BuildSegment, FilterGuests, RemoveSegment, StartGuest, Step, StepPending, StopGuests
from virtcloud.model.errors import BadInput, Refused, VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import Confirmation
from virtcloud.model.wanted import HostWanted, Segment, WantedDocument


class FakeElementApi:
    """An SBF in memory that returns a wanted document and records reports.

    If ``error`` is set, each call of the agent raises this error. If ``is_former_version`` is true, SBF refuses
    confirmations with keys other than ``revision`` and ``incomplete``.
    """

    def __init__(self) -> None:
        self.document = WantedDocument(element="h1", revision=0, confirmed_revision=0, wanted=HostWanted())
        self.reports: list[tuple[str, int]] = []
        self.messages: list[str] = []
        self.refused: list[dict[str, str]] = []
        self.errors_by_cluster: list[dict[str, str]] = []
        self.incomplete: list[dict[str, str]] = []
        self.remaining: list[dict[str, str]] = []
        self.only_guests: list[tuple[str, ...]] = []
        self.unstopped: list[dict[str, tuple[Name, ...]]] = []
        self.is_former_version = False
        self.polls: list[tuple[int | None, float]] = []
        self.error: VirtcloudError | None = None

    def want(self, *segments: Segment) -> None:
        update = {"revision": self.document.revision + 1, "wanted": HostWanted(segments=segments)}
        self.document = self.document.model_copy(update=update)

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        assert element == "h1"
        self.polls.append((after, wait))
        if self.error:
            raise self.error
        return self.document

    def confirm(self, element: str, confirmation: Confirmation) -> None:
        """Record the confirmation. An SBF of a former version refuses all keys that it does not know."""
        incomplete, remaining = confirmation.incomplete or {}, confirmation.remaining or {}
        keys = confirmation.model_dump(exclude_none=True).keys() - {"revision", "incomplete"}
        if self.is_former_version and keys:
            raise BadInput(f"{', '.join(keys)}: unknown key")
        self._record_report("confirmed", element, confirmation.revision)
        self.incomplete.append(incomplete)
        self.remaining.append(remaining)
        self.only_guests.append(confirmation.only_guests or ())
        self.unstopped.append(confirmation.unstopped_guests or {})
        update = {"confirmed_revision": confirmation.revision, "incomplete": (*incomplete, *remaining)}
        self.document = self.document.model_copy(update=update)

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        self._record_report("error", element, revision)
        self.messages.append(message)
        self.errors_by_cluster.append(dict(clusters or {}))
        self.refused.append(dict(refused or {}))

    def report_drift(self, element: str, revision: int) -> None:
        """Record the report, and set the confirmed revision to the revision before ``revision``."""
        self._record_report("drifted", element, revision)
        self.document = self.document.model_copy(update={"confirmed_revision": revision - 1})

    def _record_report(self, kind: str, element: str, revision: int) -> None:
        assert element == "h1"
        if self.error:
            raise self.error
        self.reports.append((kind, revision))


def _open_no_kernel() -> AbstractContextManager[RouteKernel]:
    raise AssertionError("expected no names to resolve")


class FakeManagedHost:
    """A host whose state changes when a step is applied.

    Steps of clusters in ``refuses`` raise Refused. ``waits`` maps a cluster to a text. Steps that start guests of this
    cluster raise StepPending with this text. If ``refuses_filters`` is true, steps that set filters raise Refused. If
    ``refuses_stops`` is true, steps that stop guests raise Refused. If ``ignores_steps`` is true, steps have no effect.
    ``fqdns`` resolves no names, because this host is no router.
    """

    def __init__(self) -> None:
        self.observed = ObservedHost()
        self.fqdns = FqdnAddresses(Path("unused"), _open_no_kernel)
        self.interfaces_read: object = None
        self.steps: list[Step] = []
        self.refuses: set[str] = set()
        self.waits: dict[str, str] = {}
        self.refuses_filters = False
        self.refuses_stops = False
        self.ignores_steps = False
        self.end_causes: dict[str, EndCause] = {}
        self.end_searches: list[float] = []

    def remove_orphaned_files(self, _wanted: HostWanted) -> None:
        """Do nothing: this host has no files."""

    def receive(self, _wanted: HostWanted) -> None:
        """Do nothing: this host is no gateway and has no connections."""

    def take_over_access(self) -> None:
        """Do nothing: this host is no gateway and has no connections."""

    def restore_outside_filter(self) -> None:
        """Do nothing: this host is no router."""

    def destination_uses(self) -> tuple[()]:
        return ()

    def vpn_connections(self) -> None:
        """Return None: no OpenVPN server runs."""

    def ssh_connections(self) -> None:
        """Return None: no sshd runs."""

    def notice_connection_changes(self, _notice: object) -> None:
        """Do nothing: this host has no connections."""

    def read(self) -> ObservedHost:
        return self.observed

    def find_end_cause(self, step: StartGuest, within_s: float) -> EndCause:
        """Return the cause of the guest's end according to ``end_causes``, or UNKNOWN. Record ``within_s``."""
        self.end_searches.append(within_s)
        return self.end_causes.get(step.guest.name, EndCause.UNKNOWN)

    def apply(self, step: Step) -> None:
        if step.cluster in self.refuses or (self.refuses_filters and isinstance(step, FilterGuests)):
            raise Refused("the kernel refused")
        if self.refuses_stops and isinstance(step, StopGuests):
            raise Refused("the kernel refused")
        if isinstance(step, StartGuest) and step.cluster in self.waits:
            raise StepPending(self.waits[step.cluster])
        self.steps.append(step)
        if not self.ignores_steps:
            self.observed = _apply_step(self.observed, step)


def _apply_step(observed: ObservedHost, step: Step) -> ObservedHost:
    match step:
        case StopGuests(cluster, names):
            remaining = tuple(
                guest for guest in observed.guests if guest.cluster != cluster or guest.guest not in names
            )
            return replace(observed, guests=remaining)
        case RemoveSegment(cluster, _):
            return replace(
                observed, segments=tuple(segment for segment in observed.segments if segment.cluster != cluster)
            )
        case FilterGuests(_, ports):
            return replace(observed, filters=ObservedFilters(list_elements(ports)))
        case BuildSegment(segment):
            built = ObservedSegment(segment.id, segment.vlan, segment.port)
            others = (one for one in observed.segments if (one.cluster, one.vlan) != (built.cluster, built.vlan))
            return replace(observed, segments=(*others, built))
        case StartGuest(segment, guest):
            started = ObservedGuest(segment.id, guest.name, digest(segment, guest), starts=guest.starts or 0)
            return replace(observed, guests=(*observed.guests, started))
        case _:  # steps about peer files and the VPN do not change a fake host's state
            return observed
