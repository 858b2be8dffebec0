"""One-time configuration, as ``site prepare`` prints it: a sheet for each device, which can be handed on as it is."""

import click

from virtcloud.model.preparation import Sheet, Side, SitePreparation

WHOSE = {Side.SITE: "the site's own side", Side.BACKBONE: "for the backbone's administrators"}


def tell(found: SitePreparation) -> None:
    """Print all sheets, an empty line between them."""
    for number, sheet in enumerate(found.sheets):
        if number:
            click.echo()
        _tell(sheet)


def _tell(sheet: Sheet) -> None:
    click.echo(f"# {WHOSE[sheet.side]}: {sheet.device} ({sheet.platform}), once")
    for note in sheet.notes:
        click.echo(f"# - {note}")
    for line in sheet.lines:
        click.echo(line)
    if sheet.to_fill:
        click.echo("# to be filled in:")
        for word, meaning in sheet.to_fill.items():
            click.echo(f"#   {word}  {meaning}")
