"""MoM events of a job's start.

``begin`` announces the cluster to the agent, ``prologue`` waits for the network, ``launch`` sets the environment of the
script.
"""

import time
from typing import Any, Dict, Optional

from pbs_hooks.kit.agent_client import BUSY_SLUG, AgentRefused, AgentUnreachable
from pbs_hooks.openpbs.hooks.mom_event import MomEvent, PassingFault, StartFault, UnwantedJob
from pbs_hooks.openpbs.hooks.pbs_job import REASON_VARIABLE, REPORTED_VARIABLE, is_in_array
from virtcloud.jobs.script_variables import SCRIPT_VARIABLES

REQUEST_WAIT_S = 10.0
"""The longest time of a request, in seconds. The agent answers earlier when the state changes."""
PAUSE_S = 0.5
AGENT_ABSENCE_S = 60.0
"""Seconds for which the agent may be absent, for example during its upgrade. The start fails after a longer absence."""


def wait_for_network(event: MomEvent) -> None:
    """Return when the network is up.

    Raise UnwantedJob or PassingFault with the reason if the network will not be up.
    """
    waiting = _NetworkWait(event)
    try:
        while not waiting.is_over():
            waiting.request_state()
    except KeyboardInterrupt:
        # KeyboardInterrupt means that the hook's alarm expired. A MoM then kills the hook, so the message below may
        # be lost.
        raise PassingFault("the hook's alarm expired while the network was set up: %s" % waiting.missing) from None


class _NetworkWait:
    def __init__(self, event: MomEvent) -> None:
        self._event, self._run = event, event.run
        self._began = event.clock()
        self._last_answer = self._began
        self._up = False
        self.missing = "the agent has not reported its state"

    def is_over(self) -> bool:
        """Return whether the network is up. Raise PassingFault when no time remains."""
        if not self._up and self._left() <= 0:
            raise PassingFault("the network is not up after %d s: %s" % (self._event.settings.patience, self.missing))
        return self._up

    def request_state(self) -> None:
        answer = self._answer()
        if answer is None:
            time.sleep(min(PAUSE_S, max(0.0, self._left())))
            return
        state, reason = answer.get("state"), str(answer.get("reason") or "no reason given")
        if state == "up":
            self._up = True
            self._event.log_job("the network is up after %d s" % (self._event.clock() - self._began))
        elif state == "cancelled":
            raise UnwantedJob(reason)
        elif state == "waiting":
            self._note("; ".join(answer.get("missing") or []) or "the agent did not name the missing parts")
        else:
            raise PassingFault("the network could not be set up: %s" % reason)

    def _answer(self) -> Optional[Dict[str, Any]]:
        answer: Optional[Dict[str, Any]] = None
        try:
            answer = self._event.ask_about_run("state", self._run, wait=min(REQUEST_WAIT_S, max(0.0, self._left())))
        except AgentUnreachable as error:
            if self._event.clock() - self._last_answer > AGENT_ABSENCE_S:
                raise PassingFault(self._event.name_host(error)) from error
            self._note(self._event.name_host(error))
            return None
        except AgentRefused as error:
            if error.slug != BUSY_SLUG:
                raise PassingFault(self._event.name_host(error)) from error
            answer = None
        self._last_answer = self._event.clock()
        return answer

    def _left(self) -> float:
        return self._event.settings.patience - (self._event.clock() - self._began)

    def _note(self, missing: str) -> None:
        if missing != self.missing:
            self.missing = missing
            self._event.log_job("waiting for the network: " + missing)


BEGIN_TIMEOUT_S = 2.0
"""Seconds for one request. The MoM is blocked while begin runs."""
BUSY_TIMEOUT_S = 8.0
"""Seconds for which begin repeats its request to a busy agent."""
LAUNCH_TIMEOUT_S = 30.0


