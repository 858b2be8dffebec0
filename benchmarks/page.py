"""The page that holds the figures of a run."""

import importlib
import os
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figure import Figure

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "speed.md"


def write_page(found: dict[str, list[Figure]]) -> None:
    """Write what was measured, benchmark by benchmark, each with what it does."""
    PAGE.write_text("\n".join([_head(), *(_section(name, figures) for name, figures in found.items())]), "utf-8")


def _head() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        "<!-- Written by `make bench`; run that instead. -->\n\n# Speed\n\n"
        f"Measured by `make bench` on {cores} cores that the service, the emulated switches and the callers share.\n"
        "Where it can be, a figure is the ratio of two times of the same run.\n\n"
        f"Date: {datetime.now(UTC).date()}\n"
    )


def _section(name: str, figures: list[Figure]) -> str:
    about = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip()
    rows = "".join(f"| {one.what} | {one.shown} | {one.promised} | {one.verdict} |\n" for one in figures)
    return f"## `benchmarks/{name}.py`\n\n{about}\n\n| what | measured | target | |\n|---|---|---|---|\n{rows}"
