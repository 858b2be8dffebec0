"""The status file of the reconciliation, that is, of the comparison of a batch system's jobs with the clusters.

The agent on the host of the batch system's server writes this file after each round. ``virtcloud pbs status`` reads the
file.
"""

from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.values import ClusterKey
from virtcloud.scheduler.decision import AlertName, MismatchKind

MAX_ACTIONS = 50


class AlertView(Document):
    """An alert. ``about``: the job, cluster, host or service that the alert concerns. ``since``: the alert's start."""

    name: AlertName
    about: str
    text: str
    since: datetime


class MismatchView(Document):
    """A mismatch between a job and its cluster in the last round.

    - ``subject``: ``cluster`` if the cluster's job does not run or runs a later attempt; ``job`` if the job has no
      cluster; ``start`` if the job's script does not start.
    - ``looks``: the number of rounds in a row with this mismatch. ``seconds``: the time since the first of these
      rounds.
    - ``why``: the reason in the last round.
    """

    subject: MismatchKind
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
    """The state after a round. ``good``: the round did not fail.

    ``jobs`` and ``clusters``: how many jobs and clusters of the batch system's server this round compared.
    """

    at: datetime
    good: bool
    last_good: datetime | None = None
    server: str | None = None
    jobs: int = 0
    clusters: int = 0
    doubts: tuple[MismatchView, ...] = ()
    """The mismatches between jobs and clusters in this round."""
    alerts: tuple[AlertView, ...] = ()
    deeds: tuple[ReconciliationAction, ...] = ()
    """The last actions, oldest first."""


class SchedulerStatus(Document):
    """The content of the status file: the last report, and the settings of the reconciler."""

    kind: str
    sbf: str
    interval_s: float
    report: ReconciliationReport

    def late(self, now: datetime) -> bool:
        """Return whether the next round is overdue: the agent does not run, or a round hangs."""
        return (now - self.report.at).total_seconds() > 3 * self.interval_s + 60


def write_status(path: Path, status: SchedulerStatus) -> None:
    """Write the status file atomically. Raise OSError if the file cannot be written."""
    new_path = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    new_path.write_text(status.model_dump_json(indent=1) + "\n")
    new_path.replace(path)


def read_status(path: Path) -> SchedulerStatus:
    """Read the status file.

    Raise NotFound if the file is missing, and BadInput if the file is unreadable or invalid.
    """
    try:
        # A file of a later version may have more fields.
        return SchedulerStatus.model_validate_json(path.read_bytes(), extra="ignore")
    except FileNotFoundError as error:
        raise NotFound(f"{path} is missing: no 'virtcloud agent' with [scheduler] has run since the boot") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BadInput(f"{path}: not a valid status file: {error.errors()[0]['msg']}") from error
