"""The base class of the steps that create or correct a part of a segment (`steps.py`). Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from virtcloud.model.wanted import Segment


def format_faults(faults: Iterable[str]) -> str:
    """Return the end of a step's description: the faults in parentheses, or ""."""
    text = ", ".join(faults)
    return f" ({text})" if text else ""


@dataclass(frozen=True, slots=True)
class SegmentStep:
    """A step that creates a part of a cluster's segment, or corrects ``faults`` of this part."""

    segment: Segment
    faults: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """The ID of the segment's cluster."""
        return self.segment.id
