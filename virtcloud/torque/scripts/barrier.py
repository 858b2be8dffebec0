"""The barrier of a job: its first host's prologue goes on when the cluster is up, and in no other case."""

from typing import Any, Dict, Optional, Union

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused, ask
from virtcloud.torque.scripts.call import ABORT, REQUEUE, Call, Ended
from virtcloud.torque.scripts.patience import Patience

LONGEST_WAIT_S = 30.0
WAITS, OVER = "attempt-waits", ("gone", "not-found")
DELETED = "the job was deleted while its cluster was being set up"

Request = Dict[str, Union[str, int, bool]]


def request_of(do: str, call: Call, **more: Union[str, bool]) -> Request:
    """Write a request to the agent; Torque counts no runs, which is attempt 0."""
    asked = {"do": do, "cluster": call.key, "attempt": 0}  # type: Request
    asked.update(more)
    return asked


def announce(path: str, call: Call, head: bool, patience: Patience) -> None:
    """Tell this host's agent that the job comes; raises Ended. What a former run left is removed first."""
    while True:
        hindrance = _hindrance(path, request_of("up", call, head=head, user=call.user))
        if hindrance is None:
            return
        patience.pause(hindrance)


def wait_until_up(path: str, call: Call, patience: Patience) -> Dict[str, str]:
    """Give the facts of the cluster once it is up; raises Ended when it will not be, or not in time."""
    missing = "its cluster is not up"
    while patience.left:
        answer = _state(path, call, patience)
        if answer["state"] == "up":
            return dict(answer["facts"])
        if answer["state"] == "away":
            patience.pause(answer["why"])
        elif answer["state"] != "waiting":
            raise _ended(answer["state"], answer.get("reason"))
        missing = "; ".join(answer["missing"]) or missing
    raise Ended(REQUEUE, "%s; the job will be tried again" % missing)


def _hindrance(path: str, request: Request) -> Optional[str]:
    """Say what is in the way for a moment; raises Ended for what stays there."""
    try:
        ask(path, request)
    except AgentAway as error:
        return str(error)
    except AgentRefused as error:
        if error.slug == WAITS:
            return str(error)
        raise Ended(REQUEUE, "%s; the job will be tried again" % error) from error
    return None


def _state(path: str, call: Call, patience: Patience) -> Dict[str, Any]:
    """Ask for the state; one more is ``away``: the agent itself does not answer."""
    try:
        return ask(path, request_of("state", call), wait=min(LONGEST_WAIT_S, patience.left))
    except AgentAway as error:
        return {"state": "away", "why": str(error), "missing": [str(error)]}
    except AgentRefused as error:
        raise Ended(ABORT if error.slug in OVER else REQUEUE, _why(error)) from error


def _why(error: AgentRefused) -> str:
    return DELETED if error.slug in OVER else "%s; the job will be tried again" % error


def _ended(state: str, reason: object) -> Ended:
    if state == "failed":
        return Ended(
            REQUEUE, "the cluster could not be set up: %s; the job will be tried again" % (reason or "unknown")
        )
    return Ended(ABORT, "%s (%s)" % (DELETED, reason) if reason else DELETED)
