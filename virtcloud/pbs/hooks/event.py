"""One event as our handlers see it: PBS's module and event, the settings, and SBF."""

from typing import Any, Tuple

from virtcloud.jobs.sizes import seconds_of
from virtcloud.pbs.hooks.deadline import Deadline
from virtcloud.pbs.hooks.service import Sbf, Where
from virtcloud.pbs.hooks.settings import ServerSettings

OWN_S = 0.05
"""What the hook itself takes at its end of the time that it may take."""


class Event:
    """An event of PBS's server."""

    def __init__(self, pbs: Any, settings: ServerSettings, began: float) -> None:
        """Give its parts names of ours; the time that SBF may take has run since the hook began."""
        self.pbs, self.settings, self._event = pbs, settings, pbs.event()
        where = Where(settings.sbf, settings.token_file, settings.ca_file)
        allowed = settings.timeout - OWN_S
        self.sbf = Sbf(where, Deadline(allowed, began), allowed, settings.breaker)

    @property
    def job(self) -> Any:
        """The job; while it is altered, only what is to change."""
        return self._event.job

    @property
    def former(self) -> Any:
        """The job as it was before it is altered."""
        return self._event.job_o

    @property
    def requestor(self) -> str:
        """Who asked PBS."""
        return str(self._event.requestor)

    @property
    def requestor_host(self) -> str:
        """From where PBS was asked."""
        return str(self._event.requestor_host)

    @property
    def from_here(self) -> bool:
        """Whether the caller is the user of that name on the server's host, too."""
        server = self.pbs.server()
        here = (self.pbs.get_local_nodename(), server.name, getattr(server, "server_host", None))
        flat = str(getattr(server, "flatuid", None)).lower() in {"true", "1"}
        return flat or self.requestor_host in map(str, here)

    @property
    def queued(self) -> Tuple[int, ...]:
        """States of a job that does not run yet."""
        return (
            self.pbs.JOB_STATE_TRANSIT,
            self.pbs.JOB_STATE_QUEUED,
            self.pbs.JOB_STATE_HELD,
            self.pbs.JOB_STATE_WAITING,
        )

    def walltime(self, text: str) -> int:
        """Read a walltime; one that cannot be read is the longest, and PBS's to refuse."""
        try:
            return seconds_of(text)
        except ValueError:
            return self.settings.longest_walltime

    def log(self, text: str) -> None:
        """Write to the server's log."""
        self.pbs.logmsg(self.pbs.LOG_DEBUG, "vcluster: " + text)

    def alert(self, text: str) -> None:
        """Write to the server's log what administrators should see."""
        self.pbs.logmsg(self.pbs.LOG_ERROR, "vcluster: " + text.replace("vcluster: ", ""))

    def reject(self, message: str) -> None:
        """Refuse; ends with SystemExit."""
        self._event.reject(message)
