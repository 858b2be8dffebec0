"""``virtcloud topology``: what sites, elements and links there are."""

from typing import IO

import click
import yaml

from virtcloud.cli import show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.whole import Group
from virtcloud.model.documents import read_document
from virtcloud.model.topology import Topology


@click.group(cls=Group)
def topology() -> None:
    """Say what sites, elements, links and transports there are.

    Example: virtcloud topology set topology.yaml
    """


@topology.command("show")
@as_json
@click.pass_context
def show_(context: click.Context, as_json: bool) -> None:
    """Show the topology as YAML, in the form in which 'topology set' takes it.

    Example: virtcloud topology show > topology.yaml
    """
    found = client(context).sbf.topology()
    if as_json:
        show.json_document(found)
    else:
        plain = found.model_dump(mode="json", exclude_defaults=True)
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


@topology.command("set")
@click.argument("file", type=click.File())
@as_json
@click.pass_context
def set_(context: click.Context, file: IO[str], as_json: bool) -> None:
    """Set the topology to that of FILE (YAML or JSON; '-' is stdin). What carries something cannot be taken out.

    Example: virtcloud topology set topology.yaml
    """
    found = client(context).sbf.put_topology(read_document(file.read(), file.name, Topology))
    if as_json:
        show.json_document(found)
    else:
        click.echo(
            f"topology {found.name}: {len(found.sites)} sites, {len(found.elements)} elements, {len(found.links)} links"
        )
