"""One event on a host as our handlers see it: PBS's module and event, the settings, and this host's agent.

The three kinds of faults of a job's start on its hosts, and what becomes of the job: a table.
"""

import time
from typing import Any, Dict, Mapping, NamedTuple, Optional, Type

from pbs_hooks.kit.agent_client import ask_agent
from pbs_hooks.kit.hook_settings import MomSettings
from pbs_hooks.openpbs.hooks.pbs_job import attempt_number, cluster_key

REPORT_TIMEOUT_S = 2.0
PRERUN_SUBSTATE = 41
"""PBS's number of the time before the script."""


class HostRun(NamedTuple):
    """A run of a job; ``head``: its script runs on this host."""

    cluster: str
    attempt: int
    head: bool
    user: str


class MomEvent:
    """An event of a MoM."""

    def __init__(self, pbs: Any, settings: MomSettings) -> None:
        """Give its parts names of ours."""
        self.pbs, self.settings, self.event = pbs, settings, pbs.event()

    @property
    def job(self) -> Any:
        """The job."""
        return self.event.job

    @property
    def run(self) -> HostRun:
        """The run that the job has."""
        job = self.job
        return HostRun(cluster_key(job), attempt_number(job), bool(job.in_ms_mom()), str(job.euser))

    @property
    def before_script(self) -> bool:
        """Say whether the job's script has not begun yet."""
        return int(self.job.substate or PRERUN_SUBSTATE) == PRERUN_SUBSTATE

    def about(
        self, do: str, run: HostRun, wait: Optional[float] = None, grace: float = 5.0, **more: Any
    ) -> Dict[str, Any]:
        """Ask the agent something of a run; raises AgentAway and AgentRefused."""
        request = dict(more, do=do, cluster=run.cluster, attempt=run.attempt, user=run.user)
        return ask_agent(self.settings.socket, request, wait=wait, grace=grace)

    def tell(self, request: Dict[str, Any]) -> None:
        """Tell the agent what concerns no single run; raises AgentAway and AgentRefused."""
        ask_agent(self.settings.socket, request, grace=REPORT_TIMEOUT_S)

    def here(self, error: Exception) -> str:
        """Say at which host something went wrong."""
        return "host %s: %s" % (self.pbs.get_local_nodename(), error)

    def note(self, text: str) -> None:
        """Write to the host's log, at the job's name: what ``tracejob`` shows."""
        self.pbs.logjobmsg(str(self.job.id), "vcluster: " + text)

    def log(self, text: str) -> None:
        """Write to the host's log."""
        self.pbs.logmsg(self.pbs.LOG_DEBUG, "vcluster: " + text)

    def alert(self, text: str) -> None:
        """Write to the host's log what administrators should see."""
        self.pbs.logmsg(self.pbs.LOG_ERROR, "vcluster: " + text)

    @staticmethod
    def clock() -> float:
        """Count seconds, by a clock that nobody sets."""
        return time.monotonic()


RETRY_SUFFIX = "; the job will be tried again"
HOLD_SUFFIX = "; the job is held for the administrators"


class StartFault(Exception):
    """The job cannot start; the message is one line, for the job's owner."""


class UnwantedJob(StartFault):
    """Its owner does not want it any more, or what was asked for cannot be: trying again is no use."""


class PassingFault(StartFault):
    """It will be otherwise at another time."""


class UnexpectedFault(StartFault):
    """Nobody thought of it: the job is kept, for people to look at."""


class FaultOutcome(NamedTuple):
    """What becomes of the job, and what its owner reads after the reason."""

    delete: bool
    hold: bool
    after: str


FAULT_OUTCOMES: Mapping[Type[StartFault], FaultOutcome] = {
    UnwantedJob: FaultOutcome(delete=True, hold=False, after=""),
    PassingFault: FaultOutcome(delete=False, hold=False, after=RETRY_SUFFIX),
    UnexpectedFault: FaultOutcome(delete=False, hold=True, after=HOLD_SUFFIX),
}
"""A job that is neither deleted nor held is queued again; a hook's plain ``reject`` says just that, but at launch."""
