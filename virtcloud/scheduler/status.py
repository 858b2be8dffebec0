"""What reconciliation saw and did, as a file: written after each look, read by ``virtcloud pbs status``."""

from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.decision import AlertName, DoubtSubject

MAX_ACTIONS = 50
"""So many of the last deeds are kept."""


class AlertView(Document):
    """Something is wrong with ``about``; ``since`` is when it was first told, without a break."""

    name: AlertName
    about: str
    text: str
    since: datetime


class DoubtView(Document):
    """A job or a cluster that has been in doubt for so many looks in a row and so many seconds."""

    subject: DoubtSubject
    key: ClusterKey
    attempt: int
    looks: int
    seconds: float
    why: str


class ReconciliationAction(Document):
    """What was done: ``ended`` or ``extended``."""

    at: datetime
    what: str
    cluster: ClusterKey
    attempt: int
    why: str


class ReconciliationReport(Document):
    """The state after the look at ``at``; ``good`` says that it did not fail, ``clusters`` are this server's."""

    at: datetime
    good: bool
    last_good: datetime | None = None
    server: str | None = None
    jobs: int = 0
    clusters: int = 0
    doubts: tuple[DoubtView, ...] = ()
    alerts: tuple[AlertView, ...] = ()
    deeds: tuple[ReconciliationAction, ...] = ()


class SchedulerStatus(Document):
    """The file: the last report, and whose it is."""

    kind: str
    sbf: str
    interval_s: float
    report: ReconciliationReport

    def late(self, now: datetime) -> bool:
        """Say whether the next look should long have been: the service does not run, or hangs."""
        return (now - self.report.at).total_seconds() > 3 * self.interval_s + 60


def write_status(path: Path, status: SchedulerStatus) -> None:
    """Write it as a whole; raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(status.model_dump_json(indent=1) + "\n")
    fresh.replace(path)


def read_status(path: Path) -> SchedulerStatus:
    """Read it; raises NotFound where there is none, BadInput where it is another version's."""
    try:
        return SchedulerStatus.model_validate_json(path.read_text(), extra="ignore")  # perhaps of a later service
    except FileNotFoundError as error:
        raise NotFound(f"{path} is not there: no 'virtcloud agent' with [scheduler] has run since the start") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BadInput(f"{path}: not a status of this version: {error.errors()[0]['msg']}") from error
