"""Requests to this host's agent about one job."""

from typing import Any, Callable, Dict, Optional, Union

from pbs_hooks.kit.agent_client import BUSY_SLUG, AgentRefused, AgentUnreachable, ask_agent
from pbs_hooks.torque.scripts.script_call import (
    DELETED_MESSAGE,
    EXIT_ABORT,
    RetryBudget,
    ScriptCall,
    ScriptExit,
    requeue,
)

STATE_WAIT_S, LIST_TIMEOUT_S = 30.0, 2.0
WAITS_SLUG, OVER_SLUGS = "attempt-waits", ("gone", "not-found")
CANCELLED = "cancelled"

AgentRequest = Dict[str, Union[str, int, bool]]


def build_agent_request(do: str, call: ScriptCall, **more: Union[str, bool]) -> AgentRequest:
    """Return a request with the attempt number 0: Torque does not send the run count to hosts."""
    request = {"do": do, "cluster": call.key, "attempt": 0, "user": call.user}  # type: AgentRequest
    request.update(more)
    return request


def announce_job(path: str, call: ScriptCall, patience: RetryBudget) -> None:
    """Announce the job. The agent first removes all remnants of a former run.

    Raise ScriptExit if the agent refuses the job, or the time runs out.
    """
    _retry_while_blocked(lambda: _announce(path, call), patience)


def wait_until_clear(path: str, call: ScriptCall, patience: RetryBudget) -> None:
    """Wait until this host's agent answers and has removed all remnants of a former run.

    Raise ScriptExit if the agent refuses the request, or the time runs out. Announce no job on this host, which is not
    the job's first host. If the job's script never starts, Torque sometimes runs an epilogue only on the first host, so
    nothing would withdraw the announcement.
    """
    _retry_while_blocked(lambda: _check_removal(path, call), patience)


def is_deleted(path: str, call: ScriptCall) -> bool:
    """Return whether an announced job was deleted; False if the agent does not answer or refuses the request.

    Query only the agent, because SBF may still have the cluster of a former run of the job.
    """
    try:
        known = _find_record(path, call)
    except (AgentUnreachable, AgentRefused):
        return False
    return known is None or bool(known["leaving"]) or known["state"] == CANCELLED


def wait_until_up(path: str, call: ScriptCall, patience: RetryBudget) -> Dict[str, str]:
    """Wait until the cluster is up, and return the cluster's environment variables.

    Raise ScriptExit if the cluster fails, the job was deleted, the agent refuses the request, or the time runs out.
    """
    missing = "its cluster is not up"
    while patience.left:
        answer = _request_state(path, call, patience)
        if answer["state"] == "up":
            return dict(answer["facts"])
        if answer["state"] == "away":
            patience.pause(answer["why"])
        elif answer["state"] != "waiting":
            raise _exit_for_state(answer["state"], answer.get("reason"))
        missing = "; ".join(answer["missing"]) or missing
    raise requeue(missing)


def _retry_while_blocked(find_obstacle: Callable[[], Optional[str]], patience: RetryBudget) -> None:
    """Call ``find_obstacle`` until it returns None.

    Repeat a call while the agent does not answer or is busy. Raise ScriptExit if the time runs out, or after any other
    refusal.
    """
    while True:
        try:
            obstacle = find_obstacle()
        except AgentUnreachable as error:
            obstacle = str(error)
        except AgentRefused as error:
            if error.slug != BUSY_SLUG:
                raise requeue(error) from error
            obstacle = str(error)
        if obstacle is None:
            return
        patience.pause(obstacle)


def _announce(path: str, call: ScriptCall) -> Optional[str]:
    try:
        ask_agent(path, build_agent_request("up", call, head=True))
    except AgentRefused as error:
        if error.slug == WAITS_SLUG:
            return str(error)
        raise
    return None


def _check_removal(path: str, call: ScriptCall) -> Optional[str]:
    known = _find_record(path, call)
    if known is not None and known["leaving"]:
        return "cluster %s of the job's former run is still being removed" % call.key
    return None


def _find_record(path: str, call: ScriptCall) -> Optional[Dict[str, Any]]:
    known = ask_agent(path, {"do": "list"}, grace=LIST_TIMEOUT_S)["clusters"]
    return next((record for record in known if record["cluster"] == call.key), None)


def _request_state(path: str, call: ScriptCall, patience: RetryBudget) -> Dict[str, Any]:
    try:
        return ask_agent(path, build_agent_request("state", call), wait=min(STATE_WAIT_S, patience.left))
    except AgentUnreachable as error:
        return _make_absence(error)
    except AgentRefused as error:
        if error.slug == BUSY_SLUG:
            return _make_absence(error)
        gone = error.slug in OVER_SLUGS
        raise (ScriptExit(EXIT_ABORT, DELETED_MESSAGE) if gone else requeue(error)) from error


def _make_absence(error: Exception) -> Dict[str, Any]:
    return {"state": "away", "why": str(error), "missing": [str(error)]}


def _exit_for_state(state: str, reason: object) -> ScriptExit:
    if state == "failed":
        return requeue("the cluster could not be set up: %s" % (reason or "unknown"))
    return ScriptExit(EXIT_ABORT, "%s (%s)" % (DELETED_MESSAGE, reason) if reason else DELETED_MESSAGE)
