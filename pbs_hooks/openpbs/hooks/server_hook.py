"""The server hook: handles submission, alteration, start and end of jobs with a virtual cluster.

Faults are handled as in PBS's hook pbs_cgroups. After a temporary fault at the start of a job, the job goes back to the
queue. After an unexpected fault at the start of a job, the job is held for an administrator.
"""

import time
import traceback
from typing import Any, Callable, Dict

from pbs_hooks.kit.hook_settings import SettingsError
from pbs_hooks.openpbs.hooks.openpbs_settings import read_server_settings
from pbs_hooks.openpbs.hooks.runjob import jobobit, runjob
from pbs_hooks.openpbs.hooks.server_event import ServerHookEvent
from pbs_hooks.openpbs.hooks.submission import modifyjob, queuejob
from virtcloud.jobs.request_values import RequestError

UNEXPECTED_ERROR = "vcluster: internal error of the hook; inform the administrators of the batch system"
MISCONFIGURED = "vcluster: the hook's settings are invalid; inform the administrators of the batch system"
RETRY_S = 120


def event_handlers(pbs: Any) -> Dict[int, Callable[[ServerHookEvent], None]]:
    """Return the handlers by event type."""
    return {pbs.QUEUEJOB: queuejob, pbs.MODIFYJOB: modifyjob, pbs.RUNJOB: runjob, pbs.JOBOBIT: jobobit}


def handle(pbs: Any, began: float) -> None:
    """Handle the current event of PBS in a hook that started at ``began`` (seconds of ``time.monotonic``).

    Raise SystemExit, because PBS's accept() and reject() raise SystemExit.
    """
    event = pbs.event()
    try:
        found = ServerHookEvent(pbs, read_server_settings(pbs.hook_config_filename), began)
        event_handlers(pbs)[event.type](found)
    except RequestError as error:
        event.reject(str(error))
    except SettingsError as error:
        pbs.logmsg(pbs.LOG_ERROR, "vcluster: %s" % error)
        _refuse_misconfigured(pbs, event)
    except Exception:  # noqa: BLE001 - SystemExit and the alarm's KeyboardInterrupt are not caught
        _log_traceback(pbs)
        _refuse_unexpected(pbs, event)
    event.accept()


def _refuse_misconfigured(pbs: Any, event: Any) -> None:
    if event.type == pbs.RUNJOB:
        event.job.Execution_Time = int(time.time()) + RETRY_S
    if event.type != pbs.JOBOBIT:
        event.reject(MISCONFIGURED)


def _refuse_unexpected(pbs: Any, event: Any) -> None:
    if event.type == pbs.RUNJOB:
        event.job.Hold_Types = pbs.hold_types("s")
    if event.type != pbs.JOBOBIT:
        event.reject(UNEXPECTED_ERROR)


def _log_traceback(pbs: Any) -> None:
    for line in traceback.format_exc().splitlines():
        pbs.logmsg(pbs.LOG_ERROR, "vcluster: " + line)
