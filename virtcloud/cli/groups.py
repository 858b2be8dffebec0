"""A group whose commands are imported when they are called, so that ``--help`` is quick and needs no extra.

How a command ends.

====  ==========================================================================================
code  meaning
====  ==========================================================================================
0     done
1     the cluster failed or did not get there in time, or SBF said no (not allowed, conflict, no VLAN free, gone)
2     bad input, something named that does not exist, SBF not reachable or not logged in; nothing was changed
130   interrupted by Ctrl-C
====  ==========================================================================================

A group that lists each command by its whole first sentence; click cuts off what is longer than a line.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from virtcloud.model.errors import BadInput, NotFound, ServiceUnreachable, Unauthenticated, VirtcloudError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


def exit_code(error: VirtcloudError) -> int:
    """Give the exit code of an error."""
    return (
        EXIT_BAD_INPUT if isinstance(error, BadInput | NotFound | ServiceUnreachable | Unauthenticated) else EXIT_FAILED
    )


def exit_with_error(context: click.Context, error: VirtcloudError, speaks: str = "virtcloud") -> NoReturn:
    """Say what went wrong, each line with our name before it, and end."""
    for line in str(error).splitlines():
        click.echo(f"{speaks}: {line}", err=True)
    context.exit(exit_code(error))


def exit_interrupted(context: click.Context, message: str = "interrupted", speaks: str = "virtcloud") -> NoReturn:
    """Say what goes on after Ctrl-C, and end."""
    click.echo(f"\n{speaks}: {message}", err=True)
    context.exit(EXIT_INTERRUPTED)


PROGRAM = "virtcloud"


class LazyGroup(click.Group):
    """Commands by name: ``module:attribute`` and a line of help. Turns errors of ours into messages and exit codes."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - click's
        lazy: Mapping[str, tuple[str, str]],
        speaks: str = PROGRAM,
        extra: str = "lab",
        **kwargs: Any,  # noqa: ANN401 - click's
    ) -> None:
        """Remember where the commands are; ``speaks`` is the name before each message, ``extra`` what they need."""
        super().__init__(*args, **kwargs)
        self._lazy = lazy
        self._speaks = speaks
        self._extra = extra

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Give the names."""
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import a command; raises :class:`BadInput` that names the extra which it needs."""
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(import_module(module), attribute)
        except ImportError as error:
            raise BadInput(
                f"the command {cmd_name} needs {error.name}; install it with: pip install 'virtcloud[{self._extra}]'"
            ) from error
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with; a misspelt name is answered with the nearest ones."""
        near = [] if args[0] in self._lazy else get_close_matches(args[0], self._lazy)
        if near and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {' or '.join(map(repr, near))}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the help of the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(self._lazy.items())])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the commands' names without importing them."""
        names = [CompletionItem(name, help=text) for name, (_, text) in sorted(self._lazy.items())]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [one for one in names if one.value.startswith(incomplete)] + options

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the command; an error of ours is a message and an exit code, never a traceback."""
        try:
            return super().invoke(ctx)
        except VirtcloudError as error:
            exit_with_error(ctx, error, self._speaks)
        except (KeyboardInterrupt, click.Abort):  # Abort: Ctrl-C at a question
            exit_interrupted(ctx, speaks=self._speaks)


class SummaryCommand(click.Command):
    """A command whose short help is the first sentence of its help."""

    def get_short_help_str(self, limit: int = 0) -> str:  # noqa: ARG002 - click's signature
        """Give the first sentence."""
        return " ".join((self.help or "").split()).partition(". ")[0].rstrip(".") + "."


class SummaryGroup(click.Group):
    """A group of such commands."""

    command_class = SummaryCommand
