"""``virtcloud topology``: what sites, elements and links there are, as a whole or of one site."""

from collections.abc import Callable, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Generic, TypeVar

import click

from virtcloud.cli import confirmation, printing
from virtcloud.cli.differences import format_yaml, unified_yaml_diff
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import json_option, open_client
from virtcloud.client.calls import ANY_VERSION
from virtcloud.client.sbf import SbfClient
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.document import Document, read_document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.site import SitePart
from virtcloud.model.topology import Topology

D = TypeVar("D", Topology, SitePart)
SITE = click.option("--site", metavar="NAME", help="Only this site, with the links between its own elements.")


class TopologyFile(Topology):
    """A topology as a file has it: with the version of the topology that it was made from."""

    version: str | int | None = None


class SiteFile(SitePart):
    """A site's part of the topology as a file has it."""

    version: str | int | None = None


@dataclass(frozen=True, slots=True)
class TopologyScope(Generic[D]):
    """What is shown or set: the whole topology, or one site's part, and the calls for it."""

    name: str
    read: Callable[[], tuple[D, str | None]]
    preview: Callable[[D], ChangeDryRun]
    put: Callable[[D, str | None], D]


def _whole(sbf: SbfClient) -> TopologyScope[Topology]:
    return TopologyScope("topology", sbf.versioned_topology, sbf.dry_run_topology, sbf.put_topology)


def _part(sbf: SbfClient, site: str) -> TopologyScope[SitePart]:
    return TopologyScope(f"site {site}", lambda: sbf.site_part(site), sbf.dry_run_site_part, sbf.put_site_part)


@click.group(cls=SummaryGroup)
def topology() -> None:
    """Sites, elements, links and transports, as administrators describe them.

    Example: virtcloud topology set topology.yaml
    """


@topology.command("show")
@SITE
@json_option
@click.pass_context
def show_(context: click.Context, site: str | None, as_json: bool) -> None:
    """Show the topology as YAML with its version, in the form in which 'topology set' takes it.

    Example: virtcloud topology show --site brno > brno.yaml
    """
    sbf = open_client(context).sbf
    found: Topology | SitePart
    found, version = sbf.versioned_topology() if site is None else sbf.site_part(site)
    if as_json:
        printing.print_json(found)
    else:
        shown = {} if version is None else {"version": int(version) if site is None else version}
        click.echo(format_yaml(found, **shown), nl=False)


@topology.command("set")
@click.argument("file", type=click.File())
@SITE
@click.option("--force", is_flag=True, help="Replace it whatever its version; another's change is lost.")
@confirmation.dry_run_option
@confirmation.yes_option
@json_option
@click.pass_context
def set_(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context,
    /,
    file: IO[str],
    *,
    site: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Set the topology, or one site's part of it, to that of FILE (YAML or JSON; '-' is stdin).

    What carries something cannot be taken out. FILE has the 'version' that 'topology show' printed, so that nobody's
    change in between is lost. The difference is shown first. The switches and edges that the change concerns are read;
    before a port in other use is changed you are asked, and on a terminal before anything is.

    Example: virtcloud topology set brno.yaml --site brno --dry-run
    """
    sbf, text = open_client(context).sbf, file.read()
    asked = _SetOptions(file.name, force=force, dry_run=dry_run, yes=yes, as_json=as_json)
    if site is None:
        given = read_document(text, file.name, TopologyFile)
        made = _set(_whole(sbf), _without_version(given, Topology), given.version, asked)
        told = (
            "" if made is None else _told(f"topology {made.name}: {len(made.sites)} sites", made.elements, made.links)
        )
    else:
        part = read_document(text, file.name, SiteFile)
        if part.site.name != site:
            raise BadInput(f"{file.name}: site.name: expected {site}, got {part.site.name}")
        set_part = _set(_part(sbf, site), _without_version(part, SitePart), part.version, asked)
        told = "" if set_part is None else _told(f"site {site}", set_part.site.elements, set_part.links)
    if told and not as_json:
        click.echo(told)


def _told(what: str, elements: Sized, links: Sized) -> str:
    return f"{what}{',' if ':' in what else ':'} {len(elements)} elements, {len(links)} links"


@dataclass(frozen=True, slots=True)
class _SetOptions:
    """The file and the flags of ``topology set``."""

    file: str
    force: bool
    dry_run: bool
    yes: bool
    as_json: bool


def _without_version(given: Document, kind: type[D]) -> D:
    return kind.model_validate(given.model_dump(exclude={"version"}, exclude_unset=True))


def _set(subject: TopologyScope[D], wanted: D, version: str | int | None, asked: _SetOptions) -> D | None:
    """Show the difference, ask where that is needed, and replace; None for a dry run."""
    former, current = None, None
    with suppress(NotFound):
        former, current = subject.read()
    text = unified_yaml_diff(former, wanted, subject.name)
    preview = subject.preview(wanted)
    if asked.dry_run:
        if text and not asked.as_json:
            click.echo(text)
        confirmation.print_dry_run(preview, as_json=asked.as_json)
        return None
    is_change = bool(text) and former is not None
    if is_change:
        click.echo(text, err=True)
    confirmation.confirm_change(preview, yes=asked.yes)
    chosen = _version(subject.name, version, current, asked) if is_change else version
    made = subject.put(wanted, ANY_VERSION if asked.force else None if chosen is None else str(chosen))
    if asked.as_json:
        printing.print_json(made)
    return made


def _version(name: str, given: str | int | None, current: str | None, asked: _SetOptions) -> str | int | None:
    """Return the version that is replaced: that of the file or, where somebody agrees to the difference, the shown one.

    Raise Conflict when the answer is no, BadInput for a file without a version where nobody can be asked.
    """
    if confirmation.is_terminal():
        confirmation.require_confirmation(f"Change {name}?", yes=asked.yes)
        return current if given is None else given
    if given is None and current is not None and not asked.force:
        raise BadInput(
            f"{asked.file}: expected the version of the {name} that it was made from, got none; it is {current} now. "
            "Begin with what 'virtcloud topology show' prints, or pass --force to replace whatever is there"
        )
    return given
