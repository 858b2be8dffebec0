"""Measurements and their targets, and the page that has a section for each benchmark."""

import importlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured value with its subject and its target.

    If ``at_least`` is true, the target is a lower limit, otherwise an upper limit. A measurement without a target
    explains other measurements.
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
        return _format(self.measured, self.unit)

    @property
    def promised(self) -> str:
        """The target with its unit."""
        if self.target is None:
            return ""
        return f"{'at least' if self.at_least else 'at most'} {_format(self.target, self.unit)}"

    @property
    def verdict(self) -> str:
        """``met``, ``**missed**``, or "" without a target."""
        if self.target is None:
            return ""
        return "met" if self.met else "**missed**"

    def __str__(self) -> str:
        """Format the measurement on one line."""
        target = f"  (target: {self.promised}: {self.verdict.strip('*')})" if self.target is not None else ""
        return f"{self.what}: {self.shown}{target}"


def measure_load() -> Measurement:
    """Return the load average before a benchmark."""
    return Measurement("load average of the machine before the benchmark, caused by other programs", os.getloadavg()[0])


def _format(value: float, unit: str) -> str:
    digits = f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004
    return f"{digits} {unit}".strip()


PAGE = Path(__file__).parent.parent / "docs" / "reference" / "speed.md"
SECTION = re.compile(r"^## `benchmarks/(\w+)\.py`$", re.MULTILINE)


def write_section(name: str, measurements: Sequence[Measurement], order: Sequence[str]) -> None:
    """Replace the section of benchmark ``name`` on the page `PAGE`.

    ``order`` lists the benchmarks in the order of their sections. Remove the sections of benchmarks that are not in
    ``order``.
    """
    sections = {**_sections(PAGE.read_text("utf-8")), name: _section(name, measurements)}
    PAGE.write_text("\n".join([_head(), *(sections[name] for name in order if name in sections)]), "utf-8")


def _sections(page: str) -> dict[str, str]:
    headings = list(SECTION.finditer(page))
    ends = [*(heading.start() for heading in headings[1:]), len(page)]
    return {
        heading.group(1): page[heading.start() : end].rstrip() + "\n"
        for heading, end in zip(headings, ends, strict=True)
    }


def _head() -> str:
    cores = len(os.sched_getaffinity(0))
    return (
        "<!-- Written by `make bench`, and the descriptions by `make docs`; do not edit this page. -->\n\n# Speed\n\n"
        f"Measured by `make bench` on {cores} cores, shared by the service, the emulated switches and the callers.\n"
        "Where possible, a measured value is the ratio of two durations in the same run.\n"
    )


def _section(name: str, measurements: Sequence[Measurement]) -> str:
    about = (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip()
    rows = "".join(
        f"| {measurement.what} | {measurement.shown} | {measurement.promised} | {measurement.verdict} |\n"
        for measurement in measurements
    )
    head = "| what | measured | target | |\n|---|---|---|---|\n"
    return f"## `benchmarks/{name}.py`\n\n{about}\n\nDate: {datetime.now(UTC).date()}\n\n{head}{rows}"
