"""The page that holds the figures: a section for each benchmark, of the day on which it was run last."""

import importlib
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figure import Figure

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "speed.md"
SECTION = re.compile(r"^## `benchmarks/(\w+)\.py`$", re.MULTILINE)


def write_section(name: str, figures: Sequence[Figure], order: Sequence[str]) -> None:
    """Put what was measured in the place of what stood there; sections come in this order."""
    sections = {**_sections(PAGE.read_text("utf-8")), name: _section(name, figures)}
    PAGE.write_text("\n".join([_head(), *(sections[one] for one in order if one in sections)]), "utf-8")


def _sections(page: str) -> dict[str, str]:
    """Take a page apart: what follows each heading, with it."""
    found = list(SECTION.finditer(page))
    ends = [*(one.start() for one in found[1:]), len(page)]
    return {one.group(1): page[one.start() : end].rstrip() + "\n" for one, end in zip(found, ends, strict=True)}


def _head() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        "<!-- Written by `make bench`; run that instead. -->\n\n# Speed\n\n"
        f"Measured by `make bench` on {cores} cores that the service, the emulated switches and the callers share.\n"
        "Where it can be, a figure is the ratio of two times of the same run.\n"
    )


def _section(name: str, figures: Sequence[Figure]) -> str:
    about = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip()
    rows = "".join(f"| {one.what} | {one.shown} | {one.promised} | {one.verdict} |\n" for one in figures)
    head = "| what | measured | target | |\n|---|---|---|---|\n"
    return f"## `benchmarks/{name}.py`\n\n{about}\n\nDate: {datetime.now(UTC).date()}\n\n{head}{rows}"
