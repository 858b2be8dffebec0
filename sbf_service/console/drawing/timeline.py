"""The drawing of a cluster's history: the states as a bar, and the events of the audit log. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sbf_service.console.troubles import Level, find_state_level
from virtcloud.model.changes import AuditEntry
from virtcloud.model.cluster import ENDED_STATES, ClusterState
from virtcloud.model.durations import format_duration
from virtcloud.model.values import format_utc
from virtcloud.model.views import ClusterView

WIDTH: Final = 1100
BAR: Final = 34
PREFIX: Final = "cluster_"
CREATED: Final = "cluster_created"
PAST: Final = 0.72
"""The fraction of the bar that shows the past of a running cluster. The rest is the remaining lease."""
LEAST: Final = 8
"""The minimum width of a state.

With many states, the minimum is smaller, so that all minimum widths together fill at most half of the past.
"""


@dataclass(frozen=True, slots=True)
class Period:
    """A period in one state."""

    x: float
    width: float
    state: str
    level: Level
    title: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The periods of a cluster's states, the labels below the bar, and the events in the order of time."""

    width: float
    height: float
    periods: tuple[Period, ...]
    marks: tuple[tuple[float, str, str], ...]
    """The position, text and anchor of each label below the bar."""
    events: tuple[AuditEntry, ...]


def draw_timeline(view: ClusterView, entries: Sequence[AuditEntry], now: datetime) -> Timeline | None:
    """Return the drawing of a cluster's history; None if ``entries`` contains no event of the cluster."""
    events = tuple(entry for entry in entries if entry.cluster_id == view.id)
    if not events:
        return None
    changes = _list_changes(events, view.state)
    start, is_over = changes[0][0], view.state in ENDED_STATES
    present = max(changes[-1][0] if is_over else now, start + timedelta(seconds=1))
    past = float(WIDTH) if is_over else WIDTH * PAST
    beginning = "requested" if _has_creation(events) else "oldest event shown:"
    marks = [(0.0, f"{beginning} {format_utc(start)}", "start")]
    if is_over:
        marks.append((past, f"{view.state} {format_utc(present)}", "end"))
    else:
        marks.append((past, "now", "middle"))
        marks.append((float(WIDTH), f"lease ends {format_utc(view.lease_ends)}", "end"))
    return Timeline(WIDTH, BAR + 26, tuple(_make_periods(changes, start, present, past)), tuple(marks), events)


def _has_creation(events: Sequence[AuditEntry]) -> bool:
    """Return whether the events include the cluster's creation, which ``sbf prune`` may have archived."""
    return any(entry.what == CREATED for entry in events)


def _list_changes(events: Sequence[AuditEntry], present: ClusterState) -> list[tuple[datetime, ClusterState]]:
    """Return the time and the new state of each change of state.

    If ``events`` contains neither the creation nor a change, return one pair: the time of the first event, and the
    state ``present``.
    """
    changes = [(events[0].at, ClusterState.CONFIGURING)] if _has_creation(events) else []
    for entry in events:
        state = entry.what.removeprefix(PREFIX)
        is_change = entry.what.startswith(PREFIX) and state in set(ClusterState)
        if is_change and not (changes and state == changes[-1][1]):
            changes.append((entry.at, ClusterState(state)))
    return changes or [(events[0].at, present)]


def _make_periods(
    changes: Sequence[tuple[datetime, ClusterState]], start: datetime, present: datetime, width: float
) -> list[Period]:
    """Return the periods between changes of state.

    Each period gets the minimum width. The rest of ``width`` is divided in proportion to the durations.
    """
    least = min(LEAST, width / len(changes) / 2)
    scale = (width - least * len(changes)) / (present - start).total_seconds()
    periods, x = [], 0.0
    ends = [*(at for at, _ in changes[1:]), present]
    for (at, state), until in zip(changes, ends, strict=True):
        seconds = max(0.0, (until - at).total_seconds())
        size = least + seconds * scale
        title = f"{state} from {format_utc(at)} for {format_duration(seconds)}"
        periods.append(Period(round(x, 1), round(size, 1), str(state), find_state_level(state), title))
        x += size
    return periods
