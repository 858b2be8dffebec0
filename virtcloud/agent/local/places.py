"""The places of jobs, opened when a cluster is up for its script, and again when the agent starts anew."""

import threading

from virtcloud.agent import log
from virtcloud.agent.alive import Beat
from virtcloud.agent.jobport import Facts, JobPort, Opening
from virtcloud.agent.local.job import Job, Phase, reached
from virtcloud.agent.local.ledger import Ledger
from virtcloud.model.errors import VirtcloudError
from virtcloud.model.values import Name
from virtcloud.model.views import ClusterView


class Places:
    """Opens and closes, one at a time. Lock order: this one's, then the ledger's."""

    def __init__(self, port: JobPort, ledger: Ledger) -> None:
        """Open by ``port`` what ``ledger`` knows."""
        self._port = port
        self._ledger = ledger
        self._one_at_a_time = threading.Lock()
        self._facts: dict[Opening, Facts] = {}

    def facts(self, job: Job, view: ClusterView, site: Name) -> Facts:
        """Give the environment of a job's script; its place is opened where the script runs. Raises Refused."""
        told = {
            "VCLUSTER_ID": view.key,
            "VCLUSTER_VLAN": str(view.vlans[site]),
            "VCLUSTER_GUESTS": " ".join(guest.name for guest in view.spec.guests),
        }
        named = {"VCLUSTER_NAME": view.spec.name} if view.spec.name else {}
        with self._one_at_a_time:
            opened = self._reach(job, _opening(job, view, site)) if _is_same(job, self._ledger.get(job.cluster)) else {}
        return {**told, **named, **opened}

    def resume(self, beat: Beat = lambda: None) -> None:
        """Reopen the places that were open when the agent ended; a failure is logged, and retried when a hook asks.

        A script may outlive the signal by which its job is given up (``qsig -s TERM``): its place stays to its end.
        """
        for job in self._ledger.all():
            beat()
            if job.phase in {Phase.ASKED, Phase.CANCELLED} and job.opening:
                try:
                    with self._one_at_a_time:
                        self._opened(job.opening)
                except VirtcloudError as error:
                    log.warning("place_not_opened", cluster=job.cluster, error=error)
                except Exception:  # noqa: BLE001 - one job's place keeps no other job from its removal
                    log.exception("fault", cluster=job.cluster)

    def close(self, job: Job) -> None:
        """Close the place of a run that is over; raises Refused. A later run's place under the same key stays."""
        with self._one_at_a_time:
            known = self._ledger.get(job.cluster)
            if known is None or known.is_run(job):
                self._close(job.cluster)

    def _close(self, cluster: str) -> None:
        self._facts = {opening: facts for opening, facts in self._facts.items() if opening.key != cluster}
        self._port.close(cluster)

    def _reach(self, job: Job, opening: Opening | None) -> Facts:
        """Open it before it is written down: an agent that is killed in between is asked again."""
        opened = self._opened(opening) if opening else {}
        self._ledger.change(job.cluster, lambda now: reached(now, opening) if now and _is_same(job, now) else now)
        return opened

    def _opened(self, opening: Opening) -> Facts:
        if opening not in self._facts:
            if any(other.key == opening.key for other in self._facts):
                self._close(opening.key)
            self._facts[opening] = self._port.open(opening)
        return self._facts[opening]


def _is_same(job: Job, known: Job | None) -> bool:
    """Say whether it is still the same run, and wanted: another thread may have been told otherwise."""
    return known is not None and known.is_run(job) and known.phase is Phase.ASKED


def _opening(job: Job, view: ClusterView, site: Name) -> Opening | None:
    if not job.head or job.user is None:
        return None
    return Opening(key=view.key, user=job.user, vlan=view.vlans[site], name=view.spec.name, guests=view.spec.guests)
