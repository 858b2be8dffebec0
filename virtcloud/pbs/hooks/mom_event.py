"""One event on a host as our handlers see it: PBS's module and event, the settings, and this host's agent."""

import time
from typing import Any, Dict, NamedTuple, Optional

from virtcloud.pbs.hooks.agent import ask
from virtcloud.pbs.hooks.job import attempt, key
from virtcloud.pbs.hooks.settings import MomSettings

TELL_S = 2.0
PRERUN = 41
"""PBS's number of the time before the script."""


class Run(NamedTuple):
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
    def run(self) -> Run:
        """The run that the job has."""
        job = self.job
        return Run(key(job), attempt(job), bool(job.in_ms_mom()), str(job.euser))

    @property
    def before_script(self) -> bool:
        """Say whether the job's script has not begun yet."""
        return int(self.job.substate or PRERUN) == PRERUN

    def about(self, do: str, run: Run, wait: Optional[float] = None, grace: float = 5.0, **more: Any) -> Dict[str, Any]:
        """Ask the agent something of a run; raises AgentAway and AgentRefused."""
        request = dict(more, do=do, cluster=run.cluster, attempt=run.attempt, user=run.user)
        return ask(self.settings.socket, request, wait=wait, grace=grace)

    def tell(self, request: Dict[str, Any]) -> None:
        """Tell the agent what concerns no single run; raises AgentAway and AgentRefused."""
        ask(self.settings.socket, request, grace=TELL_S)

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
