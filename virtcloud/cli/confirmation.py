"""Settings that concern devices: the dry run is shown, and what is in other use is asked about before a change.

Without a terminal nobody can be asked: then ``--yes`` is needed, and without it nothing is changed (exit code 2).

What an administrator is shown before ports in other use are given to SBF.
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
    "--dry-run", is_flag=True, help="Read the devices and show what would be changed on each; change nothing."
)
yes_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--yes", is_flag=True, help="Do not ask before what is in other use is changed."
)


def print_dry_run(preview: ChangeDryRun, *, as_json: bool) -> None:
    """Print a dry run: each device's difference, what is in other use, what could not be read."""
    if as_json:
        printing.print_json(preview)
        return
    for one in preview.elements:
        differences.print_difference(one)
    if preview.other_use:
        _show_other_use(preview, err=False)
    for name, why in preview.unread.items():
        click.echo(f"{name} could not be read: {why}")
    click.echo("nothing was changed")


def confirm_change(preview: ChangeDryRun, *, yes: bool) -> None:
    """Show what is in other use, and ask where the change would alter it.

    Raise BadInput where nobody can be asked, Conflict when the answer is no; nothing was changed then.
    """
    if preview.other_use:
        _show_other_use(preview, err=True)
    for name, why in preview.unread.items():
        click.echo(f"virtcloud: {name} could not be read; what is in other use there is not known: {why}", err=True)
    if preview.asks:
        require_confirmation("Change what is in other use?", yes=yes)


def require_confirmation(question: str, *, yes: bool, otherwise: str = "nothing was changed") -> None:
    """Ask, unless ``yes``. Raise BadInput where nobody can be asked, Conflict when the answer is no.

    ``otherwise`` is what the error begins with: what was not done.
    """
    if yes:
        return
    if not is_terminal():
        raise BadInput(f"{otherwise}: there is no terminal to ask; pass --yes to agree")
    if not click.confirm(question, err=True):
        raise Conflict(otherwise)


def _show_other_use(preview: ChangeDryRun, *, err: bool) -> None:
    click.echo("in other use:", err=err)
    for one in preview.other_use:
        click.echo(f"  {one.element} at {one.site}: {one.found}: {one.effect}", err=err)


def is_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin.isatty()


def select_ports(switch: str, views: Iterable[PortView], ports: Sequence[str]) -> list[PortView]:
    """Return the views of these ports. Raise BadInput for a port that is not managed or that SBF has already."""
    known = {one.port.lower(): one for one in views}
    found = []
    for port in ports:
        view = known.get(port.lower())
        if view is None:
            names = ", ".join(one.port for one in known.values())
            raise BadInput(f"expected a managed port of switch {switch} ({names}), got {port}")
        if view.state is PortState.TAKEN:
            raise BadInput(f"port {view.port} of {switch} is SBF's already: it need not be adopted")
        found.append(view)
    return found


def print_port_uses(views: Iterable[PortView]) -> None:
    """Print what each port is used for and what becomes of it."""
    for one in views:
        click.echo(f"{one.port}: {one.use} {one.effect}" if one.effect else f"{one.port}: {one.use}")
