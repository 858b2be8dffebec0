"""A job of the fake server, and its views for hooks at the server and on hosts."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from virtcloud.testing.fakepbs.batch_system import BatchJobState, BatchSubmission, JobStatus
from virtcloud.testing.fakepbs.hook_event import HookJob, HookOutcome

SENT_BY_THE_FIRST = "Variable_List."
SENT_BY_MOMS = ("Execution_Time", "Hold_Types", "Variable_List.", "Error_Path", "Output_Path", "run_count")
"""Attributes that a hook on a host can set and that reach the server (measured on OpenPBS). Other changes are lost."""


@dataclass(slots=True)
class FakeJob:
    """A job. ``execution_time`` is the earliest start in seconds since the epoch."""

    id: str
    submission: BatchSubmission
    resources: dict[str, str]
    variables: dict[str, str]
    folder: Path
    state: BatchJobState = BatchJobState.QUEUED
    attributes: dict[str, str | int] = field(default_factory=dict)
    comment: str | None = None
    hosts: tuple[str, ...] = ()
    run_version: int = 0
    hold: str = "n"
    execution_time: float = 0.0
    exit_status: int | None = None
    failed_starts: int = 0

    @property
    def stdout(self) -> Path:
        """The file of the job's output."""
        return self.folder / f"{self.id}.OU"

    @property
    def stderr(self) -> Path:
        """The file of the job's errors."""
        return self.folder / f"{self.id}.ER"

    def status(self) -> JobStatus:
        """Return the job as ``qstat`` prints it."""
        return JobStatus(
            self.id,
            self.state,
            self.comment,
            self.hosts,
            self.run_version,
            self.exit_status,
            self.hold,
            dict(self.resources),
            self.execution_time or None,
        )

    def at_submission(self) -> HookJob:
        """Return the job as ``queuejob`` receives it, without the attributes that the server sets."""
        attributes: dict[str, str | int] = {"Job_Name": "STDIN", "Hold_Types": self.hold, "Rerunable": "True"}
        return HookJob("", attributes, dict(self.resources), dict(self.variables))

    def at_server(self) -> HookJob:
        """Return the job as hooks of the server receive it. Before the first run, ``run_version`` is unset."""
        attributes: dict[str, str | int] = {
            "Job_Name": "STDIN",
            "Job_Owner": f"{self.submission.user}@pbssrv",
            "euser": self.submission.user,
            "job_state": str(self.state),
            "Hold_Types": self.hold,
            "queue": "workq",
            **self._run(),
            **self.attributes,
        }
        if self.comment is not None:
            attributes["comment"] = self.comment
        return HookJob(self.id, attributes, dict(self.resources), dict(self.variables))

    def at_host(self, host: str) -> HookJob:
        """Return the job as hooks on a host receive it, without ``select``."""
        resources = {name: text for name, text in self.resources.items() if name != "select"}
        attributes: dict[str, str | int] = {
            "Job_Name": "STDIN",
            "Job_Owner": f"{self.submission.user}@pbssrv",
            "euser": self.submission.user,
            "egroup": self.submission.user,
            "hashname": self.id,
            "job_state": "R",
            "queue": "workq",
            "schedselect": self.resources.get("select", "1:ncpus=1"),
            "exec_host2": "+".join(f"{name}:15002/0" for name in self.hosts),
            **self._run(),
        }
        first = bool(self.hosts) and host == self.hosts[0]
        return HookJob(self.id, attributes, resources, dict(self.variables), first, str(self.stdout), str(self.stderr))

    def _run(self) -> dict[str, str | int]:
        vnodes = "+".join(f"({name}:ncpus=1)" for name in self.hosts)
        placed: dict[str, str | int] = {"exec_vnode": vnodes} if vnodes else {}
        counted: dict[str, str | int] = {"run_version": self.run_version, "run_count": self.run_version}
        return placed | (counted if self.run_version else {})

    def apply_server_hook(self, outcome: HookOutcome) -> None:
        """Apply the changes that a hook of the server made."""
        for name, text in outcome.changed.items():
            self._set(name, text)

    def apply_mom_hook(self, host: str, outcome: HookOutcome) -> None:
        """Apply those changes of a hook on ``host`` that reach the server. Only the first host can set variables."""
        first = host == self.hosts[0]
        for name, text in outcome.changed.items():
            if name.startswith(SENT_BY_MOMS) and (first or not name.startswith(SENT_BY_THE_FIRST)):
                self._set(name, text)

    def _set(self, name: str, text: str) -> None:
        kind, _, key = name.partition(".")
        if kind == "Resource_List":
            self._set_resource(key, text)
        elif kind == "Variable_List":
            self.variables[key] = text
        elif name == "Hold_Types":
            self.hold = text
        elif name == "Execution_Time":
            self.execution_time = float(text)
        elif name == "comment":
            self.comment = text
        else:
            self.attributes[name] = text

    def _set_resource(self, name: str, text: str) -> None:
        if text:
            self.resources[name] = text
        else:
            self.resources.pop(name, None)

    def set_waiting_state(self, now: float) -> None:
        """Set the state of a job that does not run: held, waiting for its execution time, or queued."""
        if self.hold != "n":
            self.state = BatchJobState.HELD
        else:
            self.state = BatchJobState.WAITING if self.execution_time > now else BatchJobState.QUEUED


def count_chunks(select: str) -> int:
    """Return the number of chunks of a ``select``: ``2:ncpus=1+mem=4gb`` -> 3."""
    matches = (re.match(r"(\d+)(?=:|$)", chunk) for chunk in select.split("+"))
    return sum(int(match.group(1)) if match else 1 for match in matches)
