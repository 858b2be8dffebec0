"""How a command ends.

====  ==========================================================================================
code  meaning
====  ==========================================================================================
0     done
1     the cluster failed or did not get there in time, or SBF said no (not allowed, conflict, no VLAN free, gone)
2     bad input, something named that does not exist, SBF not reachable or not logged in; nothing was changed
130   interrupted by Ctrl-C
====  ==========================================================================================
"""

from typing import NoReturn

import click

from virtcloud.model.errors import BadInput, NotFound, ServiceUnreachable, Unauthenticated, VirtcloudError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


def exit_code(error: VirtcloudError) -> int:
    """Give the exit code of an error."""
    return BAD_INPUT if isinstance(error, BadInput | NotFound | ServiceUnreachable | Unauthenticated) else FAILED


def fail(context: click.Context, error: VirtcloudError, speaks: str = "virtcloud") -> NoReturn:
    """Say what went wrong, each line with our name before it, and end."""
    for line in str(error).splitlines():
        click.echo(f"{speaks}: {line}", err=True)
    context.exit(exit_code(error))


def interrupted(context: click.Context, message: str = "interrupted", speaks: str = "virtcloud") -> NoReturn:
    """Say what goes on after Ctrl-C, and end."""
    click.echo(f"\n{speaks}: {message}", err=True)
    context.exit(INTERRUPTED)
