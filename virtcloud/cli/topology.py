"""``virtcloud topology``: what sites, elements and links there are."""

from typing import IO

import click
import yaml

from virtcloud.cli import agreeing, show
from virtcloud.cli.asking import as_json, client
from virtcloud.cli.whole import Group
from virtcloud.client import ANY_VERSION
from virtcloud.model.documents import read_document
from virtcloud.model.topology import Topology


class TopologyFile(Topology):
    """A topology as a file has it: with the version of the topology that it was made from."""

    version: int | None = None

    @property
    def topology(self) -> Topology:
        """The topology alone, as SBF takes it."""
        return Topology.model_validate(self.model_dump(exclude={"version"}, exclude_unset=True))


@click.group(cls=Group)
def topology() -> None:
    """Say what sites, elements, links and transports there are.

    Example: virtcloud topology set topology.yaml
    """


@topology.command("show")
@as_json
@click.pass_context
def show_(context: click.Context, as_json: bool) -> None:
    """Show the topology as YAML with its version, in the form in which 'topology set' takes it.

    Example: virtcloud topology show > topology.yaml
    """
    found, version = client(context).sbf.versioned_topology()
    if as_json:
        show.json_document(found)
    else:
        plain = {} if version is None else {"version": int(version)}
        plain |= found.model_dump(mode="json", exclude_defaults=True)
        click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)


@topology.command("set")
@click.argument("file", type=click.File())
@click.option("--force", is_flag=True, help="Replace the topology whatever its version; another's change is lost.")
@agreeing.dry_run
@agreeing.yes
@as_json
@click.pass_context
def set_(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context, /, file: IO[str], *, force: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Set the topology to that of FILE (YAML or JSON; '-' is stdin). What carries something cannot be taken out.

    FILE has the 'version' that 'topology show' printed, so that nobody's change in between is lost. The switches and
    edges that the change concerns are read first; before a port in other use is changed you are asked.

    Example: virtcloud topology set topology.yaml --dry-run
    """
    sbf, given = client(context).sbf, read_document(file.read(), file.name, TopologyFile)
    preview = sbf.preview_topology(given.topology)
    if dry_run:
        agreeing.show_preview(preview, as_json=as_json)
        return
    agreeing.require_agreement(preview, yes=yes)
    version = ANY_VERSION if force else None if given.version is None else str(given.version)
    found = sbf.put_topology(given.topology, version)
    if as_json:
        show.json_document(found)
    else:
        click.echo(
            f"topology {found.name}: {len(found.sites)} sites, {len(found.elements)} elements, {len(found.links)} links"
        )
