"""The report of the demonstration: chapters with their durations, and the results of their checks."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class DemoChapter:
    """A chapter: its title, its duration in seconds, and the results of its checks."""

    title: str
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DemoReport:
    """Prints the chapters as they run and stores the results for the final table."""

    console: Console
    clock: Callable[[], float] = time.monotonic
    chapters: list[DemoChapter] = field(default_factory=list)

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Print a chapter's title, and measure how long the block runs."""
        chapter = DemoChapter(title)
        self.chapters.append(chapter)
        self.console.print(f"\n[bold]{len(self.chapters)}. {title}[/bold]", highlight=False, soft_wrap=True)
        start = self.clock()
        try:
            yield
        finally:
            chapter.seconds = self.clock() - start

    def print_line(self, text: str) -> None:
        """Print a line of the current chapter."""
        self.console.print(f"   {text}", highlight=False, soft_wrap=True)

    def check(self, claim: str, is_true: bool, observation: str = "") -> None:
        """Print a claim with the result ``is_true`` of its check. If the claim is false, also print ``observation``."""
        chapter = self.chapters[-1]
        if is_true:
            chapter.passed += 1
            self.console.print(f"   [green]✓[/green] {claim}", highlight=False, soft_wrap=True)
        else:
            chapter.failed.append(claim)
            self.console.print(f"   [red]✗ {claim}[/red]: {observation}", highlight=False, soft_wrap=True)

    @property
    def succeeded(self) -> bool:
        """Return whether at least one check ran and no check failed."""
        return any(chapter.passed for chapter in self.chapters) and not any(chapter.failed for chapter in self.chapters)

    def table(self) -> Table:
        """Return the table of the chapters with their durations and checks."""
        table = Table("", "chapter", "seconds", "checks", title="Chapters of the demonstration")
        for number, chapter in enumerate(self.chapters, start=1):
            result = f"{chapter.passed}" if not chapter.failed else f"[red]{len(chapter.failed)} failed[/red]"
            table.add_row(str(number), chapter.title, f"{chapter.seconds:.1f}", result)
        total = sum(chapter.seconds for chapter in self.chapters)
        table.add_row("", "all", f"{total:.1f}", str(sum(chapter.passed for chapter in self.chapters)))
        return table
