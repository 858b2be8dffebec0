"""Click groups with error messages, exit codes, short help texts that are not truncated, and lazy import of commands.

====  ===================================================================================================
code  meaning
====  ===================================================================================================
0     done
1     the cluster failed or missed its deadline, or SBF refused (not allowed, conflict, no VLAN free, gone);
      a wait for a cluster exceeded its timeout, or SBF became unreachable during the wait
2     bad input, unknown object, SBF not reachable, not logged in
130   interrupted by Ctrl-C
143   ended by SIGTERM (129: by SIGHUP), after the removal of the command's private files
====  ===================================================================================================

After code 2, the command may have made a change: SBF may have become unreachable during or after the change.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from virtcloud.model.errors import BadInput, NotFound, ServiceUnreachable, Unauthenticated, VirtcloudError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_SIGNAL = 128
"""The exit code of a program that a signal ended is this number plus the number of the signal, as in a shell."""
PROGRAM = "virtcloud"


class LazyGroup(click.Group):
    """A group that imports a command only when the command runs. Therefore ``--help`` is fast and needs few libraries.

    An exception of virtcloud ends the program with a message and an exit code.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's signature
        lazy: Mapping[str, tuple[str, str]],
        program: str = PROGRAM,
        extras: Mapping[str, str],
        **kwargs: Any,  # noqa: ANN401 - click's signature
    ) -> None:
        """Create a group. ``lazy`` maps each command's name to ``module:attribute`` and a one-line help text.

        ``program`` is the prefix of error messages. ``extras`` maps commands to the optional dependencies that they
        need (``pip install virtcloud[extra]``).
        """
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._program = program
        self._extras = extras

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands."""
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command. Raise BadInput with the name of the package to install if a library is missing."""
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ImportError as error:
            package = "virtcloud"
            # PyPI may have no wheels of virtcloud. In a clone, 'make setup' installs the extras.
            if cmd_name in self._extras:
                package = f"'virtcloud[{self._extras[cmd_name]}]'; or, in a clone of virtcloud: make setup"
            raise BadInput(
                f"the command {cmd_name} needs {error.name}; install it with: pip install {package}"
            ) from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first of ``args`` names. For an unknown name, suggest similar names."""
        near = [] if args[0] in self._lazy else get_close_matches(args[0], self._lazy)
        if near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(self._lazy.items())])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing the commands."""
        names = [CompletionItem(name, help=text) for name, (_, text) in sorted(self._lazy.items())]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [name for name in names if name.value.startswith(incomplete)] + options

    def main(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's signature
        """Run the program. After an OSError, such as a full disk, exit with a message and without a traceback."""
        prepare_standard_streams()
        try:
            return super().main(*args, **kwargs)
        except OSError as error:  # click itself handles a closed pipe
            # Python would otherwise write the buffered output again at its exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            reason = f"{error.filename or 'cannot write the output'}: {error.strerror or error}"
            click.echo(f"{self._program}: {reason}", err=True)
            sys.exit(EXIT_FAILED)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the command. After Ctrl-C or an exception of virtcloud, print a message and exit with an exit code."""
        try:
            return super().invoke(ctx)
        except VirtcloudError as error:
            exit_with_error(ctx, error, self._program)
        except (KeyboardInterrupt, click.Abort):  # click raises Abort after Ctrl-C at a prompt
            exit_interrupted(ctx, program=self._program)


def prepare_standard_streams() -> None:
    """Open /dev/null for each closed standard stream. Set stdout to print '?' for characters outside its encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the end
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def exit_code(error: VirtcloudError) -> int:
    """Return the exit code of an error."""
    is_bad_input = isinstance(error, BadInput | NotFound | ServiceUnreachable | Unauthenticated)
    return EXIT_BAD_INPUT if is_bad_input else EXIT_FAILED


def exit_with_error(context: click.Context, error: VirtcloudError, program: str = PROGRAM) -> NoReturn:
    """Print an error and exit with its exit code. Each printed line begins with the program's name."""
    for line in str(error).splitlines():
        click.echo(f"{program}: {line}", err=True)
    context.exit(exit_code(error))


def exit_interrupted(context: click.Context, message: str = "interrupted", program: str = PROGRAM) -> NoReturn:
    """Print ``message`` and exit with the code for an interruption by Ctrl-C."""
    click.echo(f"\n{program}: {message}", err=True)
    # If Ctrl-C interrupts the execution of a string, such as the generated code of a dataclass, CPython sets a flag.
    # With this flag, ``python -m virtcloud`` would end by SIGINT although virtcloud has handled KeyboardInterrupt. The
    # next execution of a string clears the flag (run_eval_code_obj in CPython).
    exec("")  # noqa: S102 - a constant
    context.exit(EXIT_INTERRUPTED)


@contextmanager
def exiting_at_signals() -> Iterator[None]:
    """Raise SystemExit in the block at SIGTERM or SIGHUP, so that the private files of the block are removed.

    A signal that the program ignores (nohup(1)) stays ignored. Further signals do not interrupt the removal: at the end
    of a user's login, systemd sends SIGTERM and then SIGHUP.
    """
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]

    def exit_once(number: int, _frame: object) -> NoReturn:
        for other in numbers:
            signal.signal(other, lambda *_: None)  # not SIG_IGN, which programs started by the removal would inherit
        sys.exit(EXIT_SIGNAL + number)

    for number in numbers:
        signal.signal(number, exit_once)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class SummaryCommand(click.Command):
    """A command whose short help is the whole first sentence, which click would truncate."""

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - click's signature
        """Return the first sentence of the help text."""
        return " ".join((self.help or "").split()).partition(". ")[0].rstrip(".") + "."


class SummaryGroup(click.Group):
    """A group of :class:`SummaryCommand`."""

    command_class = SummaryCommand
