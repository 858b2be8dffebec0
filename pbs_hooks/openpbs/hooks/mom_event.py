"""A hook event of a MoM: requests to the agent, logs, and the faults that prevent the start of a job."""

import time
from typing import Any, Dict, Mapping, NamedTuple, Optional, Type

from pbs_hooks.kit.agent_client import ask_agent
from pbs_hooks.openpbs.hooks.openpbs_settings import MomSettings
from pbs_hooks.openpbs.hooks.pbs_job import RETRY_SUFFIX, attempt_number, cluster_key

REPORT_TIMEOUT_S = 2.0
PRERUN_SUBSTATE = 41


class HostRun(NamedTuple):
    """One attempt of a job on this host. ``head`` is true if the job's script runs on this host."""

    cluster: str
    attempt: int
    head: bool
    user: str


class MomEvent:
    """A hook event of a MoM, with its settings."""

    def __init__(self, pbs: Any, settings: MomSettings) -> None:
        """Store PBS's module and the settings."""
        self.pbs, self.settings, self.event = pbs, settings, pbs.event()

    @property
    def job(self) -> Any:
        """The PBS job of the event."""
        return self.event.job

    @property
    def run(self) -> HostRun:
        """The current attempt of the job."""
        job = self.job
        return HostRun(cluster_key(job), attempt_number(job), bool(job.in_ms_mom()), str(job.euser))

    @property
    def before_script(self) -> bool:
        """Return whether the job's script has not started yet."""
        return int(self.job.substate or PRERUN_SUBSTATE) == PRERUN_SUBSTATE

    def ask_about_run(
        self, do: str, run: HostRun, wait: Optional[float] = None, grace: float = 5.0, **more: Any
    ) -> Dict[str, Any]:
        """Send the agent a request about an attempt and return the answer. Raise the errors of :func:`ask_agent`.

        ``more`` contains further keys of the request.
        """
        request = dict(more, do=do, cluster=run.cluster, attempt=run.attempt, user=run.user)
        return ask_agent(self.settings.socket, request, wait=wait, grace=grace)

    def ask_about_host(self, request: Dict[str, Any]) -> None:
        """Send the agent a request about the host. Raise the errors of :func:`ask_agent`."""
        ask_agent(self.settings.socket, request, grace=REPORT_TIMEOUT_S)

    def name_host(self, error: Exception) -> str:
        """Return the message of an error, with this host's name."""
        return "host %s: %s" % (self.pbs.get_local_nodename(), error)

    def log_job(self, text: str) -> None:
        """Write to the host's log under the job's id. ``tracejob`` shows the entry."""
        self.pbs.logjobmsg(str(self.job.id), "vcluster: " + text)

    def log(self, text: str) -> None:
        """Write a debug line to the host's log."""
        self.pbs.logmsg(self.pbs.LOG_DEBUG, "vcluster: " + text)

    def alert(self, text: str) -> None:
        """Write an error line to the host's log, for administrators."""
        self.pbs.logmsg(self.pbs.LOG_ERROR, "vcluster: " + text)

    @staticmethod
    def clock() -> float:
        """Return monotonic seconds."""
        return time.monotonic()


HOLD_SUFFIX = "; the job is held for the administrators"


class StartFault(Exception):
    """The job cannot start. The message is one line for the job's owner."""


class UnwantedJob(StartFault):
    """A retry is pointless: the owner deleted the job, or the request cannot be fulfilled."""


class PassingFault(StartFault):
    """A fault that may have disappeared at the next try."""


class UnexpectedFault(StartFault):
    """A fault of the hook itself. The job is held until an administrator releases it."""


class FaultOutcome(NamedTuple):
    """The action on a job that cannot start, and the suffix of the message to the job's owner."""

    delete: bool
    hold: bool
    after: str


FAULT_OUTCOMES: Mapping[Type[StartFault], FaultOutcome] = {
    UnwantedJob: FaultOutcome(delete=True, hold=False, after=""),
    PassingFault: FaultOutcome(delete=False, hold=False, after=RETRY_SUFFIX),
    UnexpectedFault: FaultOutcome(delete=False, hold=True, after=HOLD_SUFFIX),
}
"""A job that is neither deleted nor held is queued again.

To queue the job again, the hook calls ``rerun`` and ``reject`` at launch, and only ``reject`` at the other events.
"""
