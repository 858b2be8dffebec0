"""Entry point of the command ``virtcloud``.

This module first sets a handler of Ctrl-C, and then imports the command line. Therefore Ctrl-C during the long import
ends the program without a traceback. For an agent (``virtcloud agent --config FILE``), this module does not import the
command line, because an agent does not need the libraries of the other commands.
"""

import os
import signal
import sys
from typing import Final, NoReturn

EXIT_INTERRUPTED: Final = 130
_AGENT: Final = ["agent", "--config"]


def main() -> int:
    """Run the command. Return the exit code, or raise SystemExit."""
    signal.signal(signal.SIGINT, _exit_interrupted)
    if _is_agent(sys.argv[1:]):
        from virtcloud.agent.bootstrap import main as run_agent  # noqa: PLC0415 - only the agent needs it

        return run_agent(sys.argv[2:])  # the agent's module sets its own handler of Ctrl-C
    from virtcloud.cli import main as run_command  # noqa: PLC0415 - after the handler of Ctrl-C is set

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(run_command() or 0)


def _is_agent(arguments: list[str]) -> bool:
    return len(arguments) == len(_AGENT) + 1 and arguments[:-1] == _AGENT


def _exit_interrupted(_number: int, _frame: object) -> NoReturn:
    """End the process immediately, without an exception.

    A module that is being imported could report the exception as a failed import.
    """
    os.write(2, b"\nvirtcloud: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