def handle_begin(event: MomEvent) -> None:
    """Announce the attempt (one run of the job) to this host's agent. Do not wait for the attempt's cluster.

    Raise UnwantedJob for a job of an array. Raise PassingFault if the agent does not answer, refuses the attempt, or is
    busy for ``BUSY_TIMEOUT_S`` seconds. After a rejection, PBS runs no later events of the job on this host.
    """
    if is_in_array(event.job):
        raise UnwantedJob("job arrays are not supported")
    deadline = event.clock() + BUSY_TIMEOUT_S
    try:
        while not _announce(event, last=event.clock() > deadline):
            time.sleep(PAUSE_S)
    except (AgentUnreachable, AgentRefused) as error:
        _withdraw(event)
        raise PassingFault(event.name_host(error)) from error


def _announce(event: MomEvent, *, last: bool) -> bool:
    """Announce the attempt. Return False if the agent is busy and ``last`` is false."""
    try:
        event.ask_about_run("up", event.run, grace=BEGIN_TIMEOUT_S, head=event.run.head)
    except AgentRefused as error:
        if error.slug != BUSY_SLUG or last:
            raise
        return False
    return True


def handle_prologue(event: MomEvent) -> None:
    """On the job's first host, wait until the network is up.

    If the network will not be up, withdraw the attempt, and raise StartFault.
    """
    if not event.run.head:
        return
    try:
        wait_for_network(event)
    except StartFault:
        _withdraw(event)
        raise


def handle_launch(event: MomEvent) -> None:
    """Set the environment of the script, or of a process that the running script launches.

    Before the script starts, raise StartFault if the network is lost, the job was deleted, the agent refuses the
    request, or the agent does not answer for ``LAUNCH_TIMEOUT_S`` seconds.

    While the script runs, only log these faults, because a requeue would start the whole job again. The launched
    process then starts without the variables.
    """
    if not event.run.head:
        return
    try:
        answer = _await_state(event)
    except (AgentUnreachable, AgentRefused) as error:
        if event.before_script:
            raise PassingFault(event.name_host(error)) from error
        event.log_job(event.name_host(error))
        return
    if answer["state"] == "up":
        _set_environment(event.event.env, answer["facts"])
    elif event.before_script and answer["state"] == "cancelled":
        # The job was deleted after the prologue: do not run it again.
        raise UnwantedJob(_describe_state(answer))
    elif event.before_script:
        raise PassingFault("the network was lost before the script could start: %s" % _describe_state(answer))
    else:
        event.log_job("the network is %s: %s" % (answer["state"], _describe_state(answer)))


def _await_state(event: MomEvent) -> Dict[str, Any]:
    """Return the state of the network. Raise AgentRefused or AgentUnreachable.

    Retry for ``LAUNCH_TIMEOUT_S`` seconds while the agent or SBF restarts, or the agent is busy.
    """
    deadline = event.clock() + LAUNCH_TIMEOUT_S
    while True:
        try:
            answer = event.ask_about_run("state", event.run, wait=0)
            if answer["state"] != "waiting" or not event.before_script or event.clock() > deadline:
                return answer
        except AgentUnreachable:
            if event.clock() > deadline:
                raise
        except AgentRefused as error:
            if error.slug != BUSY_SLUG or event.clock() > deadline:
                raise
        time.sleep(1)


def _set_environment(env: Dict[str, str], facts: Dict[str, str]) -> None:
    for name in (REASON_VARIABLE, REPORTED_VARIABLE, *SCRIPT_VARIABLES):
        env.pop(name, None)
    for name in sorted(facts):
        env[name] = facts[name]


def _describe_state(answer: Dict[str, Any]) -> str:
    return str(
        answer.get("reason") or "; ".join(answer.get("missing") or []) or "its state is %s" % answer.get("state")
    )


def _withdraw(event: MomEvent) -> None:
    """Request the removal of this attempt without waiting for it.

    The job's next attempt replaces an attempt that was not removed.
    """
    try:
        event.ask_about_run("remove", event.run, wait=0, grace=1.0)
    except (AgentUnreachable, AgentRefused) as error:
        event.log_job("the attempt of %s could not be withdrawn on this host: %s" % (event.run.cluster, error))
