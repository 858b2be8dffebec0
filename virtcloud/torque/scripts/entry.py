"""Where all scripts begin: which one it is, and how it ends for Torque, for the user, and for administrators."""

import sys
import syslog
import traceback
from typing import Callable, Dict, List, Mapping

from virtcloud.jobs.errors import RequestError
from virtcloud.pbs.hooks.settings import SettingsError
from virtcloud.torque.scripts.call import ABORT, REQUEUE, RUN, Call, Ended, check, read_call
from virtcloud.torque.scripts.ending import epilogue, epilogue_parallel, precancel
from virtcloud.torque.scripts.head import FILTERS
from virtcloud.torque.scripts.settings import Settings, script_settings
from virtcloud.torque.scripts.starting import prologue, prologue_parallel
from virtcloud.torque.scripts.submitting import filtered

REJECT = 255
"""Torque's -1: qsub says that the job was rejected, below our words."""
SCRIPTS: Dict[str, Callable[[Call, Settings], None]] = {
    "prologue": prologue,
    "prologue.parallel": prologue_parallel,
    "epilogue": epilogue,
    "epilogue.parallel": epilogue_parallel,
    "epilogue.precancel": precancel,
}


def main(script: str, arguments: List[str], environment: Mapping[str, str], settings_file: str) -> int:
    """Run a script by its name; gives its exit code. What the user is to read goes to stderr."""
    try:
        if script in FILTERS:
            _filter(arguments, environment, settings_file)
        else:
            _run(script, read_call(script, arguments, environment), settings_file)
    except RequestError as error:
        return _end(REJECT if script in FILTERS else ABORT, str(error))
    except Ended as error:
        return _end(error.code, "vcluster: %s" % error)
    except SettingsError as error:
        return _end(REQUEUE, "vcluster: %s; the job will be tried again" % error)
    except Exception as error:  # noqa: BLE001 - whatever it is, Torque is to try again, and administrators are to know
        syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_ERR, traceback.format_exc())
        return _end(REQUEUE, "vcluster: a fault in %s: %r; it is in the host's log" % (script, error))
    return RUN


def _run(script: str, call: Call, settings_file: str) -> None:
    if call.is_ours:
        check(call)
        SCRIPTS[script](call, script_settings(settings_file))


def _filter(arguments: List[str], environment: Mapping[str, str], settings_file: str) -> None:
    """Hand the script on as it came, byte by byte, but for what is added."""
    script = sys.stdin.buffer.read().decode("latin-1")
    given = filtered(arguments, script, script_settings(settings_file), environment)
    sys.stdout.buffer.write(given.encode("latin-1"))
    sys.stdout.buffer.flush()


def _end(code: int, text: str) -> int:
    sys.stderr.write(text + "\n")
    syslog.syslog(syslog.LOG_DAEMON | syslog.LOG_WARNING, "exit %d: %s" % (code, text))
    return code
