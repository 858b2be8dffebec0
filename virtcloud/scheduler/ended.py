"""How a scheduler's command ended."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """A command, its exit code, and what it wrote.

    What it wrote is read as UTF-8; users' text may hold other bytes, which are replaced.
    """

    command: str
    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it said went wrong, in one line."""
        said = "; ".join(line.strip() for line in self.err.splitlines() if line.strip())
        return f"{self.command} ended with {self.code}: {said or 'it said nothing'}"
