"""The command line of the installed version of virtcloud. Each command is a fork of this process.

This process imports all modules once, because imports take most of a command's processor time. An input line is a
request in JSON: the command's ``words``, its ``environment``, and its output files ``stdout`` and ``stderr``. The
answer is a line with the command's exit code.
"""

import gc
import importlib
import json
import os
import pkgutil
import sys
import traceback
from typing import Any, NoReturn

import httpx  # noqa: F401 - every command of the tests uses httpx, but virtcloud imports it lazily

import virtcloud.cli


def run(request: dict[str, Any]) -> NoReturn:
    for name, descriptor in ((os.devnull, 0), (request["stdout"], 1), (request["stderr"], 2)):
        os.dup2(os.open(name, os.O_RDWR), descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["virtcloud", *request["words"]]
    code = 1
    try:
        virtcloud.cli.main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - like Python, print the traceback of every uncaught exception
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


for module in pkgutil.iter_modules(virtcloud.cli.__path__, "virtcloud.cli."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
gc.freeze()  # a garbage collection in a fork would copy the memory of all imported modules
for line in sys.stdin:
    if (pid := os.fork()) == 0:
        run(json.loads(line))
    sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
    sys.stdout.flush()
