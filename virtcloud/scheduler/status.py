"""The status file of reconciliation: written after each round, and read by ``virtcloud pbs status``."""

from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.decision import AlertName, DoubtSubject

MAX_ACTIONS = 50
"""The number of last actions that the file contains."""


class AlertView(Document):
    """An alert about ``about``. The alert has existed without interruption since ``since``."""

    name: AlertName
    about: str
    text: str
    since: datetime


class DoubtView(Document):
    """A doubt about a job or cluster: number of observations in a row, duration in seconds, and last reason."""

    subject: DoubtSubject
    key: ClusterKey
    attempt: int
    looks: int
    seconds: float
    why: str


class ReconciliationAction(Document):
    """An action on a cluster; ``what`` is ``ended`` or ``extended``."""

    at: datetime
    what: str
    cluster: ClusterKey
    attempt: int
    why: str


class ReconciliationReport(Document):
    """The state after the round at the time ``at``.

    ``good``: the round did not fail. ``clusters``: the number of clusters that belong to this server.
    """

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
    """The content of the file: the last report, and a description of the reconciler that wrote the report."""

    kind: str
    sbf: str
    interval_s: float
    report: ReconciliationReport

    def late(self, now: datetime) -> bool:
        """Return whether the next round is overdue, because the service does not run or hangs."""
        return (now - self.report.at).total_seconds() > 3 * self.interval_s + 60


def write_status(path: Path, status: SchedulerStatus) -> None:
    """Write the status file atomically. Raises OSError."""
    fresh = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh.write_text(status.model_dump_json(indent=1) + "\n")
    fresh.replace(path)


def read_status(path: Path) -> SchedulerStatus:
    """Read the status file. Raises NotFound if the file is missing, BadInput if it is invalid."""
    try:
        # A later version may have more fields.
        return SchedulerStatus.model_validate_json(path.read_text(), extra="ignore")
    except FileNotFoundError as error:
        raise NotFound(f"{path} is missing: no 'virtcloud agent' with [scheduler] has run since the boot") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BadInput(f"{path}: not a valid status file: {error.errors()[0]['msg']}") from error
