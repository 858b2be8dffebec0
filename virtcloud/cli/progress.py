"""A cluster's progress: a line per element, live on a terminal, a line per change elsewhere; always on stderr.

Waiting for a cluster before the user's eyes.
"""

import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from virtcloud.cli import groups
from virtcloud.client.api import Cluster
from virtcloud.model.cluster import ClusterState
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.views import ClusterView, PlacementProgress, PlacementView

MARKS = {
    PlacementProgress.ADDING: "…",
    PlacementProgress.CONFIRMED: "✓",
    PlacementProgress.REMOVING: "…",
    PlacementProgress.REMOVED: "✓",
}


class ProgressDisplay:
    """Called with each view of the cluster; a context, so that the terminal is left as it was."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, console: Console | None = None) -> None:
        """Show from now on; ``clock`` counts seconds."""
        self._clock = clock
        self._console = console or Console(file=sys.stderr, markup=False, highlight=False)
        self._begun = clock()
        self._ended: dict[str, tuple[PlacementProgress, float]] = {}
        self._said: dict[str, str] = {}
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        )

    @property
    def seconds(self) -> float:
        """How long it has been shown."""
        return self._clock() - self._begun

    def __enter__(self) -> Self:
        """Begin."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End; on a terminal the last lines stay only if something is still being waited for."""
        if self._live:
            self._live.stop()

    def __call__(self, view: ClusterView) -> None:
        """Show a view."""
        if self._live:
            self._live.update(self._picture(view), refresh=True)
        else:
            self._say(view)

    def _picture(self, view: ClusterView) -> Table:
        picture = Table.grid(padding=(0, 2))
        picture.add_row("", view.key, str(view.state), f"{self.seconds:.1f} s")
        for placement in view.placements:
            picture.add_row(
                MARKS[placement.progress],
                placement.element,
                format_progress(placement, view),
                f"{self._since(placement):.1f} s",
            )
        return picture

    def _say(self, view: ClusterView) -> None:
        for who, what in _lines(view):
            if self._said.get(who) != what:
                self._said[who] = what
                self._console.print(f"{self.seconds:6.1f} s  {who}: {what}", soft_wrap=True)

    def _since(self, placement: PlacementView) -> float:
        """Give the seconds that an element took or, while it is waited for, has taken."""
        if placement.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING}:
            return self.seconds
        progress, seconds = self._ended.get(placement.element, (None, 0.0))
        if progress != placement.progress:
            seconds = self.seconds
            self._ended[placement.element] = (placement.progress, seconds)
        return seconds


def format_progress(placement: PlacementView, view: ClusterView) -> str:
    """PURE. Say what an element is at, and what is being waited for."""
    what = _what(placement, view)
    said = {
        PlacementProgress.ADDING: f"waiting for {what}",
        PlacementProgress.CONFIRMED: f"has {what}",
        PlacementProgress.REMOVING: f"waiting until {what} is gone",
        PlacementProgress.REMOVED: "clean",
    }[placement.progress]
    return f"{said}; trouble: {placement.trouble}" if placement.trouble else said


def _what(placement: PlacementView, view: ClusterView) -> str:
    vlan = view.vlans.get(placement.site)
    guests = [guest.name for guest in view.spec.guests if guest.host == placement.element]
    segment = f"VLAN {vlan}" if vlan else "its VLAN"
    if placement.kind in DEVICE_KINDS:
        return f"{segment} on its ports"
    return f"{segment} and {', '.join(guests)}" if guests else segment


def _lines(view: ClusterView) -> Iterator[tuple[str, str]]:
    yield view.key, f"{view.state}" + (f": {view.reason}" if view.reason else "")
    for placement in view.placements:
        yield placement.element, format_progress(placement, view)


def wait_with_progress(
    context: click.Context, watched: Cluster, goes_on: str, goal: ClusterState, timeout: float | None = None
) -> float:
    """Wait for ``goal`` with progress shown, and give the seconds that it took."""
    try:
        with ProgressDisplay() as progress:
            (watched.wait_active if goal == ClusterState.ACTIVE else watched.wait_ended)(progress, timeout)
            return progress.seconds
    except KeyboardInterrupt:
        key = watched.key
        delete = f"; delete it: virtcloud cluster delete {key}" if goal == ClusterState.ACTIVE else ""
        groups.exit_interrupted(context, f"cluster {key} {goes_on}; look at it: virtcloud cluster show {key}{delete}")
