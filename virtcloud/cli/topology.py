"""``virtcloud topology``: show and replace the topology, or one site's part of the topology."""

from collections.abc import Callable, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Generic, TypeVar

import click

from virtcloud.cli import confirmation, printing
from virtcloud.cli.differences import format_yaml, unified_yaml_diff
from virtcloud.cli.groups import EXIT_FAILED, SummaryGroup
from virtcloud.cli.options import open_client
from virtcloud.cli.topology_files import (
    FileOrFolder,
    SiteFile,
    add_site,
    complete_site,
    is_site_file,
    read_complete,
    read_input,
    read_site,
    read_topology,
    write_folder,
)
from virtcloud.client.calls import ANY_VERSION
from virtcloud.client.sbf import SbfClient
from virtcloud.model.changes import ChangeDryRun
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput, NotFound
from virtcloud.model.message_text import count_of
from virtcloud.model.site import SitePart
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links

D = TypeVar("D", Topology, SitePart)
site_option = click.option("--site", metavar="NAME", help="Only this site, with the links between its own elements.")


class TopologyDifference(Document):
    """The result of ``topology diff``: the lines of the unified diff."""

    equal: bool
    difference: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyScope(Generic[D]):
    """The part of the topology that a command reads or replaces, and the API calls for this part."""

    name: str
    read: Callable[[], tuple[D, str | None]]
    preview: Callable[[D], ChangeDryRun]
    put: Callable[[D, str | None], D]
    summarize: Callable[[D], str]


def _whole_topology(sbf: SbfClient) -> TopologyScope[Topology]:
    def read() -> tuple[Topology, str | None]:
        topology, version = sbf.versioned_topology()
        return arrange_links(topology), version

    return TopologyScope("topology", read, sbf.dry_run_topology, sbf.put_topology, _summarize_topology)


def _summarize_topology(topology: Topology) -> str:
    counts = _format_counts({"site": topology.sites, "element": topology.elements, "link": topology.links})
    return f"topology {topology.name}: {counts}"


def _site_topology(sbf: SbfClient, site: str) -> TopologyScope[SitePart]:
    def summarize(part: SitePart) -> str:
        return f"site {site}: {_format_counts({'element': part.site.elements, 'link': part.links})}"

    def read() -> tuple[SitePart, str | None]:
        return sbf.site_part(site)

    return TopologyScope(f"site {site}", read, sbf.dry_run_site_part, sbf.put_site_part, summarize)


def _format_counts(items: Mapping[str, Sized]) -> str:
    return ", ".join(count_of(len(group), noun) for noun, group in items.items())


@click.group(cls=SummaryGroup)
def topology() -> None:
    """Show and set the topology: sites, elements, links and transports.

    Example: virtcloud topology set topology.yaml
    """


@topology.command("show")
@site_option
@click.option(
    "--per-site",
    "folder",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a file for each site to FOLDER, and topology.yaml with transports and links between sites.",
)
@printing.json_option
@click.pass_context
def show_(context: click.Context, site: str | None, folder: Path | None, as_json: bool) -> None:
    """Print the topology and its version as YAML, or write them to a folder.

    'topology set' accepts the YAML and the folder.

    Example: virtcloud topology show --site brno > brno.yaml

    Example: virtcloud topology show --per-site sites
    """
    sbf = open_client(context).sbf
    if folder is not None:
        if site is not None or as_json:
            raise BadInput("--per-site writes all sites: expected neither --site nor --json")
        files = write_folder(folder, *sbf.versioned_topology())
        click.echo(f"wrote {count_of(len(files), 'file')} to {folder}")
        return
    document: Topology | SitePart
    document, version = sbf.versioned_topology() if site is None else sbf.site_part(site)
    if as_json:
        printing.print_json(document)
    else:
        version_key = {} if version is None else {"version": int(version) if site is None else version}
        click.echo(format_yaml(document, **version_key), nl=False)


