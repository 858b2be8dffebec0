"""Entry point of the command ``virtcloud``.

Importing this module imports nothing but two modules of Python's start. So Ctrl-C while Python imports the command ends
the program without a traceback, and an agent needs none of the libraries of the other commands.
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

        return run_agent(sys.argv[2:])  # handles Ctrl-C itself, as soon as it is imported
    from virtcloud.cli import main as run_command  # noqa: PLC0415 - Ctrl-C must be handled before

    signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(run_command() or 0)


def _is_agent(arguments: list[str]) -> bool:
    """Return whether the arguments are those of the agent's systemd unit. The command line parses all others."""
    return len(arguments) == len(_AGENT) + 1 and arguments[:-1] == _AGENT


def _exit_interrupted(_number: int, _frame: object) -> NoReturn:
    """End the process at once. An exception in the middle of an import could be reported as the import's failure."""
    os.write(2, b"\nvirtcloud: interrupted\n")
    os._exit(EXIT_INTERRUPTED)
