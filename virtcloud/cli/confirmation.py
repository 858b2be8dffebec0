"""Confirmation of changes on devices: the options ``--dry-run`` and ``--yes``, and prompts about ports in other use.

A port is *in other use* if the port serves something other than SBF's VLANs. A VLAN is *in other use* on a device if
SBF does not own the VLAN, or if an unmanaged port carries the VLAN.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from virtcloud.cli import differences, printing
from virtcloud.model.changes import ChangeDryRun, PathChange
from virtcloud.model.errors import BadInput, Conflict
from virtcloud.model.port_use import PortState, PortView

dry_run_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--dry-run", is_flag=True, help="Read the devices and show what would be changed on each device; change nothing."
)
yes_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation."
)


def print_dry_run(dry_run: ChangeDryRun, *, as_json: bool) -> None:
    """Print the difference of each device.

    Also print the ports and VLANs in other use that the change affects, the changes of paths, and the devices that
    could not be read.
    """
    if as_json:
        printing.print_json(dry_run)
        return
    for difference in dry_run.elements:
        differences.print_difference(difference)
    if dry_run.other_use:
        _print_other_use(dry_run, err=False)
    print_path_changes(dry_run.paths, err=False)
    for name, reason in dry_run.unread.items():
        click.echo(f"{name} could not be read: {reason}")
    click.echo("nothing was changed")


def confirm_change(dry_run: ChangeDryRun, *, yes: bool) -> None:
    """Print the ports and VLANs in other use, the changes of paths, and the devices that could not be read.

    Ask for confirmation if the change would alter a port or VLAN in other use, unless ``yes`` is true. Raise the errors
    of :func:`require_confirmation`.
    """
    if dry_run.other_use:
        _print_other_use(dry_run, err=True)
    print_path_changes(dry_run.paths, err=True)
    for name, reason in dry_run.unread.items():
        unknown = "its ports and VLANs in other use are unknown"
        click.echo(f"virtcloud: {name} could not be read, so {unknown}: {reason}", err=True)
    if dry_run.asks:
        require_confirmation("Change these ports and VLANs?", yes=yes)


def require_confirmation(question: str, *, yes: bool, outcome: str = "nothing was changed") -> None:
    """Ask for confirmation, unless ``yes`` is true.

    Raise BadInput (exit code 2) if standard input is no terminal. Raise Conflict if the answer is no. Both messages
    begin with ``outcome``, the state after the refusal.
    """
    if yes:
        return
    if not is_terminal():
        raise BadInput(f"{outcome}: there is no terminal for the confirmation; pass --yes to confirm")
    if not click.confirm(question, err=True):
        raise Conflict(outcome)


def _print_other_use(dry_run: ChangeDryRun, *, err: bool) -> None:
    click.echo("in other use:", err=err)
    for use in dry_run.other_use:
        click.echo(f"  {use.element} at {use.site}: {use.found}: {use.effect}", err=err)


def print_path_changes(paths: Iterable[PathChange], *, err: bool) -> None:
    """Print the ports that each cluster's path gains and loses."""
    for path in paths:
        click.echo(f"the path of cluster {path.cluster} changes:", err=err)
        for sign, ports in (("-", path.remove), ("+", path.add)):
            for port in ports:
                click.echo(f"  {sign} {port}", err=err)


def is_terminal() -> bool:
    """Return whether standard input is a terminal, so that the user can answer prompts."""
    return sys.stdin.isatty()


def select_ports(switch: str, views: Iterable[PortView], ports: Sequence[str]) -> list[PortView]:
    """Return the views of ``ports``. Raise BadInput for an unmanaged port, and for a port that SBF controls already."""
    views_by_port = {view.port.lower(): view for view in views}
    selected = []
    for port in ports:
        view = views_by_port.get(port.lower())
        if view is None:
            names = ", ".join(view.port for view in views_by_port.values())
            raise BadInput(f"expected a managed port of switch {switch} ({names}), got {port}")
        if view.state is PortState.TAKEN:
            raise BadInput(
                f"SBF already controls port {view.port} of switch {switch}; the port need not be adopted. If the switch"
                f" was replaced, SBF would restore the former switch's use ({view.before or 'not recorded'}): end the "
                f"clusters at this port, run 'virtcloud element release {switch} {view.port} --forget', and adopt the "
                "port again"
            )
        selected.append(view)
    return selected


def print_port_uses(views: Iterable[PortView]) -> None:
    """Print the use of each port, and the effect of its adoption."""
    for view in views:
        click.echo(f"{view.port}: {view.use} {view.effect}" if view.effect else f"{view.port}: {view.use}")
