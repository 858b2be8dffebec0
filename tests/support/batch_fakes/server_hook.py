import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pbs_hooks.bundle import bundle_hook
from virtcloud.testing.fakepbs import HookEvent, HookFailure, HookJob, HookOutcome, run_hook

SHAPE = {"select": "2:ncpus=2:mem=8gb", "walltime": "1:00:00"}
RAN = {"place": "scatter:excl", **SHAPE}
NODES = "(n1:ncpus=2:mem=8388608kb)+(n2:ncpus=2:mem=8388608kb)"
ALARM_S = 5.0
TRIES = 20
UNREACHABLE_MESSAGES = ("SBF does not answer", "SBF cannot be asked")
"""The hook's messages when SBF does not answer. The second text is from version 0.1."""


@cache
def hook() -> str:
    return bundle_hook("server")


@dataclass
class ServerHook:
    """Runs the hook. The hook's configuration contains SBF's address and ``settings``."""

    sbf: str
    settings: dict[str, Any] = field(default_factory=dict)
    python: str = os.environ.get("HOOK_PYTHON", sys.executable)
    program: str | None = None
    """The program of the hook; None for the program of the current version."""
    patient: bool = False
    """Whether to repeat an event if SBF does not answer. SBF can be slow while other tests run."""

    def run(self, event: str, job: HookJob, former: HookJob | None = None, **more: Any) -> HookOutcome:
        config = json.dumps({"sbf": self.sbf, "token_file": None, **self.settings})
        hook_event = HookEvent(event, job, former, config=config, alarm=ALARM_S, **more)
        for _ in range(TRIES if self.patient else 1):
            outcome = run_hook(self.program or hook(), hook_event, self.python)
            if outcome.failure is not HookFailure.ALARM and not any(
                text in f"{outcome.message} {outcome.log}" for text in UNREACHABLE_MESSAGES
            ):
                break
        return outcome

    def submit(
        self, line: str, user: str = "alice", attributes: Mapping[str, str] | None = None, **shape: str
    ) -> HookOutcome:
        """Run the event that ``qsub -l vcluster=LINE`` causes.

        ``shape`` adds or replaces resources of the job, such as ``place``. An empty value removes the resource.
        """
        resources = {key: value for key, value in {**SHAPE, "vcluster": line, **shape}.items() if value}
        return self.run("queuejob", HookJob("", attributes or {}, resources), requestor=user)

    def start(
        self,
        line: str,
        *,
        run_version: int = 0,
        key: str = "12.pbssrv",
        owner: str = "alice",
        variables: Mapping[str, str] | None = None,
        **resources: str,
    ) -> HookOutcome:
        attributes: dict[str, str | int] = {"euser": owner, "exec_vnode": NODES}
        if run_version:
            attributes["run_version"] = run_version
        return self.run("runjob", HookJob(key, attributes, {**RAN, "vcluster": line, **resources}, variables or {}))

    def alter(self, line: str, state: str = "Q", former: Mapping[str, str] | None = None, **change: str) -> HookOutcome:
        """Run the event that ``qalter`` causes for a job that has requested the cluster ``line`` and is in ``state``.

        ``former`` adds or replaces resources that the job has before the change. ``change`` contains the resources
        that ``qalter`` changes, with their new values.
        """
        before = HookJob(
            "12.pbssrv", {"euser": "alice", "job_state": state}, {**RAN, "vcluster": line, **(former or {})}
        )
        return self.run("modifyjob", HookJob("12.pbssrv", {}, change), before, requestor="alice")

    def end(self, run_version: int = 1, key: str = "12.PBSsrv") -> HookOutcome:
        attributes: dict[str, str | int] = {"euser": "alice", **({"run_version": run_version} if run_version else {})}
        return self.run("jobobit", HookJob(key, attributes, {**RAN, "vcluster": "image=debian12"}))


def logged(outcome: HookOutcome) -> str:
    return "\n".join(text for _, text in outcome.log)
