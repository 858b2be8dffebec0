"""``virtcloud netbox``: compare SBF's topology and pools with NetBox, and import them from NetBox."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import click

from virtcloud.cli import confirmation, printing
from virtcloud.cli.differences import format_yaml, unified_yaml_diff
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import name_of, open_client
from virtcloud.client.sbf import SbfClient
from virtcloud.model.document import Document
from virtcloud.model.element_views import Pool
from virtcloud.model.errors import BadInput, Conflict, ElementError, NotFound, VirtcloudError
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import share_parts
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.yaml_document import read_document
from virtcloud.netbox.merging import NetBoxMerge, merge
from virtcloud.netbox.reading import read_netbox
from virtcloud.netbox.settings import NetBoxFile
from virtcloud.netbox.translation import translate

prune_option = click.option("--prune", is_flag=True, help="Remove switches, hosts and links that NetBox lacks.")


class PoolChange(Document):
    """A site's pool in SBF and in NetBox."""

    former: VlanSet
    wanted: VlanSet


class NetBoxDifference(Document):
    """The difference between SBF and NetBox, as JSON output."""

    topology: str
    """The unified diff of the topologies; empty if they are equal."""
    pools: dict[Name, PoolChange]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """SBF's topology with its version, the merge with NetBox, and the pools that differ."""

    former: Topology | None
    version: str | None
    merged: NetBoxMerge
    pools: dict[Name, PoolChange]

    @property
    def diff(self) -> str:
        """The unified diff of the topologies."""
        return unified_yaml_diff(self.former, self.merged.topology, "topology")

    @property
    def differs(self) -> bool:
        """Whether NetBox and SBF differ."""
        return bool(self.pools) or self.former != self.merged.topology

    @property
    def new_sites(self) -> frozenset[Name]:
        """The sites that SBF's topology does not contain yet."""
        known = {site.name for site in self.former.sites} if self.former else set()
        return frozenset(self.merged.pools.keys() - known)


@click.group(cls=SummaryGroup)
def netbox() -> None:
    """Compare sites, cables and pools with NetBox, and import them.

    Example: virtcloud netbox diff netbox.yaml
    """


@netbox.command()
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="surrogateescape"))
@prune_option
@printing.json_option
@click.pass_context
def diff(context: click.Context, file: IO[str], *, prune: bool, as_json: bool) -> None:
    """Show what an import from NetBox would change. Nothing is changed, neither in NetBox nor in SBF.

    FILE (YAML) names the address of NetBox, the token's file, the sites, and the roles of switches and hosts. The exit
    code is 1 if NetBox and SBF differ.

    Example: virtcloud netbox diff netbox.yaml
    """
    comparison = _compare(open_client(context).sbf, file, prune=prune)
    _print(comparison, as_json=as_json)
    if comparison.differs:
        raise ElementError("NetBox and SBF differ")


@netbox.command("import")
@click.argument("file", type=click.File(encoding="utf-8-sig", errors="surrogateescape"))
@prune_option
@click.option(
    "--write", "draft", metavar="DRAFT", type=click.Path(path_type=Path), help="Write the topology to this new file."
)
@confirmation.yes_option
@printing.json_option
@click.pass_context
def import_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context, /, file: IO[str], *, prune: bool, draft: Path | None, yes: bool, as_json: bool
) -> None:
    """Replace SBF's topology and pools by NetBox's, after a confirmation; or write a draft of the topology.

    The command does not change transports, attachments, gateways and other data that NetBox does not contain. SBF
    refuses to remove elements and VLAN IDs that clusters use. NetBox is not changed.

    Example: virtcloud netbox import netbox.yaml
    """
    sbf = open_client(context).sbf
    comparison = _compare(sbf, file, prune=prune)
    _print(comparison, as_json=as_json)
    if draft is not None:
        _write(draft, comparison, as_json=as_json)
        return
    if not comparison.differs:
        return
    dry_run = sbf.dry_run_topology(comparison.merged.topology)
    confirmation.confirm_change(dry_run, yes=yes)
    confirmation.require_confirmation("Change SBF's topology and pools?", yes=yes)
    if comparison.former != comparison.merged.topology:
        sbf.put_topology(comparison.merged.topology, comparison.version)
    _put_pools(sbf, comparison.pools, comparison.new_sites)
    click.echo("SBF's topology and pools are those of NetBox", err=as_json)


