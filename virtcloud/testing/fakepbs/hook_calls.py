"""Calling the hooks of a site: with what the server or a host tells them, and keeping what came of each."""

from dataclasses import dataclass, field, replace

from virtcloud.testing.fakepbs.fake_job import FakeJob
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookJob, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost, HookDefinition

SERVER_NAME = "pbssrv"
NOT_RUN = HookOutcome(accepted=True)


@dataclass(frozen=True, slots=True)
class HookCall:
    """One hook that ran: where, at which event, for which job and run, and what came of it."""

    host: str
    event: str
    job: str | None
    run_version: int
    outcome: HookOutcome


@dataclass(slots=True)
class HookCallers:
    """The server's hook and the hosts' hook, where there are any; ``seen`` has every call that ended."""

    server: HookDefinition | None
    mom: HookDefinition | None
    seen: list[HookCall] = field(default_factory=list)

    @property
    def server_name(self) -> str:
        """Give the name of the server's hook."""
        return self.server.name if self.server else ""

    def of_server(
        self, event: str, record: FakeJob, job: HookJob, before: HookJob | None, others: tuple[HookJob, ...]
    ) -> HookOutcome:
        """Run the server's hook on ``job`` as the event shows it; ``others`` are what ``pbs.server()`` knows."""
        if self.server is None:
            return NOT_RUN
        at = SERVER_NAME
        told = HookEvent(event, job, before, server_jobs=others, config=self.server.config, node=at, server=at)
        return self._keep(FakeHost(at), self.server, _with_caller(told, record, self.server), record)

    def of_job(self, host: FakeHost, event: str, record: FakeJob) -> HookOutcome:
        """Run the hosts' hook on a job; what it set of it is kept as far as a MoM sends it."""
        if self.mom is None or not host.alive:
            return NOT_RUN
        env = _environment(record)
        told = HookEvent(
            event, record.at_host(host.name), config=self.mom.config, node=host.name, server=SERVER_NAME, env=env
        )
        outcome = self._keep(host, self.mom, _with_caller(told, record, self.mom), record)
        record.take_from_host(host.name, outcome)
        return outcome

    def of_host(self, host: FakeHost, event: str, jobs: tuple[HookJob, ...] = ()) -> HookOutcome:
        """Run the hosts' hook on what concerns no single job."""
        if self.mom is None or not host.alive:
            return NOT_RUN
        told = HookEvent(event, job_list=jobs, config=self.mom.config, node=host.name, server=SERVER_NAME)
        return self._keep(host, self.mom, _with_caller(told, None, self.mom), None)

    def _keep(self, host: FakeHost, hook: HookDefinition, told: HookEvent, record: FakeJob | None) -> HookOutcome:
        outcome = host.hook(hook, told)
        if not host.alive:
            return NOT_RUN  # it died meanwhile: nobody hears what its hook said
        version = record.run_version if record else 0
        self.seen.append(HookCall(host.name, told.kind, record.id if record else None, version, outcome))
        return outcome


def _with_caller(told: HookEvent, record: FakeJob | None, hook: HookDefinition) -> HookEvent:
    """Say who asked (a user's own requests are his), which hook this is, and how long it may take."""
    by_user = record is not None and told.kind in ("queuejob", "modifyjob")
    return replace(
        told, requestor=record.wanted.user if by_user and record else "", hook_name=hook.name, alarm=hook.alarm
    )


def _environment(record: FakeJob) -> dict[str, str]:
    own = {"PATH": "/bin:/usr/bin", "LOGNAME": record.wanted.user, "PBS_JOBID": record.id, "PBS_QUEUE": "workq"}
    return dict(record.variables) | own
