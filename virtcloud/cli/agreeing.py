"""Settings that concern devices: the dry run is shown, and what is in other use is asked about before a change.

Without a terminal nobody can be asked: then ``--yes`` is needed, and without it nothing is changed (exit code 2).
"""

import sys
from collections.abc import Callable
from typing import Any

import click

from virtcloud.cli import differences, show
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.preview import ChangePreview

dry_run: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--dry-run", is_flag=True, help="Read the devices and show what would be changed on each; change nothing."
)
yes: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--yes", is_flag=True, help="Do not ask before what is in other use is changed."
)


def show_preview(preview: ChangePreview, *, as_json: bool) -> None:
    """Print a dry run: each device's difference, what is in other use, what could not be read."""
    if as_json:
        show.json_document(preview)
        return
    for one in preview.elements:
        differences.tell(one)
    if preview.other_use:
        _show_other_use(preview, err=False)
    for name, why in preview.unread.items():
        click.echo(f"{name} could not be read: {why}")
    click.echo("nothing was changed")


def require_agreement(preview: ChangePreview, *, yes: bool) -> None:
    """Show what is in other use, and ask where the change would alter it.

    Raise BadInput where nobody can be asked, Conflict when the answer is no; nothing was changed then.
    """
    if preview.other_use:
        _show_other_use(preview, err=True)
    for name, why in preview.unread.items():
        click.echo(f"virtcloud: {name} could not be read; what is in other use there is not known: {why}", err=True)
    if preview.asks:
        require_yes("Change what is in other use?", yes=yes)


def require_yes(question: str, *, yes: bool, otherwise: str = "nothing was changed") -> None:
    """Ask, unless ``yes``. Raise BadInput where nobody can be asked, Conflict when the answer is no.

    ``otherwise`` is what the error begins with: what was not done.
    """
    if yes:
        return
    if not is_terminal():
        raise BadInput(f"{otherwise}: there is no terminal to ask; pass --yes to agree")
    if not click.confirm(question, err=True):
        raise Conflict(otherwise)


def _show_other_use(preview: ChangePreview, *, err: bool) -> None:
    click.echo("in other use:", err=err)
    for one in preview.other_use:
        click.echo(f"  {one.element} at {one.site}: {one.found}: {one.effect}", err=err)


def is_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin.isatty()
