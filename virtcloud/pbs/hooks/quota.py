"""Who has too much is not asked for again in the same scheduling cycle: a thousand such jobs may be in it."""

import time
from typing import Dict, Optional, Tuple

from virtcloud.jobs.cluster import Run

QUOTA_S = 10
_refused: Dict[Run, Tuple[float, str]] = {}
"""By what was asked for, for whom: a job that is too long does not hold back a shorter one of the same user."""


def told(run: Run) -> Optional[str]:
    """Give what SBF said lately of the like of a run, when that was too much."""
    until, message = _refused.get(_like(run), (0.0, ""))
    return message if time.monotonic() < until else None


def tell(run: Run, message: str) -> None:
    """Keep what SBF said."""
    _refused[_like(run)] = (time.monotonic() + QUOTA_S, message)


def forget() -> None:
    """Ask again: somebody has less now."""
    _refused.clear()


def _like(run: Run) -> Run:
    return run._replace(key="")
