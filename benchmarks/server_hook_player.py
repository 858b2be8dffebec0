"""Runs a hook for several events in one Python interpreter, as PBS's server does.

Usage: ``python3 -I -S -OO server_hook_player.py FAKEPBS FOLDER``. FAKEPBS is the folder of the PBS emulator. FOLDER
contains ``hook.py`` and ``events.json``.
"""

import builtins
import importlib
import json
import sys
import time
from pathlib import Path


def main(fakepbs: str, folder: str) -> None:
    """Print the seconds that each event of ``FOLDER/events.json`` took."""
    sys.path.insert(0, fakepbs)
    module = importlib.import_module("interpreter.module")
    sys.path.remove(fakepbs)
    code = compile((Path(folder) / "hook.py").read_text(), "hook", "exec")
    for event in json.loads((Path(folder) / "events.json").read_text()):
        stage = module.HookStage(event)
        sys.modules["pbs"] = module.build_module(stage, event)
        stage.rules.in_hook = True
        names = {"__builtins__": builtins}
        started = time.perf_counter()
        try:  # noqa: SIM105 - the time of the first event must include the import of contextlib
            exec(code, names)  # noqa: S102 - the purpose of this script
        except SystemExit:  # the hook accepted or rejected the event
            pass
        print(time.perf_counter() - started)  # noqa: T201 - a command's output
        names.clear()


main(*sys.argv[1:])
