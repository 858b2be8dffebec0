"""The MoM hook: starts a job's script only when the job's network is up, and removes the network when the job ends.

A job that cannot start is deleted, queued again or held, depending on the fault (``mom_event.FAULT_OUTCOMES``). The
reason for a rejection appears in the host's log, the job's comment (through the server hook), and the job's stderr
file.
"""

import os
import stat
import traceback
from typing import Any, Callable, Dict

from pbs_hooks.kit.deadline import ChildError, Deadline, run_in_child
from pbs_hooks.kit.hook_settings import SettingsError
from pbs_hooks.kit.user_rights import become_user, find_account
from pbs_hooks.openpbs.hooks.job_end import (
    handle_abort,
    handle_end,
    handle_host_periodic,
    handle_preterm,
)
from pbs_hooks.openpbs.hooks.job_start import handle_begin, handle_launch, handle_prologue
from pbs_hooks.openpbs.hooks.mom_event import (
    FAULT_OUTCOMES,
    HostRun,
    MomEvent,
    PassingFault,
    StartFault,
    UnexpectedFault,
)
from pbs_hooks.openpbs.hooks.openpbs_settings import MomSettings, read_mom_settings
from pbs_hooks.openpbs.hooks.pbs_job import REASON_VARIABLE, format_reason

OWNER_FILE_TIMEOUT_S = 2.0


def append_line(path: str, user: str, text: str) -> None:
    """Append a line to a file with the rights of the user ``user``.

    Raise ChildError if the line cannot be written, for example because a file server hangs.
    """
    run_in_child(lambda: _append_as(user, path, text + "\n"), Deadline(OWNER_FILE_TIMEOUT_S))


def _append_as(user: str, path: str, text: str) -> None:
    become_user(find_account(user))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ChildError("%s is not a regular file" % path)
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


MomHandler = Callable[[MomEvent], None]
UNEXPECTED_ERROR = "an internal error of the hook on this host"
MISCONFIGURED = "the hook's settings are invalid on this host"


def start_handlers(pbs: Any) -> Dict[int, MomHandler]:
    """Return the handlers of the events that can stop a job's start."""
    return {pbs.EXECJOB_BEGIN: handle_begin, pbs.EXECJOB_PROLOGUE: handle_prologue, pbs.EXECJOB_LAUNCH: handle_launch}


def report_handlers(pbs: Any) -> Dict[int, MomHandler]:
    """Return the handlers of the events that cannot stop a job's start."""
    return {
        pbs.EXECJOB_PRETERM: handle_preterm,
        pbs.EXECJOB_ABORT: handle_abort,
        pbs.EXECJOB_END: handle_end,
        pbs.EXECHOST_PERIODIC: handle_host_periodic,
    }


def handle(pbs: Any) -> None:
    """Handle the current event of PBS. Raise SystemExit, because PBS's accept() and reject() raise SystemExit."""
    event = pbs.event()
    try:
        _dispatch(pbs)
    except StartFault as fault:
        _refuse(MomEvent(pbs, EMPTY_SETTINGS), fault)
    event.accept()


EMPTY_SETTINGS = MomSettings("", 0, 0)
"""The settings with which :func:`handle` rejects a job, because the real settings may be invalid."""


def _dispatch(pbs: Any) -> None:
    starting = start_handlers(pbs)
    kind = pbs.event().type
    handler = starting.get(kind) or report_handlers(pbs).get(kind)
    if handler is None:
        return
    try:
        handler(MomEvent(pbs, read_mom_settings(pbs.hook_config_filename)))
    except StartFault:
        raise
    except SettingsError as error:
        pbs.logmsg(pbs.LOG_ERROR, "vcluster: %s" % error)
        if kind in starting:
            raise PassingFault(MISCONFIGURED) from error
    except Exception as error:  # any unexpected error; SystemExit is not caught
        for line in traceback.format_exc().splitlines():
            pbs.logmsg(pbs.LOG_ERROR, "vcluster: " + line)
        if kind in starting:
            raise UnexpectedFault(UNEXPECTED_ERROR) from error


def _refuse(event: MomEvent, fault: StartFault) -> None:
    outcome, run, job = FAULT_OUTCOMES[type(fault)], event.run, event.job
    message = "vcluster: %s%s" % (fault, outcome.after)
    event.log_job(str(fault) + outcome.after)
    if outcome.delete:
        job.delete()
    else:
        _requeue(event, run, message)
    if outcome.hold:
        job.Hold_Types = event.pbs.hold_types("s")
    _write_to_owner(event, run, message)
    event.event.reject(message)


def _requeue(event: MomEvent, run: HostRun, message: str) -> None:
    """Store the reason in a variable of the job for the server hook, and requeue the job.

    Only the first host stores the reason, because the first host's variables override the variables of other hosts.
    """
    if event.event.type == event.pbs.EXECJOB_LAUNCH:
        event.job.rerun()
    if run.head:
        event.job.Variable_List[REASON_VARIABLE] = format_reason(run.attempt, message)


def _write_to_owner(event: MomEvent, run: HostRun, message: str) -> None:
    path = event.job.stderr_file()
    if not run.head or not path:
        return
    try:
        append_line(str(path), run.user, message)
    except ChildError as error:
        event.log_job("the message to the job's owner could not be written: %s" % error)
