"""Calls the hooks of a site for the events of the server and the hosts, and records the outcomes."""

from dataclasses import dataclass, field, replace

from virtcloud.testing.fakepbs.fake_job import FakeJob
from virtcloud.testing.fakepbs.hook_event import HookEvent, HookJob, HookOutcome
from virtcloud.testing.fakepbs.hook_runner import FakeHost, HookDefinition

SERVER_NAME = "pbssrv"
NOT_RUN = HookOutcome(accepted=True)


@dataclass(frozen=True, slots=True)
class HookCall:
    """A hook call that has ended: host, event, job, run, and outcome."""

    host: str
    event: str
    job: str | None
    run_version: int
    outcome: HookOutcome


@dataclass(slots=True)
class HookCallers:
    """The server hook and the MoM hook (each may be None), and ``calls``: the hook calls that have ended."""

    server: HookDefinition | None
    mom: HookDefinition | None
    calls: list[HookCall] = field(default_factory=list)

    @property
    def server_name(self) -> str:
        """The name of the server hook."""
        return self.server.name if self.server else ""

    def run_server_hook(
        self, event: str, record: FakeJob, job: HookJob, before: HookJob | None, others: tuple[HookJob, ...]
    ) -> HookOutcome:
        """Run the server hook on ``job``. ``others`` are the jobs in ``pbs.server()``.

        ``before`` is the job before a change by ``qalter``; None for other events.
        """
        if self.server is None:
            return NOT_RUN
        server = SERVER_NAME
        hook_event = HookEvent(
            event, job, before, server_jobs=others, config=self.server.config, node=server, server=server
        )
        return self._run_and_record(
            FakeHost(server), self.server, _with_caller(hook_event, record, self.server), record
        )

    def run_job_hook(self, host: FakeHost, event: str, record: FakeJob) -> HookOutcome:
        """Run the MoM hook on a job. Of the hook's changes, apply only those that a MoM sends to the server."""
        if self.mom is None or not host.alive:
            return NOT_RUN
        env = _environment(record)
        hook_event = HookEvent(
            event, record.at_host(host.name), config=self.mom.config, node=host.name, server=SERVER_NAME, env=env
        )
        outcome = self._run_and_record(host, self.mom, _with_caller(hook_event, record, self.mom), record)
        record.apply_mom_hook(host.name, outcome)
        return outcome

    def run_host_hook(self, host: FakeHost, event: str, jobs: tuple[HookJob, ...] = ()) -> HookOutcome:
        """Run the MoM hook on an event of the host."""
        if self.mom is None or not host.alive:
            return NOT_RUN
        hook_event = HookEvent(event, job_list=jobs, config=self.mom.config, node=host.name, server=SERVER_NAME)
        return self._run_and_record(host, self.mom, _with_caller(hook_event, None, self.mom), None)

    def _run_and_record(
        self, host: FakeHost, hook: HookDefinition, hook_event: HookEvent, record: FakeJob | None
    ) -> HookOutcome:
        outcome = host.hook(hook, hook_event)
        if not host.alive:
            return NOT_RUN  # the host died during the hook: the outcome is lost
        version = record.run_version if record else 0
        self.calls.append(HookCall(host.name, hook_event.kind, record.id if record else None, version, outcome))
        return outcome


def _with_caller(hook_event: HookEvent, record: FakeJob | None, hook: HookDefinition) -> HookEvent:
    by_user = record is not None and hook_event.kind in ("queuejob", "modifyjob")
    return replace(
        hook_event,
        requestor=record.submission.user if by_user and record else "",
        hook_name=hook.name,
        alarm=hook.alarm,
    )


def _environment(record: FakeJob) -> dict[str, str]:
    job_variables = {
        "PATH": "/bin:/usr/bin",
        "LOGNAME": record.submission.user,
        "PBS_JOBID": record.id,
        "PBS_QUEUE": "workq",
    }
    return dict(record.variables) | job_variables


def submission_variables(user: str) -> dict[str, str]:
    """Return the variables that ``qsub`` adds to a job of ``user``."""
    return {"PBS_O_LOGNAME": user, "PBS_O_WORKDIR": "/tmp", "PBS_O_QUEUE": "workq", "PBS_O_HOST": SERVER_NAME}  # noqa: S108
