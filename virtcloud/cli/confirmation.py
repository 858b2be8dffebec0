"""Confirmation of changes on devices: the options ``--dry-run`` and ``--yes``, and prompts about ports in other use.

Without a terminal, ``--yes`` is required. Without ``--yes`` and without a terminal, the command changes nothing and
ends with exit code 2.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from virtcloud.cli import differences, printing
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.port_use import PortState, PortView

dry_run_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--dry-run", is_flag=True, help="Read the devices and show what would be changed on each device; change nothing."
)
yes_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation."
)


def print_dry_run(dry_run: ChangeDryRun, *, as_json: bool) -> None:
    """Print a dry run: the difference of each device, the ports and VLANs in other use, and the devices not read."""
    if as_json:
        printing.print_json(dry_run)
        return
    for one in dry_run.elements:
        differences.print_difference(one)
    if dry_run.other_use:
        _print_other_use(dry_run, err=False)
    for name, why in dry_run.unread.items():
        click.echo(f"{name} could not be read: {why}")
    click.echo("nothing was changed")


def confirm_change(dry_run: ChangeDryRun, *, yes: bool) -> None:
    """Print the ports and VLANs in other use, and ask for confirmation if the change would alter any of them.

    Raise BadInput without a terminal, and Conflict if the answer is no. In both cases nothing was changed.
    """
    if dry_run.other_use:
        _print_other_use(dry_run, err=True)
    for name, why in dry_run.unread.items():
        click.echo(f"virtcloud: {name} could not be read; its other use is unknown: {why}", err=True)
    if dry_run.asks:
        require_confirmation("Change what is in other use?", yes=yes)


def require_confirmation(question: str, *, yes: bool, otherwise: str = "nothing was changed") -> None:
    """Ask for confirmation, unless ``yes``. Raise BadInput without a terminal, Conflict if the answer is no.

    ``otherwise`` is the beginning of the error message: the action that was not done.
    """
    if yes:
        return
    if not is_terminal():
        raise BadInput(f"{otherwise}: there is no terminal for the confirmation; pass --yes to confirm")
    if not click.confirm(question, err=True):
        raise Conflict(otherwise)


def _print_other_use(dry_run: ChangeDryRun, *, err: bool) -> None:
    click.echo("in other use:", err=err)
    for one in dry_run.other_use:
        click.echo(f"  {one.element} at {one.site}: {one.found}: {one.effect}", err=err)


def is_terminal() -> bool:
    """Return whether standard input is a terminal, so that the user can answer prompts."""
    return sys.stdin.isatty()


def select_ports(switch: str, views: Iterable[PortView], ports: Sequence[str]) -> list[PortView]:
    """Return the views of ``ports``. Raise BadInput for a port that is not managed or that SBF controls already."""
    known = {one.port.lower(): one for one in views}
    found = []
    for port in ports:
        view = known.get(port.lower())
        if view is None:
            names = ", ".join(one.port for one in known.values())
            raise BadInput(f"expected a managed port of switch {switch} ({names}), got {port}")
        if view.state is PortState.TAKEN:
            raise BadInput(f"port {view.port} of {switch} is controlled by SBF already: it need not be adopted")
        found.append(view)
    return found


def print_port_uses(views: Iterable[PortView]) -> None:
    """Print the use of each port, and the effect of its adoption."""
    for one in views:
        click.echo(f"{one.port}: {one.use} {one.effect}" if one.effect else f"{one.port}: {one.use}")
