"""An SBF and a host in memory, for tests of the reconciler."""

from collections.abc import Mapping
from dataclasses import replace

from virtcloud.agent.difference import (
    BuildSegment,
    ObservedGuest,
    ObservedHost,
    ObservedSegment,
    RemoveSegment,
    StartGuest,
    Step,
    StopGuests,
    digest,
)
from virtcloud.model.errors import Refused, VirtcloudError
from virtcloud.model.wanted import HostWanted, Segment, WantedDocument


class FakeElementApi:
    """An SBF in memory: its wanted document, and the reports that it received."""

    def __init__(self) -> None:
        """Start with an empty wanted state."""
        self.document = WantedDocument(element="h1", revision=0, confirmed_revision=0, wanted=HostWanted())
        self.told: list[tuple[str, int]] = []
        self.messages: list[str] = []
        self.refused: list[dict[str, str]] = []
        self.about: list[dict[str, str]] = []
        self.polls: list[tuple[int | None, float]] = []
        self.failing: VirtcloudError | None = None

    def want(self, *segments: Segment) -> None:
        """Set the wanted segments and increase the revision."""
        update = {"revision": self.document.revision + 1, "wanted": HostWanted(segments=segments)}
        self.document = self.document.model_copy(update=update)

    def wanted(self, element: str, after: int | None = None, wait: float = 0) -> WantedDocument:
        """Return the wanted document immediately."""
        assert element == "h1"
        self.polls.append((after, wait))
        if self.failing:
            raise self.failing
        return self.document

    def confirm(self, element: str, revision: int) -> None:
        """Record the confirmation."""
        self._tell("confirmed", element, revision)
        self.document = self.document.model_copy(update={"confirmed_revision": revision})

    def report_error(
        self,
        element: str,
        revision: int,
        message: str,
        refused: Mapping[str, str] | None = None,
        clusters: Mapping[str, str] | None = None,
    ) -> None:
        """Record the report."""
        self._tell("trouble", element, revision)
        self.messages.append(message)
        self.about.append(dict(clusters or {}))
        self.refused.append(dict(refused or {}))

    def report_drift(self, element: str, revision: int) -> None:
        """Record the report, and reset the confirmed revision."""
        self._tell("drifted", element, revision)
        self.document = self.document.model_copy(update={"confirmed_revision": revision - 1})

    def _tell(self, what: str, element: str, revision: int) -> None:
        assert element == "h1"
        if self.failing:
            raise self.failing
        self.told.append((what, revision))


class FakeManagedHost:
    """A host that steps change. Steps of clusters in ``refuses`` fail. With ``forgets``, steps have no effect."""

    def __init__(self) -> None:
        """Start without segments and guests."""
        self.carried = ObservedHost()
        self.steps: list[Step] = []
        self.refuses: set[str] = set()
        self.forgets = False

    def read(self) -> ObservedHost:
        """Return the observed state."""
        return self.carried

    def apply(self, step: Step) -> None:
        """Apply a step."""
        if step.cluster in self.refuses:
            raise Refused("the kernel said no")
        self.steps.append(step)
        if not self.forgets:
            self.carried = _after(self.carried, step)


def _after(carried: ObservedHost, step: Step) -> ObservedHost:
    match step:
        case StopGuests(cluster, names):
            left = tuple(one for one in carried.guests if one.cluster != cluster or one.guest not in names)
            return replace(carried, guests=left)
        case RemoveSegment(cluster, _):
            return replace(carried, segments=tuple(one for one in carried.segments if one.cluster != cluster))
        case BuildSegment(one):
            return replace(carried, segments=(*carried.segments, ObservedSegment(one.id, one.vlan, one.port)))
        case StartGuest(one, guest):
            return replace(carried, guests=(*carried.guests, ObservedGuest(one.id, guest.name, digest(one, guest))))
