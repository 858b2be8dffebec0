"""Calling the hooks of a site: with what the server or a host tells them, and keeping what came of each."""

from dataclasses import dataclass, field, replace

from virtcloud.testing.fakepbs.event import Event, Job
from virtcloud.testing.fakepbs.host import Hook, Host
from virtcloud.testing.fakepbs.outcome import Outcome
from virtcloud.testing.fakepbs.record import Record

SERVER = "pbssrv"
NOT_HEARD = Outcome(accepted=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """One hook that ran: where, at which event, for which job and run, and what came of it."""

    host: str
    event: str
    job: str | None
    run_version: int
    outcome: Outcome


@dataclass(slots=True)
class Callers:
    """The server's hook and the hosts' hook, where there are any; ``seen`` has every call that ended."""

    server: Hook | None
    mom: Hook | None
    seen: list[Seen] = field(default_factory=list)

    @property
    def server_name(self) -> str:
        """Give the name of the server's hook."""
        return self.server.name if self.server else ""

    def of_server(self, event: str, record: Record, job: Job, before: Job | None, others: tuple[Job, ...]) -> Outcome:
        """Run the server's hook on ``job`` as the event shows it; ``others`` are what ``pbs.server()`` knows."""
        if self.server is None:
            return NOT_HEARD
        at = SERVER
        told = Event(event, job, before, server_jobs=others, config=self.server.config, node=at, server=at)
        return self._keep(Host(at), self.server, _asked(told, record, self.server), record)

    def of_job(self, host: Host, event: str, record: Record) -> Outcome:
        """Run the hosts' hook on a job; what it set of it is kept as far as a MoM sends it."""
        if self.mom is None or not host.alive:
            return NOT_HEARD
        env = _environment(record)
        told = Event(event, record.at_host(host.name), config=self.mom.config, node=host.name, server=SERVER, env=env)
        outcome = self._keep(host, self.mom, _asked(told, record, self.mom), record)
        record.take_from_host(host.name, outcome)
        return outcome

    def of_host(self, host: Host, event: str, jobs: tuple[Job, ...] = ()) -> Outcome:
        """Run the hosts' hook on what concerns no single job."""
        if self.mom is None or not host.alive:
            return NOT_HEARD
        told = Event(event, job_list=jobs, config=self.mom.config, node=host.name, server=SERVER)
        return self._keep(host, self.mom, _asked(told, None, self.mom), None)

    def _keep(self, host: Host, hook: Hook, told: Event, record: Record | None) -> Outcome:
        outcome = host.hook(hook, told)
        if not host.alive:
            return NOT_HEARD  # it died meanwhile: nobody hears what its hook said
        version = record.run_version if record else 0
        self.seen.append(Seen(host.name, told.kind, record.id if record else None, version, outcome))
        return outcome


def _asked(told: Event, record: Record | None, hook: Hook) -> Event:
    """Say who asked (a user's own requests are his), which hook this is, and how long it may take."""
    by_user = record is not None and told.kind in ("queuejob", "modifyjob")
    return replace(
        told, requestor=record.wanted.user if by_user and record else "", hook_name=hook.name, alarm=hook.alarm
    )


def _environment(record: Record) -> dict[str, str]:
    own = {"PATH": "/bin:/usr/bin", "LOGNAME": record.wanted.user, "PBS_JOBID": record.id, "PBS_QUEUE": "workq"}
    return dict(record.variables) | own
