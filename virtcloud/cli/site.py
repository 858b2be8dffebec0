"""``virtcloud site``: sites, their hosts and the state of their pools.

What was found of a site's cables, as ``site verify`` prints it: what is wrong, what could not be told, and why.

One-time configuration, as ``site prepare`` prints it: a sheet for each device, which can be handed on as it is.
"""

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import json_option, open_client
from virtcloud.model.errors import ElementError
from virtcloud.model.site import CableState, CableView, PreparationSheet, PreparationSide, SiteCables, SitePreparation
from virtcloud.model.views import SiteView

CABLE_REMEDIES = {
    CableState.OTHER_NEIGHBOUR: "another neighbour: move the cable, or correct the topology",
    CableState.OTHER_PORT: "another port: move the cable, or correct the topology",
    CableState.ELSEWHERE: "it is elsewhere: move the cable, or correct the topology",
    CableState.UNLISTED: "not in the topology: take the cable out, or add the link",
}


def print_cables(found: SiteCables) -> None:
    """Print every cable that is not right, with what was heard and what to do, then how many are right."""
    for cable in found.wrong:
        _print_cable(cable, f"wrong: {cable.a} - {cable.b}: {CABLE_REMEDIES[cable.state]}")
    for cable in found.cables:
        if cable.state is CableState.UNKNOWN:
            _print_cable(cable, f"could not be told: {cable.a} - {cable.b}")
    for why in found.unread.values():
        click.echo(f"not asked: {why}")
    counted = {state: sum(one.state is state for one in found.cables) for state in CableState}
    click.echo(
        f"site {found.site}: {counted[CableState.RIGHT]} cables are right, {len(found.wrong)} wrong, "
        f"{counted[CableState.UNKNOWN]} could not be told"
    )


def format_cable_errors(found: SiteCables) -> str:
    """Say in a line what is wrong; empty when nothing is."""
    wrong = [f"{len(found.wrong)} cables are not where the topology says"] if found.wrong else []
    unread = [f"{len(found.unread)} switches could not be asked: {', '.join(found.unread)}"] if found.unread else []
    return f"site {found.site}: {'; '.join([*wrong, *unread])}" if wrong or unread else ""


def _print_cable(cable: CableView, head: str) -> None:
    click.echo(head)
    for words in cable.found:
        click.echo(f"  {words}")


SHEET_SIDES = {
    PreparationSide.SITE: "the site's own side",
    PreparationSide.BACKBONE: "for the backbone's administrators",
}


def print_preparation(found: SitePreparation) -> None:
    """Print all sheets, an empty line between them."""
    for number, sheet in enumerate(found.sheets):
        if number:
            click.echo()
        _print_sheet(sheet)


def _print_sheet(sheet: PreparationSheet) -> None:
    click.echo(f"# {SHEET_SIDES[sheet.side]}: {sheet.device} ({sheet.platform}), once")
    for note in sheet.notes:
        click.echo(f"# - {note}")
    for line in sheet.lines:
        click.echo(line)
    if sheet.to_fill:
        click.echo("# to be filled in:")
        for word, meaning in sheet.to_fill.items():
            click.echo(f"#   {word}  {meaning}")


COLUMNS = ("site", "pool", "claimed", "quarantined", "free", "hosts")


@click.group(cls=SummaryGroup)
def site() -> None:
    """Look at sites, their hosts and their pools.

    Example: virtcloud site list
    """


@site.command("list")
@json_option
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List all sites.

    Example: virtcloud site list
    """
    views = open_client(context).sbf.sites()
    printing.print_json_list(views) if as_json else printing.print_table(
        COLUMNS, [_row(one) for one in views], "no sites"
    )


@site.command("show")
@click.argument("name")
@json_option
@click.pass_context
def show_(context: click.Context, name: str, as_json: bool) -> None:
    """Show the site NAME: its hosts, its pool, and which numbers are claimed, quarantined, free.

    Example: virtcloud site show brno
    """
    view = open_client(context).sbf.site(name)
    printing.print_json(view) if as_json else printing.print_table(COLUMNS, [_row(view)], "")


@site.command()
@click.argument("name")
@json_option
@click.pass_context
def verify(context: click.Context, name: str, as_json: bool) -> None:
    """Ask the switches of the site NAME for their LLDP neighbours, and list every cable that is not where it should be.

    Exit code 1 when a cable is wrong or a switch could not be asked. A cable of which nothing is heard is not wrong.

    Example: virtcloud site verify brno
    """
    found = open_client(context).sbf.check_cables(name)
    printing.print_json(found) if as_json else print_cables(found)
    if fault := format_cable_errors(found):
        raise ElementError(fault)


@site.command()
@click.argument("name")
@click.option("--platform", help="The platform of the backbone's device; without it, words say what must hold.")
@click.option("--port", help="The backbone's port that the site is attached to.")
@click.option("--core-port", help="That device's port towards the rest of the backbone.")
@click.option("--transport", help="Only for this transport.")
@json_option
@click.pass_context
def prepare(context: click.Context, /, name: str, as_json: bool, **asked: str | None) -> None:
    """Print what is to be configured once for the site NAME: on its uplinks, and in the backbone by its administrators.

    Nothing is done. What only they know stands in angle brackets, and is listed.

    Example: virtcloud site prepare brno --platform cisco_ios --port Gi1/0/1
    """
    found = open_client(context).sbf.preparation(name, **asked)
    printing.print_json(found) if as_json else print_preparation(found)


def _row(view: SiteView) -> tuple[object, ...]:
    return (view.name, view.pool, view.claimed, view.quarantined, view.free, ", ".join(view.hosts))
