"""A progress bar in a terminal or a Jupyter notebook, for the methods of the Python API that wait for a cluster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from virtcloud.model.views import ClusterView, PlacementProgress

_REMAINING = frozenset({PlacementProgress.ADDING, PlacementProgress.REMOVING})


class ProgressBar:
    """A progress bar of the elements that have set up or removed a cluster. Calling the object updates the bar.

    The bar appears in a terminal (on stderr), and in a notebook that has the package ipywidgets.
    """

    def __init__(self, console: Console | None = None) -> None:
        """Create the bar. The ``with`` block shows the bar."""
        shown_on = console or Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        is_shown = shown_on.is_terminal or shown_on.is_jupyter
        self._bar = Progress(*columns, console=shown_on, disable=not is_shown)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop the bar. Its last state remains visible."""
        self._bar.stop()

    def __call__(self, view: ClusterView) -> None:
        """Show the progress in ``view``."""
        waiting = [one.element for one in view.placements if one.progress in _REMAINING]
        rest = f", waiting for {waiting[0]}" if waiting else ""
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        total = len(view.placements)
        text = f"{view.key} is {view.state}{rest}{more}"
        self._bar.update(self._task, description=text, total=total, completed=total - len(waiting))
        self._bar.refresh()


@contextmanager
def open_bar() -> Iterator[Callable[[ClusterView], None]]:
    """Show a progress bar within the block."""
    with ProgressBar() as bar:
        yield bar
