"""Events: the changes of a cluster between two of its views. Pure."""

from collections.abc import Iterator

from virtcloud.model.document import Document
from virtcloud.model.values import ClusterKey, Name, format_utc
from virtcloud.model.views import ClusterView, PlacementView


class ClusterEvent(Document):
    """A change of a cluster: of its state, lease or VLAN IDs, or of the progress of one element."""

    cluster: ClusterKey
    element: Name | None = None
    """The element whose progress changed; null: the cluster itself changed."""
    before: str | None = None
    """The previous value; null in the first event of a cluster or element."""
    after: str
    """The new value: a state, VLAN IDs, a progress, or the end of the lease."""
    detail: str | None = None
    """The reason for a state, or the error of an element."""

    def __str__(self) -> str:
        """Return the event as a line of text."""
        subject = f"{self.cluster}, {self.element}" if self.element else self.cluster
        return f"{subject}: {self.after}" + (f": {self.detail}" if self.detail else "")


def find_events(before: ClusterView | None, after: ClusterView) -> Iterator[ClusterEvent]:
    """Yield the changes from one view to a later view, the state first.

    If ``before`` is None, yield the present state and the progress of each element.
    """
    former = {} if before is None else _describe(before)
    for (element, subject), (text, detail) in _describe(after).items():
        known = former.get((element, subject))
        if known != (text, detail) and (before is not None or subject in _FIRST):
            yield ClusterEvent(
                cluster=after.key,
                element=element,
                before=None if known is None else known[0],
                after=text,
                detail=detail,
            )


_FIRST = frozenset({"state", "progress"})
"""The subjects of the events that ``find_events`` yields if ``before`` is None."""


def _describe(view: ClusterView) -> dict[tuple[Name | None, str], tuple[str, str | None]]:
    """Return the values that events report about a view: (element or None, subject) → (text, detail or None)."""
    vlans = ", ".join(f"VLAN {vlan} at {site}" for site, vlan in sorted(view.vlans.items())) or "no VLAN"
    found: dict[tuple[Name | None, str], tuple[str, str | None]] = {(None, "state"): (view.state, view.reason)}
    found |= {(part.element, "progress"): _describe_part(part) for part in view.placements}
    found[None, "vlans"] = (vlans, None)
    found[None, "lease"] = (f"lease ends {format_utc(view.lease_ends)}", None)
    return found


def _describe_part(part: PlacementView) -> tuple[str, str | None]:
    return part.progress if part.reachable else f"{part.progress}, unreachable", part.trouble
