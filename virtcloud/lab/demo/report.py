"""What the demonstration says: chapters with their time, and claims, each of them checked."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class DemoChapter:
    """A part of the story: its title, how long it took in seconds, and how many of its claims hold."""

    title: str
    seconds: float = 0.0
    held: int = 0
    failed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class DemoReport:
    """Prints the story as it goes and keeps what the table at its end needs."""

    console: Console
    clock: Callable[[], float] = time.monotonic
    chapters: list[DemoChapter] = field(default_factory=list)

    @contextmanager
    def chapter(self, title: str) -> Iterator[None]:
        """Open a chapter; its time is taken until the block ends."""
        chapter = DemoChapter(title)
        self.chapters.append(chapter)
        self.console.print(f"\n[bold]{len(self.chapters)}. {title}[/bold]", highlight=False, soft_wrap=True)
        start = self.clock()
        try:
            yield
        finally:
            chapter.seconds = self.clock() - start

    def print_line(self, text: str) -> None:
        """Print a line of the story."""
        self.console.print(f"   {text}", highlight=False, soft_wrap=True)

    def check(self, sentence: str, holds: bool, seen: str = "") -> None:
        """Print a sentence with whether it was found true, and what was seen if it was not."""
        chapter = self.chapters[-1]
        if holds:
            chapter.held += 1
            self.console.print(f"   [green]✓[/green] {sentence}", highlight=False, soft_wrap=True)
        else:
            chapter.failed.append(sentence)
            self.console.print(f"   [red]✗ {sentence}[/red]: {seen}", highlight=False, soft_wrap=True)

    @property
    def succeeded(self) -> bool:
        """Whether at least one claim was checked and none failed."""
        return any(chapter.held for chapter in self.chapters) and not any(chapter.failed for chapter in self.chapters)

    def table(self) -> Table:
        """Give the table of what was done, how long it took and what was checked."""
        table = Table("", "what", "seconds", "claims checked", title="What this demonstration did")
        for number, chapter in enumerate(self.chapters, start=1):
            verdict = f"{chapter.held}" if not chapter.failed else f"[red]{len(chapter.failed)} failed[/red]"
            table.add_row(str(number), chapter.title, f"{chapter.seconds:.1f}", verdict)
        total = sum(chapter.seconds for chapter in self.chapters)
        table.add_row("", "all", f"{total:.1f}", str(sum(chapter.held for chapter in self.chapters)))
        return table
