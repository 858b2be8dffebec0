"""The schedule of retention: one replica at a time archives old rows, once an hour."""

from dataclasses import dataclass, field
from threading import Event, Thread

from sbf_service.domain.retention import RetentionLimits
from sbf_service.log import get_log
from sbf_service.store.maintenance.retention import find_archive_folder, prune
from sbf_service.store.store import Store
from virtcloud.model.errors import BadInput, DatabaseUnavailable

FIRST_RUN_S = 600.0
"""The time in seconds from the start of SBF, which first reconciles its elements, to the first run."""
INTERVAL_S = 3600.0

log = get_log(__name__)


@dataclass
class RetentionSchedule:
    """Archives old rows in a separate thread. After a failed run, the next run tries again."""

    store: Store
    limits: RetentionLimits
    database: str
    first_run_s: float = FIRST_RUN_S
    _stopping: Event = field(default_factory=Event)

    def start(self) -> None:
        """Start the thread."""
        Thread(target=self._run, name="retention", daemon=True).start()

    def stop(self) -> None:
        """Start no more runs. A run in progress continues, at most until the process ends, and loses no row."""
        self._stopping.set()

    def _run(self) -> None:
        pause = self.first_run_s
        while not self._stopping.wait(pause):
            self.run_once()
            pause = INTERVAL_S

    def run_once(self) -> None:
        """Archive all old rows, unless another replica is archiving rows."""
        try:
            prune(self.store, self.limits, find_archive_folder(self.limits, self.database))
        except BadInput as error:
            log.warning("rows_not_archived", why=error)
        except DatabaseUnavailable:
            log.warning("waiting_for_database")
        except Exception as error:  # noqa: BLE001 - an error in one run must not end the thread
            log.fault("retention_fault", error)
