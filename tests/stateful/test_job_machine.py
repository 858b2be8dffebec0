"""Tests of batch jobs and their clusters under any sequence of users' actions, faults, kills and restarts.

The hooks of OpenPBS, the agents' job sockets, SBF and the reconciliation are real. PBS, the network between the
programs, and the time are simulated.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from simulation.planting import plant
from support.exploration import list_seeds
from support.job_machine.network import CallFault
from support.job_machine.rules import Action, JobRules
from support.job_machine.site import HOSTS, SERVERS, job_site

from sbf_service.domain import idempotency
from virtcloud.agent.job_socket import removals, request_handler
from virtcloud.scheduler import decision, job_reconciler

STEPS = 40
YES_OR_NO, INDEX, USERS = (True, False), range(6), ("daemon", "bin")
REQUESTS = (None, "image=x", "image=x", "image=x", "image=x:name=mine", "image=x:net=mine", "image=x:guests=2")
CALLERS = ("server hook", "server hook", "reconciliation", *(f"agent {name}" for name in HOSTS[:2]))
RULES = {
    "submit": (18, (USERS, (1, 1, 1, 2, 2, 3), REQUESTS, (600, 3600), YES_OR_NO)),
    "submit_an_array": (1, (USERS, YES_OR_NO)),
    "pass_time": (28, ((0.5, 2.0, 10.0, 30.0, 30.0, 60.0, 60.0, 120.0, 120.0, 400.0),)),
    "pass_a_long_time": (1, ()),
    "end_a_script": (4, (INDEX,)),
    "delete": (6, (INDEX, (False, False, False, True))),
    "rerun": (4, (INDEX, (False, False, True))),
    "suspend": (2, (INDEX,)),
    "change_walltime": (2, (INDEX, (600, 7200))),
    "end_the_cluster": (1, (INDEX,)),
    "kill_a_mom": (3, (HOSTS,)),
    "start_a_mom": (5, (HOSTS, (True, True, False))),
    "reboot": (2, (HOSTS,)),
    "move_a_host": (1, (HOSTS, SERVERS)),
    "stop_or_start_a_server": (3, (SERVERS,)),
    "lose_the_database": (1, (SERVERS,)),
    "kill_an_agent": (4, (HOSTS,)),
    "plan_an_agents_death": (6, (HOSTS, range(1, 9))),
    "start_an_agent": (8, (HOSTS,)),
    "restart_sbf": (1, ()),
    "stop_or_start_sbf": (3, ()),
    "stop_or_start_reconciliation": (1, ()),
    "disturb_a_call": (8, (CALLERS, tuple(CallFault))),
    "deliver_late_calls": (4, ()),
    "repeat_a_call": (4, (range(40),)),
    "start_a_torque_job": (4, (USERS,)),
    "end_the_torque_job": (2, ()),
    "expire_an_alarm": (1, (INDEX,)),
}
"""The weight of each rule, and the choices for its arguments."""


def draw_actions(seed: int, steps: int = STEPS) -> list[Action]:
    """Return a random sequence of actions. The first word of an action is the name of a method of `JobRules`."""
    random = Random(seed)
    weights = {name: weight for name, (weight, _) in RULES.items()}
    drawn = random.choices(list(weights), list(weights.values()), k=steps)
    return [(name, *(random.choice(choices) for choices in RULES[name][1])) for name in drawn]


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owners of files")


def run(folder: Path, actions: Iterable[Action]) -> None:
    with job_site(folder) as site:
        JobRules(site).run(actions)


@pytest.mark.parametrize("seed", list_seeds(5))
def test_jobs_keep_their_clusters_and_clusters_end_with_jobs(tmp_path: Path, seed: int) -> None:
    run(tmp_path, draw_actions(seed))


SUSPENDED: list[Action] = [
    ("submit", "daemon", 1, "image=x", 600, False),
    ("pass_time", 120.0),
    ("suspend", 0),
    ("pass_a_long_time",),
    ("pass_a_long_time",),
]
UNREPORTED_END: list[Action] = [
    ("submit", "daemon", 1, "image=x", 3600, False),
    ("submit", "bin", 1, "image=x", 3600, False),
    ("pass_time", 120.0),
    ("kill_an_agent", "brno-h1"),
    ("disturb_a_call", "server hook", CallFault.LOST),
    ("delete", 0, True),
    ("pass_time", 400.0),
    ("pass_time", 400.0),
]
"""The agent of the job's host and the server hook cannot report the end of the job to SBF."""
WITH_TORQUE: list[Action] = [("start_a_torque_job", "bin"), ("pass_time", 400.0), ("pass_time", 400.0)]
ENDED: list[Action] = [
    ("submit", "daemon", 2, "image=x", 3600, False),
    ("pass_time", 120.0),
    ("end_a_script", 0),
    ("pass_a_long_time",),
]
DELETED: list[Action] = [
    ("submit", "daemon", 2, "image=x", 3600, False),
    ("pass_time", 0.5),
    ("delete", 0, False),
    ("pass_time", 120.0),
]
LATE_END: list[Action] = [
    ("submit", "daemon", 1, "image=x", 3600, False),
    ("pass_time", 120.0),
    ("disturb_a_call", "server hook", CallFault.LATE),
    ("rerun", 0, True),
    ("pass_time", 120.0),
    ("pass_time", 120.0),
    ("deliver_late_calls",),
    ("pass_time", 120.0),
]
"""The call that ends the cluster of the first run arrives while the second run has its cluster."""
MISMATCH, BOTH_STEPS = "if job.phase in {JobPhase.PENDING, JobPhase.GONE}:", "(self._close_access, self._end_cluster)"
OVERDUE = "in missing.overdue:"
UNLISTED = "in [one for one in self._dependencies.records.all() if one.was_up and one.cluster not in listed]:"
CANCELLED = "lambda known: record_cancellation(known, request.run, request.reason)"


@pytest.mark.parametrize(
    ("actions", "planted", "message"),
    [
        (SUSPENDED, (job_reconciler, "if seconds is not None:", "if False:"), "the lease was not extended"),
        (UNREPORTED_END, (decision, MISMATCH, "if False:"), "outlives its job"),
        (WITH_TORQUE, (request_handler, OVERDUE, UNLISTED), "lost its cluster"),
        (ENDED, (removals, BOTH_STEPS, "(self._end_cluster,)"), "the access of an ended job"),
        (DELETED, (request_handler, CANCELLED, "lambda known: known"), "runs although it was deleted"),
        (LATE_END, (idempotency, "check_attempt(key, self.attempt, latest.attempt)", "pass"), "lost its cluster"),
    ],
    ids=[
        "no extension",
        "no reconciliation",
        "lists end jobs of Torque",
        "access stays",
        "no cancellation",
        "no fence",
    ],
)
def test_a_planted_bug_is_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    actions: list[Action],
    planted: tuple[ModuleType, str, str],
    message: str,
) -> None:
    plant(monkeypatch, *planted)
    with pytest.raises(AssertionError, match=message):
        run(tmp_path, actions)
