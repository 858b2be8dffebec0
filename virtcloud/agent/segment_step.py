"""What the steps that create or correct a part of a segment have in common. Pure.

`steps.py` lists all steps. The steps of servers, namespaces and bridges are subclasses of `SegmentStep`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from virtcloud.model.wanted import Segment


def format_faults(faults: Iterable[str]) -> str:
    """Return faults in parentheses, as the end of a step's description. Return "" for no faults."""
    text = ", ".join(faults)
    return f" ({text})" if text else ""


@dataclass(frozen=True, slots=True)
class SegmentStep:
    """A step that creates a part of a cluster's segment, or corrects the part's faults."""

    segment: Segment
    faults: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """The cluster's id."""
        return self.segment.id
