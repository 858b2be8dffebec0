"""``virtcloud cluster verify``: check the paths between a cluster's hosts."""

from collections.abc import Iterator

import click

from virtcloud.cli import printing
from virtcloud.cli.groups import EXIT_FAILED, SummaryCommand
from virtcloud.cli.options import open_client
from virtcloud.model.message_text import count_of
from virtcloud.model.path_check import SMALL_BYTES, ClusterVerification, PathResult, PathSection, VerifiedPath

COLUMNS = ("from", "to", "result", "frames are lost")


@click.command("verify", cls=SummaryCommand)
@click.argument("key")
@printing.json_option
@click.pass_context
def verify_command(context: click.Context, key: str, as_json: bool) -> None:
    """Send packets of full size between all pairs of hosts of the cluster KEY, and show which pairs fail.

    The hosts of the cluster exchange frames in the cluster's VLAN. No element fragments these frames, and the guests
    need no software. For each pair that fails, the command shows the part of the path where frames are lost. The exit
    code is 1 if a pair fails or a host does not take part.

    Example: virtcloud cluster verify demo
    """
    from rich.console import Console  # noqa: PLC0415 - few commands need rich, which takes 0.05 s to import

    cluster = open_client(context).get(key)
    with Console(stderr=True).status(f"the hosts of cluster {key} exchange frames"):
        found = cluster.verify()
    if as_json:
        printing.print_json(found)
    else:
        print_verification(found)
    if not found.passed:
        context.exit(EXIT_FAILED)


def print_verification(found: ClusterVerification) -> None:
    """Print the failed paths, the hosts that did not take part, and a summary."""
    if found.failed:
        rows = [(path.source, path.target, _describe_result(path, found), _locate(path)) for path in found.failed]
        printing.print_table(COLUMNS, rows, "")
        click.echo()
    for host in found.unverified:
        click.echo(f"host {host.host} did not take part: {host.reason}")
    for note in found.notes:
        click.echo(note)
    click.echo(_summarize(found))


def _summarize(found: ClusterVerification) -> str:
    if not found.paths:
        return f"cluster {found.key}: no path was checked, because fewer than two hosts took part"
    if len(set(found.mtus.values())) > 1:
        mtus = ", ".join(f"{mtu} on {host}" for host, mtu in found.mtus.items())
        click.echo(f"the MTU of the cluster's bridge differs: {mtus}")
    hosts = {path.source for path in found.paths}
    checked = f"{count_of(len(found.paths), 'path')} between {count_of(len(hosts), 'host')}"
    if found.failed:
        return f"cluster {found.key}: {len(found.failed)} of {checked} failed with packets of {found.mtu} bytes"
    return f"cluster {found.key}: {checked} carry packets of {found.mtu} bytes"


def _describe_result(path: VerifiedPath, found: ClusterVerification) -> str:
    match path.result:
        case PathResult.NOTHING_PASSES:
            return "nothing passes"
        case PathResult.ONLY_SMALL:
            return f"packets of {SMALL_BYTES} bytes pass, packets of {found.mtu} bytes do not (MTU)"
        case PathResult.NO_BROADCAST:
            return "no broadcast passes"
        case PathResult.DUPLICATES if path.source == path.target:
            return "its own broadcasts come back (loop)"
        case PathResult.DUPLICATES:
            return "frames arrive twice (loop)"
        case PathResult.PASSES:
            return "passes"


def _locate(path: VerifiedPath) -> str:
    return "" if path.section is None else "; ".join(_list_bounds(path.section))


def _list_bounds(section: PathSection) -> Iterator[str]:
    if section.after is not None:
        yield f"after {section.after}"
    if section.ports:
        yield f"at {' '.join(section.ports)}"
    if section.before is not None:
        yield f"before {section.before}"
