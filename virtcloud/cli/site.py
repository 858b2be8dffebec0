"""``virtcloud site``: show sites, check cables, print a site's one-time configuration, and import an existing site."""

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import open_client
from virtcloud.cli.site_import import import_
from virtcloud.model.element_views import SiteView
from virtcloud.model.errors import BadInput, ElementError
from virtcloud.model.message_text import count_of
from virtcloud.model.site import CableState, CableView, PreparationSheet, PreparationSide, SiteCables, SitePreparation

COLUMNS = ("site", "pool", "claimed", "quarantined", "free", "hosts")
CABLE_REMEDIES = {
    CableState.OTHER_NEIGHBOUR: "another neighbour: move the cable, or correct the topology",
    CableState.OTHER_PORT: "another port: move the cable, or correct the topology",
    CableState.ELSEWHERE: "connected elsewhere: move the cable, or correct the topology",
    CableState.UNLISTED: "not in the topology: remove the cable, or add the link",
}
SHEET_SIDES = {
    PreparationSide.SITE: "for the site's administrators",
    PreparationSide.BACKBONE: "for the backbone's administrators",
}


@click.group(cls=SummaryGroup)
def site() -> None:
    """Show sites, check their cables, print their one-time configuration, and import an existing site.

    Example: virtcloud site list
    """


@site.command("list")
@printing.limit_option
@printing.json_option
@click.pass_context
def list_(context: click.Context, limit: int | None, as_json: bool) -> None:
    """List all sites, by name. The rows are printed page by page.

    Example: virtcloud site list
    """
    pages = open_client(context).sbf.site_pages()
    printing.print_pages(COLUMNS, pages, _row, "no sites", as_json=as_json, limit=limit)


@site.command("show")
@click.argument("name")
@printing.json_option
@click.pass_context
def show_(context: click.Context, name: str, as_json: bool) -> None:
    """Show the site NAME: its hosts, its pool, and its claimed, quarantined and free VLAN IDs.

    Example: virtcloud site show brno
    """
    view = open_client(context).sbf.site(name)
    printing.print_json(view) if as_json else printing.print_table(COLUMNS, [_row(view)], "")


@site.command()
@click.argument("name")
@printing.json_option
@click.pass_context
def verify(context: click.Context, name: str, as_json: bool) -> None:
    """Compare the LLDP neighbours of the switches of the site NAME with the topology, and list every wrong cable.

    The exit code is 1 if a cable is wrong or a switch could not be read. A cable without an observed LLDP neighbour is
    unknown, not wrong.

    Example: virtcloud site verify brno
    """
    cables = open_client(context).sbf.check_cables(name)
    printing.print_json(cables) if as_json else print_cables(cables)
    if error := format_cable_errors(cables):
        raise ElementError(error)


@site.command()
@click.argument("name")
@click.option(
    "--platform",
    help="The platform of the backbone's device. Without this option, the output for this device has notes instead of "
    "commands.",
)
@click.option("--port", help="The backbone's port that the site is attached to.")
@click.option("--core-port", help="The port of the backbone's device towards the rest of the backbone.")
@click.option("--transport", help="Print the commands for this transport only.")
@printing.json_option
@click.pass_context
def prepare(context: click.Context, /, name: str, as_json: bool, **backbone: str | None) -> None:
    """Print commands that administrators enter once: at the uplinks of the site NAME, and at the backbone.

    The command changes nothing. Some values are known only to the administrators of the backbone. For these values, the
    output has placeholders in angle brackets, and explains each placeholder.

    Example: virtcloud site prepare brno --platform cisco_ios --port Gi1/0/1
    """
    preparation = open_client(context).sbf.preparation(name, **backbone)
    if backbone["port"] is not None and backbone["platform"] is None:
        raise BadInput(
            "--port: expected --platform too, because only the commands of a platform contain the port; got no "
            "--platform"
        )
    printing.print_json(preparation) if as_json else print_preparation(preparation)


site.add_command(import_)


def _row(view: SiteView) -> tuple[object, ...]:
    return (view.name, view.pool, view.claimed, view.quarantined, view.free, ", ".join(view.hosts))


def print_cables(cables: SiteCables) -> None:
    """Print the wrong and the unknown cables, each with the observations about the cable.

    Then print the switches that could not be read, and the numbers of right, wrong and unknown cables.
    """
    for cable in cables.wrong:
        _print_cable(cable, f"wrong: {cable.a} - {cable.b}: {CABLE_REMEDIES[cable.state]}")
    for cable in cables.cables:
        if cable.state is CableState.UNKNOWN:
            _print_cable(cable, f"unknown: {cable.a} - {cable.b}")
    for reason in cables.unread.values():
        click.echo(f"not read: {reason}")
    counts = {state: sum(cable.state is state for cable in cables.cables) for state in CableState}
    click.echo(
        f"site {cables.site}: cables: {counts[CableState.RIGHT]} right, {len(cables.wrong)} wrong, "
        f"{counts[CableState.UNKNOWN]} unknown"
    )


def format_cable_errors(cables: SiteCables) -> str:
    """Return one line about wrong cables and unread switches, or "" if there are none."""
    wrong = [f"{count_of(len(cables.wrong), 'wrong cable')}"] if cables.wrong else []
    unread = [f"could not read {', '.join(cables.unread)}"] if cables.unread else []
    return f"site {cables.site}: {'; '.join([*wrong, *unread])}" if wrong or unread else ""


def _print_cable(cable: CableView, head: str) -> None:
    click.echo(head)
    for sentence in cable.found:
        click.echo(f"  {sentence}")


def print_preparation(preparation: SitePreparation) -> None:
    """Print all preparation sheets, separated by empty lines."""
    for number, sheet in enumerate(preparation.sheets):
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
        click.echo("# replace:")
        for placeholder, meaning in sheet.to_fill.items():
            click.echo(f"#   {placeholder}  {meaning}")
