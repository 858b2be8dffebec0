"""What came of one run of a hook."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Failure(StrEnum):
    """How a hook can end that neither accepts nor rejects; for PBS each is a rejection without a word."""

    EXCEPTION = "exception"
    ALARM = "alarm"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What PBS would do next, and what the hook left.

    ``changed`` has the attributes of the job that the hook set, as PBS writes them: ``{"Hold_Types": "s",
    "Resource_List.place": "scatter:excl", "Variable_List.A": "1"}``. ``rerun`` and ``delete`` say that the hook
    asked for that. ``env``, ``argv`` and ``progname`` are those of a launch after the hook. ``log`` has lines as
    (level, text), ``job_log`` lines as (job, text). ``seconds`` is the time the hook itself took.
    """

    accepted: bool
    message: str | None = None
    failure: Failure | None = None
    traceback: str | None = None
    changed: Mapping[str, str] = field(default_factory=dict)
    rerun: bool = False
    delete: bool = False
    progname: str | None = None
    argv: tuple[str, ...] | None = None
    env: Mapping[str, str] | None = None
    log: tuple[tuple[int, str], ...] = ()
    job_log: tuple[tuple[str, str], ...] = ()
    printed: str = ""
    seconds: float = 0.0
