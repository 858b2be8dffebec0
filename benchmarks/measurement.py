"""Measurements with their targets, and the page that lists them, with a section for each benchmark."""

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

TIMES = "\N{MULTIPLICATION SIGN}"
"""The unit of a ratio."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure: its subject, the measured value, and the target: an upper (or lower) limit.

    A measurement without a target explains the others.
    """

    what: str
    measured: float
    unit: str = ""
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is met; True without a target."""
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    @property
    def shown(self) -> str:
        """The measured value with its unit."""
        return _shown(self.measured, self.unit)

    @property
    def promised(self) -> str:
        """The target with its unit."""
        if self.target is None:
            return ""
        return f"{'at least' if self.at_least else 'at most'} {_shown(self.target, self.unit)}"

    @property
    def verdict(self) -> str:
        """``met``, ``**missed**``, or "" without a target."""
        if self.target is None:
            return ""
        return "met" if self.met else "**missed**"

    def __str__(self) -> str:
        """Format the measurement on one line."""
        beside = f"  (target: {self.promised}: {self.verdict.strip('*')})" if self.target is not None else ""
        return f"{self.what}: {self.shown}{beside}"


def _shown(number: float, unit: str) -> str:
    digits = f"{number:.0f}" if number == int(number) or abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004
    return f"{digits} {unit}".strip()


PAGE = Path(__file__).parent.parent / "docs" / "reference" / "speed.md"
SECTION = re.compile(r"^## `benchmarks/(\w+)\.py`$", re.MULTILINE)


def write_section(name: str, figures: Sequence[Measurement], order: Sequence[str]) -> None:
    """Replace a benchmark's section of the page; sections are in the given order."""
    sections = {**_sections(PAGE.read_text("utf-8")), name: _section(name, figures)}
    PAGE.write_text("\n".join([_head(), *(sections[name] for name in order if name in sections)]), "utf-8")


def _sections(page: str) -> dict[str, str]:
    """Return the sections of a page by their benchmarks, each with its heading."""
    found = list(SECTION.finditer(page))
    ends = [*(heading.start() for heading in found[1:]), len(page)]
    return {
        heading.group(1): page[heading.start() : end].rstrip() + "\n" for heading, end in zip(found, ends, strict=True)
    }


def _head() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        "<!-- Written by `make bench`; run that instead. -->\n\n# Speed\n\n"
        f"Measured by `make bench` on {cores} cores, shared by the service, the emulated switches and the callers.\n"
        "Where possible, a figure is the ratio of two times of the same run.\n"
    )


def _section(name: str, figures: Sequence[Measurement]) -> str:
    about = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip()
    rows = "".join(
        f"| {measurement.what} | {measurement.shown} | {measurement.promised} | {measurement.verdict} |\n"
        for measurement in figures
    )
    head = "| what | measured | target | |\n|---|---|---|---|\n"
    return f"## `benchmarks/{name}.py`\n\n{about}\n\nDate: {datetime.now(UTC).date()}\n\n{head}{rows}"
