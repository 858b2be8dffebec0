"""The places of jobs, opened when a cluster is up for its script, and again when the agent starts anew."""

import threading

from virtcloud.agent import log
from virtcloud.agent.job_access.access import JobAccess, JobAccessProvider, ScriptEnvironment
from virtcloud.agent.job_socket.job_records import JobRecord, JobRecordStore, RecordPhase, record_access
from virtcloud.agent.supervision import ReportProgress
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView


class ScriptAccess:
    """Opens and closes, one at a time. Lock order: this one's, then the ledger's."""

    def __init__(self, port: JobAccessProvider, ledger: JobRecordStore) -> None:
        """Open by ``port`` what ``ledger`` knows."""
        self._provider = port
        self._records = ledger
        self._lock = threading.Lock()
        self._environments: dict[JobAccess, ScriptEnvironment] = {}

    def provide_environment(self, job: JobRecord, view: ClusterView, site: Name) -> ScriptEnvironment:
        """Give the environment of a job's script; its place is opened where the script runs. Raises Refused."""
        told = {
            "VCLUSTER_ID": view.key,
            "VCLUSTER_VLAN": str(view.vlans[site]),
            "VCLUSTER_GUESTS": " ".join(guest.name for guest in view.spec.guests),
        }
        named = {"VCLUSTER_NAME": view.spec.name} if view.spec.name else {}
        with self._lock:
            opened = (
                self._open_and_record(job, _job_access(job, view, site))
                if _is_current_run(job, self._records.get(job.cluster))
                else {}
            )
        return {**told, **named, **opened}

    def reopen(self, beat: ReportProgress = lambda: None) -> None:
        """Reopen the places that were open when the agent ended; a failure is logged, and retried when a hook asks.

        A script may outlive the signal by which its job is given up (``qsig -s TERM``): its place stays to its end.
        """
        for job in self._records.all():
            beat()
            if job.phase in {RecordPhase.ASKED, RecordPhase.CANCELLED} and job.opening:
                try:
                    with self._lock:
                        self._ensure_open(job.opening)
                except VirtcloudError as error:
                    log.warning("place_not_opened", cluster=job.cluster, error=error)
                except Exception:  # noqa: BLE001 - one job's place keeps no other job from its removal
                    log.exception("fault", cluster=job.cluster)

    def close(self, job: JobRecord) -> None:
        """Close the place of a run that is over; raises Refused. A later run's place under the same key stays."""
        with self._lock:
            known = self._records.get(job.cluster)
            if known is None or known.is_same_run(job):
                self._close(job.cluster)

    def _close(self, cluster: str) -> None:
        self._environments = {opening: facts for opening, facts in self._environments.items() if opening.key != cluster}
        self._provider.close(cluster)

    def _open_and_record(self, job: JobRecord, opening: JobAccess | None) -> ScriptEnvironment:
        """Open it before it is written down: an agent that is killed in between is asked again."""
        opened = self._ensure_open(opening) if opening else {}
        self._records.change(
            job.cluster, lambda now: record_access(now, opening) if now and _is_current_run(job, now) else now
        )
        return opened

    def _ensure_open(self, opening: JobAccess) -> ScriptEnvironment:
        if opening not in self._environments:
            if any(other.key == opening.key for other in self._environments):
                self._close(opening.key)
            self._environments[opening] = self._provider.open(opening)
        return self._environments[opening]


def _is_current_run(job: JobRecord, known: JobRecord | None) -> bool:
    """Say whether it is still the same run, and wanted: another thread may have been told otherwise."""
    return known is not None and known.is_same_run(job) and known.phase is RecordPhase.ASKED


def _job_access(job: JobRecord, view: ClusterView, site: Name) -> JobAccess | None:
    if not job.head or job.user is None:
        return None
    return JobAccess(key=view.key, user=job.user, vlan=view.vlans[site], name=view.spec.name, guests=view.spec.guests)
