"""Access of jobs' scripts to the jobs' guests.

The agent opens the access when a hook asks for a job's state and the cluster is up. A restarted agent opens the access
again.
"""

import threading
from collections.abc import Callable
from typing import Final

from virtcloud.agent import log
from virtcloud.agent.job_access.access import JobAccess, JobAccessProvider, ScriptEnvironment
from virtcloud.agent.job_socket.job_record_store import JobRecordStore
from virtcloud.agent.job_socket.job_records import JobRecord, RecordPhase, record_access
from virtcloud.agent.supervision import ReportProgress
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.guest_seed import ClusterPeers
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView

ReadPeers = Callable[[str, str], ClusterPeers]
"""Reads from SBF the guests of a cluster's network, and the login name for the cluster's guests. The arguments are the
cluster's key and ID.
"""
NO_PEERS: Final = {"login": None, "peers": ()}


class ScriptAccess:
    """Opens and closes the access of jobs, one job at a time.

    Lock order: the lock of this object, then the lock of the job records.
    """

    def __init__(self, provider: JobAccessProvider, records: JobRecordStore, read_peers: ReadPeers) -> None:
        """Create the object without opening an access."""
        self._provider = provider
        self._records = records
        self._read_peers = read_peers
        self._lock = threading.Lock()
        self._environments: dict[JobAccess, ScriptEnvironment] = {}
        self._errors: dict[str, str] = {}

    def provide_environment(self, job: JobRecord, view: ClusterView, site: Name) -> ScriptEnvironment:
        """Return the environment variables of a job's script. If the script runs on this host, open the access.

        Raise Refused if the access cannot be opened.
        """
        variables = {
            "VCLUSTER_ID": view.key,
            "VCLUSTER_VLAN": str(view.vlans[site]),
            "VCLUSTER_GUESTS": " ".join(guest.name for guest in view.spec.guests),
        }
        if view.spec.name:
            variables["VCLUSTER_NAME"] = view.spec.name
        access = self._describe_access(job, view, site)
        with self._lock:
            if _is_current_run(job, self._records.get(job.cluster)):
                variables |= self._open_and_record(job, access)
        return variables

    def _describe_access(self, job: JobRecord, view: ClusterView, site: Name) -> JobAccess | None:
        """Return the job's access. Read the guests' host keys from SBF unless the record has these keys.

        Return None if the script does not run on this host or the job's user is unknown.
        """
        access, known = _job_access(job, view, site), self._records.get(job.cluster)
        if access is None or not _is_current_run(job, known):
            return access
        if known is not None and known.opening and _is_same_access(known.opening, access):
            return known.opening
        try:
            peers = self._read_peers(view.key, view.id)
        except VirtcloudError as error:  # without host keys, ssh accepts the first key that a guest sends
            log.warning("peers_not_read", cluster=view.key, error=error)
            return access
        network = access.network or peers.network
        return access.model_copy(update={"login": peers.user, "peers": peers.peers, "network": network})

    def reopen(self, report_progress: ReportProgress = lambda: None) -> bool:
        """Open the access of all jobs whose record has an access. Return False if an access cannot be opened yet.

        An open access stays open, unless its relay has ended. After a reboot, an access can be opened only when the
        cluster's bridge is built. The access of a cancelled run is opened too. In Torque, each SIGTERM cancels the run
        (for example ``qsig -s TERM``), but the script may survive the signal. Log the error of a job if this error
        differs from the job's error in the previous call.
        """
        former_errors, self._errors = self._errors, {}
        for job in self._records.all():
            report_progress()
            try:
                self._reopen(job.cluster)
            except VirtcloudError as error:
                self._errors[job.cluster] = str(error)
                if former_errors.get(job.cluster) != str(error):
                    log.warning("access_not_opened", cluster=job.cluster, error=error)
            except Exception as error:  # noqa: BLE001 - an error must not end the thread that removes the jobs' clusters
                self._errors[job.cluster] = repr(error)
                if former_errors.get(job.cluster) != repr(error):
                    log.internal_error(error, cluster=job.cluster)
        return not self._errors

    def _reopen(self, cluster: str) -> None:
        """Open the access in a job's record.

        First read the record again, because a later run may have replaced the record.

        If the network is unknown, open no access, because the VLAN ID may belong to another network by now. Leave a
        running relay unchanged in this case. If an open access was lost (`JobAccessProvider.is_lost`), open the access
        again. If the access cannot be opened again, retain the access's former environment.
        """
        with self._lock:
            job = self._records.get(cluster)
            opening = job.opening if job and job.phase in {RecordPhase.ASKED, RecordPhase.CANCELLED} else None
            if opening and opening.network:
                if opening in self._environments and self._provider.is_lost(cluster):
                    self._environments[opening] = self._provider.open(opening)
                self._ensure_open(opening)

    def close(self, job: JobRecord) -> None:
        """Close the access of a finished run, unless the record already belongs to a later run.

        Raise Refused if the access cannot be closed.
        """
        with self._lock:
            known = self._records.get(job.cluster)
            if known is None or known.is_same_run(job):
                self._close(job.cluster)

    def _close(self, cluster: str) -> None:
        self._environments = {
            access: environment for access, environment in self._environments.items() if access.key != cluster
        }
        self._provider.close(cluster)

    def _open_and_record(self, job: JobRecord, access: JobAccess | None) -> ScriptEnvironment:
        """Open the access, then record the access.

        If the agent is killed between these steps, the hook repeats its request.
        """
        environment = self._ensure_open(access) if access else {}
        self._records.change(
            job.cluster, lambda known: record_access(known, access) if known and _is_current_run(job, known) else known
        )
        return environment

    def _ensure_open(self, access: JobAccess) -> ScriptEnvironment:
        if access not in self._environments:
            if any(other.key == access.key for other in self._environments):
                self._close(access.key)
            self._environments[access] = self._provider.open(access)
        return self._environments[access]


def _is_current_run(job: JobRecord, known: JobRecord | None) -> bool:
    return known is not None and known.is_same_run(job) and known.phase is RecordPhase.ASKED


def _job_access(job: JobRecord, view: ClusterView, site: Name) -> JobAccess | None:
    if not job.head or job.user is None:
        return None
    return JobAccess(
        key=view.key,
        user=job.user,
        vlan=view.vlans[site],
        network=None if view.network else view.id,
        name=view.spec.name,
        guests=view.spec.guests,
    )


def _is_same_access(recorded: JobAccess, access: JobAccess) -> bool:
    """Return whether a recorded access equals ``access``, apart from the peers and the login.

    The agent reads the peers and the login from SBF later. If one of the two accesses has no network, the networks are
    not compared either.
    """
    networks = {recorded.network, access.network}
    return recorded.model_copy(update=NO_PEERS | {"network": access.network}) == access and (
        None in networks or len(networks) == 1
    )
