"""The hook of PBS's server: a job with a virtual cluster is submitted, altered, run, and ends.

Three kinds of faults, as PBS's own pbs_cgroups has them: the user's is told to the user; one that passes sends the job
back for a while; a surprise keeps the job, held, for an administrator, with a traceback in the server's log.
"""

import time
import traceback
from typing import Any, Callable, Dict

from virtcloud.jobs.errors import RequestError
from virtcloud.pbs.hooks.event import Event
from virtcloud.pbs.hooks.obit import jobobit
from virtcloud.pbs.hooks.run import runjob
from virtcloud.pbs.hooks.settings import SettingsError, server_settings
from virtcloud.pbs.hooks.submission import modifyjob, queuejob

SURPRISE = "vcluster: a fault in the hook; tell the administrators of the batch system"
UNSET = "vcluster: the hook is not set up right; tell the administrators of the batch system"
AGAIN_S = 120


def handlers(pbs: Any) -> Dict[int, Callable[[Event], None]]:
    """Say which event is whose."""
    return {pbs.QUEUEJOB: queuejob, pbs.MODIFYJOB: modifyjob, pbs.RUNJOB: runjob, pbs.JOBOBIT: jobobit}


def handle(pbs: Any, began: float) -> None:
    """Handle the event that PBS has for us, in a hook that began then; ends with SystemExit, as accept() does."""
    event = pbs.event()
    try:
        found = Event(pbs, server_settings(pbs.hook_config_filename), began)
        handlers(pbs)[event.type](found)
    except RequestError as error:
        event.reject(str(error))
    except SettingsError as error:
        pbs.logmsg(pbs.LOG_ERROR, "vcluster: %s" % error)
        _not_set_up(pbs, event)
    except Exception:  # noqa: BLE001 - a surprise, whatever it is; SystemExit and the alarm's KeyboardInterrupt pass
        _log_traceback(pbs)
        _surprised(pbs, event)
    event.accept()


def _not_set_up(pbs: Any, event: Any) -> None:
    if event.type == pbs.RUNJOB:
        event.job.Execution_Time = int(time.time()) + AGAIN_S
    if event.type != pbs.JOBOBIT:
        event.reject(UNSET)


def _surprised(pbs: Any, event: Any) -> None:
    if event.type == pbs.RUNJOB:
        event.job.Hold_Types = pbs.hold_types("s")
    if event.type != pbs.JOBOBIT:
        event.reject(SURPRISE)


def _log_traceback(pbs: Any) -> None:
    for line in traceback.format_exc().splitlines():
        pbs.logmsg(pbs.LOG_ERROR, "vcluster: " + line)
