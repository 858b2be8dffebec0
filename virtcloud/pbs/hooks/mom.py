"""The hook of PBS's hosts: a job's network comes up before its script starts, and goes when the job does.

A job that cannot start is deleted (its owner's wish), queued again (what passes), or held (a surprise): see
``faults``. A job that ends is never failed by this hook.
"""

import traceback
from typing import Any, Callable, Dict

from virtcloud.pbs.hooks.child import ChildError
from virtcloud.pbs.hooks.ending import abort, end, preterm
from virtcloud.pbs.hooks.faults import FATES, Fault, Passing, Surprise
from virtcloud.pbs.hooks.mom_event import MomEvent, Run
from virtcloud.pbs.hooks.owner_file import add_line
from virtcloud.pbs.hooks.presence import periodic, startup
from virtcloud.pbs.hooks.reason import NAME, written
from virtcloud.pbs.hooks.settings import MomSettings, SettingsError, mom_settings
from virtcloud.pbs.hooks.starting import begin, launch, prologue

Handler = Callable[[MomEvent], None]
FAULT = "a fault in the hook on this host"
UNSET = "the hook is not set up right on this host"


def starts(pbs: Any) -> Dict[int, Handler]:
    """Say whose are the events that may keep a job from starting."""
    return {pbs.EXECJOB_BEGIN: begin, pbs.EXECJOB_PROLOGUE: prologue, pbs.EXECJOB_LAUNCH: launch}


def others(pbs: Any) -> Dict[int, Handler]:
    """Say whose are the rest, which only report."""
    return {
        pbs.EXECJOB_PRETERM: preterm,
        pbs.EXECJOB_ABORT: abort,
        pbs.EXECJOB_END: end,
        pbs.EXECHOST_STARTUP: startup,
        pbs.EXECHOST_PERIODIC: periodic,
    }


def handle(pbs: Any) -> None:
    """Handle the event that PBS has for us; ends with SystemExit, as accept() and reject() do."""
    event = pbs.event()
    try:
        _handled(pbs)
    except Fault as fault:
        _refuse(MomEvent(pbs, NO_SETTINGS), fault)
    event.accept()


NO_SETTINGS = MomSettings("", 0, 0)
"""For refusing, which needs none."""


def _handled(pbs: Any) -> None:
    """Give the event to its handler; raises Fault where the job is not to start."""
    starting = starts(pbs)
    kind = pbs.event().type
    handler = starting.get(kind) or others(pbs).get(kind)
    if handler is None:
        return
    try:
        handler(MomEvent(pbs, mom_settings(pbs.hook_config_filename)))
    except Fault:
        raise
    except SettingsError as error:
        pbs.logmsg(pbs.LOG_ERROR, "vcluster: %s" % error)
        if kind in starting:
            raise Passing(UNSET) from error
    except Exception as error:  # a surprise, whatever it is; SystemExit passes
        for line in traceback.format_exc().splitlines():
            pbs.logmsg(pbs.LOG_ERROR, "vcluster: " + line)
        if kind in starting:
            raise Surprise(FAULT) from error


def _refuse(event: MomEvent, fault: Fault) -> None:
    """Keep the job from starting, say why to whoever listens, and let it become what the table says."""
    fate, run, job = FATES[type(fault)], event.run, event.job
    message = "vcluster: %s%s" % (fault, fate.after)
    event.note(str(fault) + fate.after)
    if fate.delete:
        job.delete()
    else:
        _queue_again(event, run, message)
    if fate.hold:
        job.Hold_Types = event.pbs.hold_types("s")
    _tell_owner(event, run, message)
    event.event.reject(message)


def _queue_again(event: MomEvent, run: Run, message: str) -> None:
    """Leave the reason for the server's hook, which lets the job wait; what other hosts leave the first one outdoes."""
    if event.event.type == event.pbs.EXECJOB_LAUNCH:
        event.job.rerun()
    if run.head:
        event.job.Variable_List[NAME] = written(run.attempt, message)


def _tell_owner(event: MomEvent, run: Run, message: str) -> None:
    path = event.job.stderr_file()
    if not run.head or not path:
        return
    try:
        add_line(str(path), run.user, message)
    except ChildError as error:
        event.note("its owner could not be told: %s" % error)