@topology.command("set")
@click.argument("file", metavar="FILE|FOLDER", type=FileOrFolder(encoding="utf-8-sig", errors="surrogateescape"))
@site_option
@click.option(
    "--force",
    is_flag=True,
    help="Replace any version. Changes that other users made after the version in FILE are lost.",
)
@confirmation.dry_run_option
@confirmation.yes_option
@printing.json_option
@click.pass_context
def set_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    file: IO[str] | Path,
    *,
    site: str | None,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Replace the topology, or one site's part, by the content of FILE (YAML or JSON; '-' is stdin) or FOLDER.

    FOLDER is the output of 'topology show --per-site'. A FILE with the part of one new site, such as the draft of 'site
    import', adds this site.

    Elements that carry clusters cannot be removed. FILE contains the 'version' that 'topology show' printed. If the
    current version is later, SBF refuses the file. The command first shows the difference and reads the switches and
    edges that would change. Before a change of a port in other use (for something other than SBF's VLANs), the
    command asks for confirmation. On a terminal, the command asks before every change.

    Example: virtcloud topology set brno.yaml --site brno --dry-run
    """
    sbf, given = open_client(context).sbf, read_input(file)
    name = str(given) if isinstance(given, Path) else given.source
    options = _SetOptions(name, force=force, dry_run=dry_run, yes=yes, as_json=as_json)
    if site is None:
        topology, version = read_topology(sbf, given)
        _replace(_whole_topology(sbf), topology, version, options)
    else:
        part, part_version = read_site(given, site)
        _replace(_site_topology(sbf, site), part, part_version, options)


@topology.command("diff")
@click.argument("file", metavar="FILE|FOLDER", type=FileOrFolder(encoding="utf-8-sig", errors="surrogateescape"))
@site_option
@printing.json_option
@click.pass_context
def diff(context: click.Context, /, file: IO[str] | Path, *, site: str | None, as_json: bool) -> None:
    """Compare the topology in FILE or FOLDER with SBF's topology. The command reads no device and changes nothing.

    The exit code is 0 if the topologies are equal, and 1 if they differ. 'topology set --dry-run' also shows the
    changes on devices and the changes of clusters' paths.

    Example: virtcloud topology diff sites
    """
    sbf, given = open_client(context).sbf, read_input(file)
    if site is None:
        text = _compare(_whole_topology(sbf), read_topology(sbf, given)[0])
    else:
        text = _compare(_site_topology(sbf, site), read_site(given, site)[0])
    if as_json:
        printing.print_json(TopologyDifference(equal=not text, difference=tuple(text.splitlines())))
    else:
        click.echo(text or "no difference")
    context.exit(EXIT_FAILED if text else 0)


@topology.command("check")
@click.argument("file", metavar="FILE|FOLDER", type=FileOrFolder(encoding="utf-8-sig", errors="surrogateescape"))
@printing.json_option
@click.pass_context
def check(context: click.Context, /, file: IO[str] | Path, *, as_json: bool) -> None:
    """Check the topology in FILE or FOLDER without changing anything.

    If FILE contains one site with attachments to transports, the site is checked together with SBF's topology. Any
    other FILE, and a FOLDER, is checked without SBF. With 'topology set --dry-run', SBF also checks the platforms,
    addresses and credentials of switches and edges, and reads these devices.

    Example: virtcloud topology check sites
    """
    given = read_input(file)
    if isinstance(given, Path) or not is_site_file(given):
        checked, _ = read_complete(given)
    else:
        part = given.read(SiteFile)
        checked = complete_site(open_client(context).sbf, part)[0] if part.site.attachments else add_site(None, part)
    printing.print_json(checked) if as_json else click.echo(_summarize_topology(checked))


@dataclass(frozen=True, slots=True)
class _SetOptions:
    file: str
    force: bool
    dry_run: bool
    yes: bool
    as_json: bool


def _compare(scope: TopologyScope[D], wanted: D) -> str:
    former = None
    with suppress(NotFound):
        former, _ = scope.read()
    return unified_yaml_diff(former, wanted, scope.name)


def _replace(scope: TopologyScope[D], wanted: D, version: str | int | None, options: _SetOptions) -> None:
    former, current = None, None
    with suppress(NotFound):
        former, current = scope.read()
    text = unified_yaml_diff(former, wanted, scope.name)
    is_change = bool(text) and former is not None
    if is_change and version is None and not options.dry_run:
        _check_missing_version(scope.name, current, options)
    dry_run = scope.preview(wanted)
    if options.dry_run:
        if text and not options.as_json:
            click.echo(text)
        confirmation.print_dry_run(dry_run, as_json=options.as_json)
        return
    if is_change:
        click.echo(text, err=True)
    confirmation.confirm_change(dry_run, yes=options.yes)
    if is_change and confirmation.is_terminal():
        confirmation.require_confirmation(f"Change {scope.name}?", yes=options.yes)
        version = current if version is None else version
    replaced = scope.put(wanted, ANY_VERSION if options.force else None if version is None else str(version))
    printing.print_json(replaced) if options.as_json else click.echo(scope.summarize(replaced))


def _check_missing_version(name: str, current: str | None, options: _SetOptions) -> None:
    """Raise BadInput unless a file without a version may replace the current document.

    The file may replace the document in three cases: with ``--force``, on a terminal (where the user confirms the
    change), and if SBF is too old to send versions (``current`` is None).
    """
    if current is not None and not options.force and not confirmation.is_terminal():
        raise BadInput(
            f"{options.file}: expected the version of the {name} on which the file is based, got none; the current "
            f"version is {current}. Begin with the output of 'virtcloud topology show', or replace any version: --force"
        )
