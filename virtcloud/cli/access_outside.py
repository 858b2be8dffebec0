"""``virtcloud access outside``: show how much a cluster's guests used each destination outside the cluster."""

import click

from virtcloud.cli import printing
from virtcloud.cli.options import open_client
from virtcloud.model.outside_use import DestinationUseView, ResolvedName

COLUMNS = ("destination", "gateway", "connections", "sent", "received", "since", "reported")
NAME_COLUMNS = ("destination", "gateway", "name", "addresses", "error")


@click.command()
@click.argument("key", metavar="CLUSTER")
@printing.json_option
@click.pass_context
def outside(context: click.Context, /, key: str, *, as_json: bool) -> None:
    """Show the guests' use of each destination.

    A destination is a service outside the cluster that the guests of CLUSTER may reach. The gateways of CLUSTER count
    connections and bytes, and report once a minute. If a destination contains domain names, a second table shows the
    addresses of these names.

    Example: virtcloud access outside demo
    """
    views = open_client(context).sbf.destination_uses(key)
    printing.print_list(COLUMNS, views, _row, "no gateway reported a destination", as_json=as_json)
    named = [(view, name) for view in views for name in view.names]
    if named and not as_json:
        click.echo()
        printing.print_table(NAME_COLUMNS, [_name_row(view, name) for view, name in named], "")


def _name_row(view: DestinationUseView, name: ResolvedName) -> tuple[object, ...]:
    addresses = ", ".join(map(str, name.addresses))
    return (view.destination, view.gateway, name.fqdn, addresses or "none", name.error)


def _row(view: DestinationUseView) -> tuple[object, ...]:
    return (
        view.destination,
        view.gateway,
        view.connections,
        printing.format_size(view.sent_bytes),
        printing.format_size(view.received_bytes),
        printing.format_time(view.since),
        printing.format_time(view.reported_at),
    )