def _put_pools(sbf: SbfClient, pools: Mapping[Name, PoolChange], new_sites: Collection[Name] = ()) -> None:
    """Change all pools. After the last change, raise ElementError if some changes failed.

    A pool that was changed since the comparison is not replaced, except the pools of ``new_sites``, the sites that are
    new in SBF's topology. SBF may still have the pool of such a site from an earlier topology.
    """
    failed = []
    for site, change in pools.items():
        try:
            _put_pool(sbf, site, change, is_new=site in new_sites)
        except VirtcloudError as error:
            failed.append(f"pool of {site}: {error}")
    if failed:
        raise ElementError(
            f"SBF's topology is that of NetBox, but {len(failed)} of {len(pools)} pools were not changed. Correct the "
            "errors, and import again:\n" + "\n".join(failed)
        )


def _put_pool(sbf: SbfClient, site: Name, change: PoolChange, *, is_new: bool) -> None:
    pool, version = sbf.versioned_pool(site)
    current = pool.vlans
    if current == change.wanted:
        return
    if current != change.former and not is_new:
        raise Conflict(
            f"expected {change.former or 'no VLAN IDs'} as in the comparison, found {current or 'no VLAN IDs'}: "
            "another call changed this pool in between"
        )
    sbf.put_pool(site, Pool(vlans=change.wanted), version)


def _compare(sbf: SbfClient, file: IO[str], *, prune: bool) -> Comparison:
    settings = read_document(file.read(), name_of(file), NetBoxFile)
    former, version = None, None
    with suppress(NotFound):
        former, version = sbf.versioned_topology()
    merged = merge(translate(settings, read_netbox(settings)), former, prune=prune)
    if former is not None:  # links in another order are no difference
        merged = replace(merged, topology=share_parts(merged.topology, former))
    known = {site.name for site in former.sites} if former else set()
    pools = {}
    for site, wanted in merged.pools.items():
        current = sbf.pool(site).vlans if site in known else VlanSet()
        if current != wanted:
            pools[site] = PoolChange(former=current, wanted=wanted)
    return Comparison(former, version, merged, pools)


def _print(comparison: Comparison, *, as_json: bool) -> None:
    if as_json:
        notes, pools = comparison.merged.notes, comparison.pools
        printing.print_json(NetBoxDifference(topology=comparison.diff, pools=pools, notes=notes))
        return
    if comparison.diff:
        click.echo(comparison.diff)
    for site, change in comparison.pools.items():
        added, removed = change.wanted - change.former, change.former - change.wanted
        click.echo(f"pool of {site}: {f'+ {added} ' if added else ''}{f'- {removed}' if removed else ''}".rstrip())
    for note in comparison.merged.notes:
        click.echo(f"- {note}")
    if not comparison.differs:
        click.echo("NetBox and SBF agree")


def _write(draft: Path, comparison: Comparison, *, as_json: bool) -> None:
    version = {} if comparison.version is None else {"version": int(comparison.version)}
    pools = [f"# virtcloud pool set {site} {change.wanted}" for site, change in comparison.pools.items()]
    text = "\n".join([*pools, format_yaml(comparison.merged.topology, **version)])
    try:
        with draft.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise BadInput(f"--write {draft}: cannot be written: {error.strerror}") from error
    check = f"virtcloud topology set {draft} --dry-run"
    click.echo(f"the draft is in {draft}; nothing was changed. Check it: {check}", err=as_json)
