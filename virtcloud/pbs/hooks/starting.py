"""A job starts on its hosts: the agent is told, the script waits for the network, and gets its facts."""

import time
from typing import Any, Dict

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused
from virtcloud.pbs.hooks.barrier import until_up
from virtcloud.pbs.hooks.faults import Fault, Passing, Unwanted
from virtcloud.pbs.hooks.job import in_array
from virtcloud.pbs.hooks.mom_event import MomEvent
from virtcloud.pbs.hooks.reason import NAME, TOLD

BEGIN_S = 2.0
"""A MoM does nothing else while begin runs."""
LAUNCH_S = 30.0


def begin(event: MomEvent) -> None:
    """Tell the agent which cluster comes; does not wait for it. A host that refuses here hears no more of this run."""
    run = event.run
    if in_array(event.job):
        raise Unwanted("job arrays are not supported")
    try:
        event.about("up", run, grace=BEGIN_S, head=run.head)
    except (AgentAway, AgentRefused) as error:
        _take_back(event)
        raise Passing(event.here(error)) from error


def prologue(event: MomEvent) -> None:
    """Wait until the network is up, on the host of the script; the others do not wait for it, nor it for them."""
    if not event.run.head:
        return
    try:
        until_up(event)
    except Fault:
        _take_back(event)
        raise


def launch(event: MomEvent) -> None:
    """Give the script its facts; the network must still be as it was when the prologue let the script pass."""
    if not event.run.head:
        return
    answer = _state(event)
    if answer["state"] == "up":
        _give(event.event.env, answer["facts"])
    elif event.before_script and answer["state"] == "cancelled":  # between the prologue and here: not to run again
        raise Unwanted(_why(answer))
    elif event.before_script:
        raise Passing("the network was lost before the script could start: %s" % _why(answer))
    else:  # a part that the script itself launches: no reason to run all of the job again
        event.note("the network is %s: %s" % (answer["state"], _why(answer)))


def _state(event: MomEvent) -> Dict[str, Any]:
    """Ask how the network is; an agent, or SBF, that starts again is given some time: it was up a moment ago."""
    ends = event.clock() + LAUNCH_S
    while True:
        try:
            answer = event.about("state", event.run, wait=0)
            if answer["state"] != "waiting" or not event.before_script or event.clock() > ends:
                return answer
        except AgentAway as error:
            if event.clock() > ends:
                raise Passing(event.here(error)) from error
        except AgentRefused as error:
            raise Passing(event.here(error)) from error
        time.sleep(1)


def _give(env: Dict[str, str], facts: Dict[str, str]) -> None:
    for name in (NAME, TOLD):
        env.pop(name, None)
    for name in sorted(facts):
        env[name] = facts[name]


def _why(answer: Dict[str, Any]) -> str:
    return str(answer.get("reason") or "; ".join(answer.get("missing") or []) or "it is %s" % answer.get("state"))


def _take_back(event: MomEvent) -> None:
    """Let the agent end this attempt, without waiting; what it does not hear ends with the next attempt."""
    try:
        event.about("remove", event.run, wait=0, grace=1.0)
    except (AgentAway, AgentRefused) as error:
        event.note("%s could not be taken back here: %s" % (event.run.cluster, error))
