"""A process that has imported SBF, and runs each command of ``sbf`` in a fork. See ``sbf_process.py``.

The process receives requests as packets on a socket. A request is a JSON object with the ``arguments``, the ``umask``
and the working ``folder`` of a command. With the packet come three file descriptors: standard output, standard error,
and a pipe for the report. The report is the process ID in ten digits, later followed by the exit code.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn

MODULES = (
    "sbf_service.__main__",
    "sbf_service.server",
    "sbf_service.bootstrap",
    "alembic.command",
    "alembic.autogenerate",
    "napalm.eos",
    "netmiko",
)


def report(packet: bytes, descriptors: list[int]) -> NoReturn:
    """Run a command in a fork. Report the process ID, and the exit code when the command ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if (pid := os.fork()) == 0:
        run(json.loads(packet), descriptors)
    os.write(descriptors[2], b"%010d" % pid)
    for descriptor in (0, 1, 2, *descriptors[:2]):
        os.close(descriptor)
    os.write(descriptors[2], b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def run(request: dict[str, object], descriptors: list[int]) -> NoReturn:
    """Run a command in this process, and end the process as the interpreter would."""
    output, errors, _ = descriptors
    os.dup2(output, 1), os.dup2(errors, 2)
    os.closerange(3, max(descriptors) + 1)
    os.umask(int(str(request["umask"])))
    os.chdir(str(request["folder"]))
    sys.argv = ["sbf", *request["arguments"]]  # type: ignore[misc]
    code: object = 1
    try:
        importlib.import_module("sbf_service.__main__").main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # noqa: BLE001 - print any error before the process ends, as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # a garbage collection in a fork would copy the memory of all imported modules
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes ended forks
    channel = socket.socket(fileno=int(sys.argv[1]))
    while True:
        received, passed, _, _ = socket.recv_fds(channel, 1 << 16, 3)
        if not received:
            break
        if os.fork() == 0:
            report(received, passed)
        for one in passed:
            os.close(one)
