"""``epilogue``, ``epilogue.parallel`` and ``epilogue.precancel``: nothing of a job stays where it was."""

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused, ask
from virtcloud.pbs.hooks.service import AwayError
from virtcloud.torque.scripts.barrier import AT_ONCE_S, request_of
from virtcloud.torque.scripts.call import REQUEUE, Call, Ended
from virtcloud.torque.scripts.environment import ensure_no_environment
from virtcloud.torque.scripts.patience import SISTERS_S, Patience
from virtcloud.torque.scripts.sbf import Sbf
from virtcloud.torque.scripts.settings import Settings

PIECE_S = 30.0


def epilogue(call: Call, settings: Settings) -> None:
    """Let the cluster go and wait until this host is rid of it; raises Ended when nobody could be told."""
    try:
        _wait(call, settings, settings.patience)
    except (AgentAway, AgentRefused) as error:
        end_by_sbf(call, settings, str(error))
    finally:
        ensure_no_environment(settings.environments, call)


def epilogue_parallel(call: Call, settings: Settings) -> None:
    """Wait until this host is rid of the cluster; raises Ended when its agent cannot be told."""
    try:
        _wait(call, settings, min(SISTERS_S, settings.patience))
    except (AgentAway, AgentRefused) as error:
        raise Ended(REQUEUE, str(error)) from error


def precancel(call: Call, settings: Settings) -> None:
    """Tell the barrier at once that nobody waits for it any more: the MoM does nothing else while this runs.

    Where it fails, the epilogue tells the barrier soon.
    """
    try:
        ask(settings.socket, request_of("cancel", call, reason="qdel"), grace=AT_ONCE_S)
    except (AgentAway, AgentRefused):
        return


def leave(call: Call, settings: Settings) -> None:
    """Let what was asked for go again, waiting for nothing; its lease is the last resort."""
    try:
        ask(settings.socket, request_of("remove", call), wait=0)
    except (AgentAway, AgentRefused) as error:
        end_by_sbf(call, settings, str(error))
    finally:
        ensure_no_environment(settings.environments, call)


def end_by_sbf(call: Call, settings: Settings, why: str) -> None:
    """Tell SBF, since this host's agent could not be told; raises Ended when neither could."""
    try:
        Sbf(settings.where, call.key, Patience(0)).end(call.user)
    except AwayError as error:
        text = "%s; SBF at %s: %s; its cluster ends with its lease" % (why, settings.sbf, error)
        raise Ended(REQUEUE, text) from error


def _wait(call: Call, settings: Settings, seconds: float) -> None:
    """Ask again and again until this host carries nothing of it; the agent goes on when the time is over."""
    patience = Patience(seconds)
    while True:
        answer = ask(settings.socket, request_of("remove", call), wait=min(PIECE_S, patience.left))
        if answer["gone"] or not patience.left:
            return
