"""Entry point of all scripts: calls the function that belongs to the script's name, and reports errors."""

import sys
import syslog
import traceback
from typing import Callable, Dict, List, Mapping

from pbs_hooks.kit.hook_settings import SettingsError
from pbs_hooks.torque.scripts.prologue_epilogue import (
    run_epilogue,
    run_epilogue_parallel,
    run_precancel,
    run_prologue,
    run_prologue_parallel,
)
from pbs_hooks.torque.scripts.script_call import (
    EXIT_ABORT,
    EXIT_REQUEUE,
    EXIT_RUN,
    ScriptCall,
    ScriptExit,
    check_job_id,
    parse_call,
    requeue,
)
from pbs_hooks.torque.scripts.script_head import FILTERS
from pbs_hooks.torque.scripts.script_settings import ScriptSettings, read_script_settings
from pbs_hooks.torque.scripts.submit_filter import run_submit_filter
from virtcloud.jobs.request_values import RequestError

EXIT_REJECT = 255
"""The exit code of a submit filter that rejects a job. Torque reads this code as -1."""
SCRIPT_HANDLERS: Dict[str, Callable[[ScriptCall, ScriptSettings], None]] = {
    "prologue": run_prologue,
    "prologue.parallel": run_prologue_parallel,
    "epilogue": run_epilogue,
    "epilogue.parallel": run_epilogue_parallel,
    "epilogue.precancel": run_precancel,
}


def main(script: str, arguments: List[str], environment: Mapping[str, str], settings_file: str) -> int:
    """Run the script with the name ``script`` and return its exit code. Messages for the user go to stderr."""
    is_filter = script in FILTERS
    try:
        if is_filter:
            run_submit_filter(arguments, environment, settings_file)
        else:
            _run_script(script, parse_call(script, arguments, environment), settings_file)
    except RequestError as error:
        return _report_exit(EXIT_REJECT if is_filter else EXIT_ABORT, str(error))
    except ScriptExit as error:
        return _report_exit(error.code, "vcluster: %s" % error)
    except SettingsError as error:
        if is_filter:
            return _report_exit(EXIT_REJECT, "vcluster: %s" % error)
        return _report_exit(EXIT_REQUEUE, "vcluster: %s" % requeue(error))
    except Exception as error:  # noqa: BLE001 - any unexpected error: Torque retries, and administrators read the traceback
        syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_ERR, traceback.format_exc())
        text = "vcluster: internal error in %s: %r; the host's log has details" % (script, error)
        return _report_exit(EXIT_REJECT if is_filter else EXIT_REQUEUE, text)
    return EXIT_RUN


def _run_script(script: str, call: ScriptCall, settings_file: str) -> None:
    if call.is_ours:
        check_job_id(call)
        SCRIPT_HANDLERS[script](call, read_script_settings(settings_file))


def _report_exit(code: int, text: str) -> int:
    sys.stderr.write(text + "\n")
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_WARNING, "exit %d: %s" % (code, text))
    return code
