"""Display of a cluster's progress on stderr.

On a terminal, the display has one line per element. Otherwise, one line is printed per change.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import click

from virtcloud.cli import groups
from virtcloud.client.cluster import Cluster
from virtcloud.model.cluster import ClusterState
from virtcloud.model.edge import DEVICE_KINDS
from virtcloud.model.errors import ServiceUnreachable, TimedOut
from virtcloud.model.image import FETCHING, UNPACKING
from virtcloud.model.ssh_access import SshAccessView
from virtcloud.model.views import ClusterView, PlacementProgress, PlacementView
from virtcloud.model.vpn import VpnProfileView

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live as LiveDisplay
    from rich.table import Table

V = TypeVar("V")
MARKS = {
    PlacementProgress.ADDING: "…",
    PlacementProgress.CONFIRMED: "✓",
    PlacementProgress.REMOVING: "…",
    PlacementProgress.REMOVED: "✓",
}


def _open_console() -> "Console":
    from rich.console import Console  # noqa: PLC0415 - few commands need rich, which takes 0.05 s to import

    return Console(file=sys.stderr, markup=False, highlight=False)


class ProgressLines(Generic[V]):
    """A function object that prints a line for each change of a view, with the elapsed time."""

    def __init__(
        self,
        describe: Callable[[V], Iterable[tuple[str, str]]],
        clock: Callable[[], float] = time.monotonic,
        console: "Console | None" = None,
    ) -> None:
        """Start the clock. ``describe`` returns pairs of a name and a text. ``clock`` returns seconds."""
        self._describe = describe
        self._clock = clock
        self._console = console or _open_console()
        self._start = clock()
        self._printed: dict[str, str] = {}

    @property
    def seconds(self) -> float:
        """Seconds since the object was created."""
        return self._clock() - self._start

    def __call__(self, view: V) -> None:
        """Print the texts of ``view`` that have changed."""
        for name, text in ((name, _on_one_line(text)) for name, text in self._describe(view)):
            if self._printed.get(name) != text:
                self._printed[name] = text
                self._console.print(f"{self.seconds:6.1f} s  {name}: {text}", soft_wrap=True)


class ProgressDisplay:
    """A function object that displays views of a cluster. The end of a ``with`` block restores the terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, console: "Console | None" = None) -> None:
        """Create a display and start its clock. ``clock`` returns seconds."""
        self._clock = clock
        self._console = console or _open_console()
        self._start = clock()
        self._ended: dict[str, tuple[PlacementProgress, float]] = {}
        self._lines = ProgressLines(_progress_lines, clock, self._console)
        self._live: LiveDisplay | None = None
        if self._console.is_terminal:
            from rich.live import Live  # noqa: PLC0415 - only a terminal needs it

            self._live = Live(console=self._console, auto_refresh=False, transient=True)

    @property
    def seconds(self) -> float:
        """Seconds since the display was created."""
        return self._clock() - self._start

    def __enter__(self) -> Self:
        """Start the display."""
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the display, and remove its lines from a terminal."""
        if self._live:
            self._live.stop()

    def __call__(self, view: ClusterView) -> None:
        """Display the progress in ``view``."""
        if self._live:
            self._live.update(self._draw(view), refresh=True)
        else:
            self._lines(view)

    def _draw(self, view: ClusterView) -> "Table":
        from rich.table import Table  # noqa: PLC0415 - as above

        grid = Table.grid(padding=(0, 2))
        grid.add_row("", view.key, str(view.state), f"{self.seconds:.1f} s")
        for placement in view.placements:
            grid.add_row(
                MARKS[placement.progress],
                placement.element,
                format_progress(placement, view),
                f"{self._elapsed(placement):.1f} s",
            )
        return grid

    def _elapsed(self, placement: PlacementView) -> float:
        if placement.progress in {PlacementProgress.ADDING, PlacementProgress.REMOVING}:
            return self.seconds
        progress, seconds = self._ended.get(placement.element, (None, 0.0))
        if progress != placement.progress:
            seconds = self.seconds
            self._ended[placement.element] = (placement.progress, seconds)
        return seconds


def format_progress(placement: PlacementView, view: ClusterView) -> str:
    """Return a sentence about the progress of an element, such as "waiting for VLAN 100 on its ports". Pure."""
    wanted = _describe_wanted(placement, view)
    progress = {
        PlacementProgress.ADDING: f"waiting for {wanted}",
        PlacementProgress.CONFIRMED: f"has {wanted}",
        PlacementProgress.REMOVING: f"waiting for the removal of {wanted}",
        PlacementProgress.REMOVED: "clean",
    }[placement.progress]
    if not placement.trouble:
        return progress
    is_fetch = placement.trouble.startswith((FETCHING, UNPACKING))
    trouble = _on_one_line(placement.trouble)
    return f"{progress}; {trouble}" if is_fetch else f"{progress}; trouble: {trouble}"


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _describe_wanted(placement: PlacementView, view: ClusterView) -> str:
    vlan = view.vlans.get(placement.site)
    guests = [guest.name for guest in view.spec.guests if guest.host == placement.element]
    segment = f"VLAN {vlan}" if vlan else "its VLAN"
    if placement.kind in DEVICE_KINDS:
        return f"{segment} on its ports"
    return f"{segment} and {', '.join(guests)}" if guests else segment


def _progress_lines(view: ClusterView) -> Iterator[tuple[str, str]]:
    yield view.key, f"{view.state}" + (f": {view.reason}" if view.reason else "")
    for placement in view.placements:
        yield placement.element, format_progress(placement, view)


def wait_with_progress(
    context: click.Context, cluster: Cluster, continues: str, goal: ClusterState, timeout: float | None = None
) -> float:
    """Wait until the cluster is in the state ``goal``, and display the progress. Return the duration in seconds.

    On Ctrl-C, the exit message contains ``continues``, which describes what SBF continues to do.

    Raise TimedOut after ``timeout`` seconds. Also raise TimedOut if SBF does not answer any more: SBF has already
    accepted the request. Raise ClusterFailed if ``goal`` is ACTIVE and the cluster fails or ends.
    """
    key = cluster.key
    try:
        with ProgressDisplay() as progress:
            (cluster.wait_active if goal == ClusterState.ACTIVE else cluster.wait_ended)(progress, timeout)
            return progress.seconds
    except ServiceUnreachable as error:
        raise TimedOut(f"{error}. Cluster {key} {continues}; show it later: virtcloud cluster show {key}") from error
    except KeyboardInterrupt:
        delete = f"; delete it: virtcloud cluster delete {key}" if goal == ClusterState.ACTIVE else ""
        groups.exit_interrupted(context, f"cluster {key} {continues}; show it: virtcloud cluster show {key}{delete}")


def describe_pending(view: SshAccessView | VpnProfileView) -> Iterator[tuple[str, str]]:
    """Yield each element that has not confirmed SSH or VPN access yet, with the reason."""
    for element in view.pending:
        reason = element.trouble or ("" if element.reachable else "its agent does not answer")
        yield element.element, f"waiting for its confirmation{f'; {reason}' if reason else ''}"
