"""Runs one hook on one event, as PBS's interpreter does, and writes the outcome.

``python3 -I -S -OO run.py FOLDER`` reads ``event.json`` and ``hook.py`` in the folder and writes ``outcome.json``.
"""

import builtins
import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, Dict, Optional, Tuple

EXCEPTION = "exception"
ALARM = "alarm"
GRACE_S = 1.0
"""Seconds from the alarm of a hook until the hook is killed. A real MoM may kill a hook earlier."""
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main(folder: str) -> None:
    """Run the event in ``folder``."""
    module = importlib.import_module("interpreter.module")

    with open(os.path.join(folder, "event.json"), encoding="utf-8") as event_file:
        description = json.load(event_file)
    with open(os.path.join(folder, "hook.py"), encoding="utf-8") as hook_file:
        text = hook_file.read()
    stage = module.HookStage(description)
    sys.modules["pbs"] = module.build_module(stage, description)
    sys.path.remove(PACKAGE_FOLDER)
    open(os.path.join(folder, "began"), "w").close()
    began = time.time()
    failure, trace = _run(text, stage, description["alarm"])
    seconds = time.time() - began
    with open(os.path.join(folder, "outcome.json"), "w", encoding="utf-8") as outcome_file:
        json.dump(dict(_outcome(stage, failure, trace), seconds=seconds), outcome_file)


def _run(text: str, stage: Any, alarm: float) -> Tuple[Optional[str], Optional[str]]:
    """Run the hook. A hook accepts or rejects by raising SystemExit; the alarm raises KeyboardInterrupt."""
    stage.rules.in_hook = True
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, alarm, GRACE_S)
    try:
        exec(compile(text, "<embedded code object>", "exec"), {"__builtins__": builtins})  # noqa: S102 - runs the hook
    except SystemExit:
        return None, None
    except KeyboardInterrupt:
        return ALARM, traceback.format_exc()
    except BaseException:  # noqa: BLE001 - any exception of the hook is its outcome
        return EXCEPTION, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        stage.rules.in_hook = False
    return None, None


def _interrupt(_number: int, _frame: Any) -> None:
    """Raise the alarm as KeyboardInterrupt. A second alarm kills the process, as a MoM does."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    raise KeyboardInterrupt


def _outcome(stage: Any, failure: Any, trace: Any) -> Dict[str, Any]:
    event = stage.event
    parameters = event._param
    job = parameters.get("job")
    return {
        "accepted": event.accepted and failure is None,
        "message": event.message,
        "failure": failure,
        "traceback": trace,
        "changed": _changed(job) if job is not None else {},
        "rerun": bool(job and job._rerun),
        "delete": bool(job and job._delete),
        "progname": parameters.get("progname"),
        "argv": parameters.get("argv"),
        "env": {name: str(value) for name, value in parameters["env"].items()} if "env" in parameters else None,
        "log": stage.log,
        "job_log": stage.job_log,
    }


def _changed(job: Any) -> Dict[str, Any]:
    """Return the hook's changes, in PBS's notation: ``Hold_Types``, ``Resource_List.place``, ``Variable_List.A``."""
    changes = {name: str(job._values[name]) for name in job._changed}
    for name in job.Resource_List._changed:
        changes["Resource_List." + name] = str(job.Resource_List._values[name])
    for name, value in job.Variable_List.items():
        if job._variables.get(name) != value:
            changes["Variable_List." + name] = str(value)
    return changes


if __name__ == "__main__":
    sys.path.insert(0, PACKAGE_FOLDER)
    main(sys.argv[1])
