"""A measured figure beside the target that it is held to."""

from dataclasses import dataclass

TIMES = "\N{MULTIPLICATION SIGN}"
"""The unit of a ratio."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: what it is about, what was measured, and at most (or at least) what was promised.

    A figure without a target is told to understand the others.
    """

    what: str
    measured: float
    unit: str = ""
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Say whether the promise was kept; one that was not made is."""
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    @property
    def shown(self) -> str:
        """Write what was measured."""
        return _shown(self.measured, self.unit)

    @property
    def promised(self) -> str:
        """Write the target."""
        if self.target is None:
            return ""
        return f"{'at least' if self.at_least else 'at most'} {_shown(self.target, self.unit)}"

    @property
    def verdict(self) -> str:
        """Say in a word how it stands."""
        if self.target is None:
            return ""
        return "met" if self.met else "**missed**"

    def __str__(self) -> str:
        """Write it on one line."""
        beside = f"  (target: {self.promised}: {self.verdict.strip('*')})" if self.target is not None else ""
        return f"{self.what}: {self.shown}{beside}"


def _shown(number: float, unit: str) -> str:
    digits = f"{number:.0f}" if number == int(number) or abs(number) >= 100 else f"{number:.3g}"  # noqa: PLR2004
    return f"{digits} {unit}".strip()
