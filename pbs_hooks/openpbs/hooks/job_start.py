"""A job starts on its hosts: the agent is told, the script waits for the network, and gets its facts.

The barrier: the script starts when the network is up, and not before; who waits is told what is missing.
"""

import time
from typing import Any, Dict, Optional

from pbs_hooks.kit.agent_client import AgentRefused, AgentUnreachable
from pbs_hooks.openpbs.hooks.mom_event import MomEvent, PassingFault, StartFault, UnwantedJob
from pbs_hooks.openpbs.hooks.pbs_job import REASON_VARIABLE, REPORTED_VARIABLE, is_in_array

REQUEST_WAIT_S = 10.0
"""The agent answers sooner when something changes."""
PAUSE_S = 0.5
AGENT_AWAY_S = 60.0
"""So long an agent may be away, as when it is upgraded."""
BUSY_SLUG = "too-many-requests"


def wait_for_network(event: MomEvent) -> None:
    """Return when the network is up; raises Unwanted or Passing with the reason when it will not be."""
    waiting = _NetworkWait(event)
    try:
        while not waiting.over():
            waiting.ask()
    except KeyboardInterrupt:
        # PBS's alarm. A MoM kills its hooks at that very moment; elsewhere there may be time for a word.
        raise PassingFault("the hook's alarm rang while the network was being made: %s" % waiting.missing) from None


class _NetworkWait:
    """What was heard last, and how long there is still to wait."""

    def __init__(self, event: MomEvent) -> None:
        self._event, self._run = event, event.run
        self._began = event.clock()
        self._heard = self._began
        self._up = False
        self.missing = "nothing is known of it yet"

    def over(self) -> bool:
        """Say whether it is up; raises when patience is over."""
        if not self._up and self._left() <= 0:
            raise PassingFault("the network is not up after %d s: %s" % (self._event.settings.patience, self.missing))
        return self._up

    def ask(self) -> None:
        """Ask once, and make of it what there is to be made."""
        answer = self._answer()
        if answer is None:
            time.sleep(min(PAUSE_S, max(0.0, self._left())))
            return
        state, reason = answer.get("state"), str(answer.get("reason") or "no reason is given")
        if state == "up":
            self._up = True
            self._event.note("the network is up after %d s" % (self._event.clock() - self._began))
        elif state == "cancelled":
            raise UnwantedJob(reason)
        elif state == "waiting":
            self._note("; ".join(answer.get("missing") or []) or "nothing is said to be missing")
        else:
            raise PassingFault("the network could not be made: %s" % reason)

    def _answer(self) -> Optional[Dict[str, Any]]:
        try:
            answer = self._event.about("state", self._run, wait=min(REQUEST_WAIT_S, max(0.0, self._left())))
        except AgentUnreachable as error:
            if self._event.clock() - self._heard > AGENT_AWAY_S:
                raise PassingFault(self._event.here(error)) from error
            self._note(self._event.here(error))
            return None
        except AgentRefused as error:
            if error.slug == BUSY_SLUG:
                return None
            raise PassingFault(self._event.here(error)) from error
        self._heard = self._event.clock()
        return answer

    def _left(self) -> float:
        return self._event.settings.patience - (self._event.clock() - self._began)

    def _note(self, missing: str) -> None:
        """Say what is missing, once."""
        if missing != self.missing:
            self.missing = missing
            self._event.note("waits for the network: " + missing)


BEGIN_TIMEOUT_S = 2.0
"""A MoM does nothing else while begin runs."""
LAUNCH_TIMEOUT_S = 30.0


def handle_begin(event: MomEvent) -> None:
    """Tell the agent which cluster comes; does not wait for it. A host that refuses here hears no more of this run."""
    run = event.run
    if is_in_array(event.job):
        raise UnwantedJob("job arrays are not supported")
    try:
        event.about("up", run, grace=BEGIN_TIMEOUT_S, head=run.head)
    except (AgentUnreachable, AgentRefused) as error:
        _withdraw(event)
        raise PassingFault(event.here(error)) from error


def handle_prologue(event: MomEvent) -> None:
    """Wait until the network is up, on the host of the script; the others do not wait for it, nor it for them."""
    if not event.run.head:
        return
    try:
        wait_for_network(event)
    except StartFault:
        _withdraw(event)
        raise


def handle_launch(event: MomEvent) -> None:
    """Give the script its facts; the network must still be as it was when the prologue let the script pass."""
    if not event.run.head:
        return
    answer = _await_state(event)
    if answer["state"] == "up":
        _set_environment(event.event.env, answer["facts"])
    elif event.before_script and answer["state"] == "cancelled":  # between the prologue and here: not to run again
        raise UnwantedJob(_describe_state(answer))
    elif event.before_script:
        raise PassingFault("the network was lost before the script could start: %s" % _describe_state(answer))
    else:  # a part that the script itself launches: no reason to run all of the job again
        event.note("the network is %s: %s" % (answer["state"], _describe_state(answer)))


def _await_state(event: MomEvent) -> Dict[str, Any]:
    """Ask how the network is; an agent, or SBF, that starts again is given some time: it was up a moment ago."""
    ends = event.clock() + LAUNCH_TIMEOUT_S
    while True:
        try:
            answer = event.about("state", event.run, wait=0)
            if answer["state"] != "waiting" or not event.before_script or event.clock() > ends:
                return answer
        except AgentUnreachable as error:
            if event.clock() > ends:
                raise PassingFault(event.here(error)) from error
        except AgentRefused as error:
            raise PassingFault(event.here(error)) from error
        time.sleep(1)


def _set_environment(env: Dict[str, str], facts: Dict[str, str]) -> None:
    for name in (REASON_VARIABLE, REPORTED_VARIABLE):
        env.pop(name, None)
    for name in sorted(facts):
        env[name] = facts[name]


def _describe_state(answer: Dict[str, Any]) -> str:
    return str(answer.get("reason") or "; ".join(answer.get("missing") or []) or "it is %s" % answer.get("state"))


def _withdraw(event: MomEvent) -> None:
    """Let the agent end this attempt, without waiting; what it does not hear ends with the next attempt."""
    try:
        event.about("remove", event.run, wait=0, grace=1.0)
    except (AgentUnreachable, AgentRefused) as error:
        event.note("%s could not be taken back here: %s" % (event.run.cluster, error))
