"""The barrier of a job: its first host's prologue goes on when the cluster is up, and in no other case."""

from typing import Any, Callable, Dict, Optional, Union

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused, ask
from virtcloud.torque.scripts.call import ABORT, DELETED, REQUEUE, Call, Ended
from virtcloud.torque.scripts.patience import Patience

LONGEST_WAIT_S, AT_ONCE_S = 30.0, 2.0
WAITS, OVER = "attempt-waits", ("gone", "not-found")
CANCELLED = "cancelled"

Request = Dict[str, Union[str, int, bool]]


def request_of(do: str, call: Call, **more: Union[str, bool]) -> Request:
    """Write a request to the agent; Torque tells hosts of no count of runs, which is attempt 0."""
    asked = {"do": do, "cluster": call.key, "attempt": 0, "user": call.user}  # type: Request
    asked.update(more)
    return asked


def announce(path: str, call: Call, patience: Patience) -> None:
    """Tell this host's agent that the job comes; raises Ended. What a former run left is removed first."""
    _insist(lambda: _announced(path, call), patience)


def await_clear(path: str, call: Call, patience: Patience) -> None:
    """Wait until this host's agent answers and keeps nothing of a former run; raises Ended.

    It is told nothing: of a job that does not come to its script, Torque runs no epilogue on any but the first host.
    """
    _insist(lambda: _leaving(path, call), patience)


def is_deleted(path: str, call: Call) -> bool:
    """Say whether nobody waits any more for a job that was announced; an agent that does not answer says nothing.

    This host's word alone counts: SBF may still have the cluster of a former run, which is over.
    """
    try:
        known = _listed(path, call)
    except (AgentAway, AgentRefused):
        return False
    return known is None or bool(known["leaving"]) or known["state"] == CANCELLED


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


def _insist(hindrance: Callable[[], Optional[str]], patience: Patience) -> None:
    """Try until nothing is in the way; raises Ended for what stays there."""
    while True:
        try:
            found = hindrance()
        except AgentAway as error:
            found = str(error)
        except AgentRefused as error:
            raise Ended(REQUEUE, "%s; the job will be tried again" % error) from error
        if found is None:
            return
        patience.pause(found)


def _announced(path: str, call: Call) -> Optional[str]:
    try:
        ask(path, request_of("up", call, head=True))
    except AgentRefused as error:
        if error.slug == WAITS:
            return str(error)
        raise
    return None


def _leaving(path: str, call: Call) -> Optional[str]:
    known = _listed(path, call)
    if known is not None and known["leaving"]:
        return "cluster %s is still being removed from its former run" % call.key
    return None


def _listed(path: str, call: Call) -> Optional[Dict[str, Any]]:
    """Give what the agent knows of the job by itself, which takes no time; nothing if it knows of none."""
    known = ask(path, {"do": "list"}, grace=AT_ONCE_S)["clusters"]
    return next((one for one in known if one["cluster"] == call.key), None)


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
