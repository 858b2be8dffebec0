"""``virtcloud cluster cp``: copies of files and folders to and from the guests of a cluster."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from virtcloud.cli import groups
from virtcloud.cli.cluster_run import fan_out_options
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import open_client, split_names
from virtcloud.client.fan_out import FanOutProgress, ShowFanOut
from virtcloud.client.guest_commands import find_batch_logins
from virtcloud.client.guest_copies import RemotePath, get_files, list_sources, parse_copy_path, put_files
from virtcloud.client.ssh_arguments import ClusterLogins, SshOptions, open_logins
from virtcloud.model.errors import BadInput, GuestsFailed
from virtcloud.model.message_text import count_of


@click.command(cls=SummaryCommand)
@click.argument("key")
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.argument("destination", metavar="DEST")
@fan_out_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: for each guest the reason of a failure, or null.")
@click.pass_context
def cp(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    *,
    sources: tuple[str, ...],
    destination: str,
    guests: tuple[str, ...],
    timeout: float | None,
    jobs: int,
    user: str | None,
    identity: str | None,
    options: tuple[str, ...],
    through: Literal["sbf", "gateway"] | None,
    as_json: bool,
) -> None:
    """Copy files and folders between this machine and the guests of the cluster KEY, over ssh.

    ':path' is a path in all guests, or in the guests of --guest. 'NAME:path' is a path in one guest. In guests, a path
    without a slash at its beginning is relative to the user's home. Copies from ':path' or from several guests go
    to a separate folder for each guest: DEST/NAME.

    Folders are copied with their content, permissions and times. An existing file is replaced after the last byte
    has arrived. An interrupted copy leaves no incomplete file.

    Example: virtcloud cluster cp demo prepare.sh data :

    Example: virtcloud cluster cp demo ':/var/log/app/*.log' logs

    Example: virtcloud cluster cp demo g1:result.csv .
    """
    paths = [parse_copy_path(source) for source in sources]
    target = _parse_target(destination)
    names = split_names(guests, "--guest", "guests")
    client = open_client(context)
    with groups.exiting_at_signals(), open_logins(client.sbf, key) as logins, _show_progress() as show:
        copy = GuestCopy(logins, SshOptions(user, identity, options, through), names, jobs, timeout, show)
        try:
            failed = copy.run(paths, target)
        except KeyboardInterrupt:
            groups.exit_interrupted(context, "interrupted; files of unfinished copies were not changed")
    _report(copy.guests, failed, "to" if isinstance(target, RemotePath) else "from", as_json=as_json)


def _report(guests: Collection[str], failed: GuestsFailed | None, direction: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({name: failed.failures.get(name) if failed else None for name in guests}, indent=2))
    if failed:
        raise failed
    if not as_json:
        click.echo(f"copied {direction} {count_of(len(guests), 'guest')}", err=True)


def _parse_target(destination: str) -> RemotePath | Path:
    target = parse_copy_path(destination)
    if isinstance(target, Path) and destination.endswith("/") and not target.is_dir():
        raise BadInput(f"{destination}: expected a folder, found none; create it first: mkdir {destination}")
    return target


class GuestCopy:
    """A copy between this machine and guests, with the options of the command ``cluster cp``."""

    def __init__(  # noqa: PLR0913, PLR0917 - the options of the command
        self,
        logins: ClusterLogins,
        options: SshOptions,
        names: Sequence[str],
        jobs: int,
        timeout: float | None,
        show: ShowFanOut,
    ) -> None:
        """Store the options. ``jobs`` is the maximum number of simultaneous copies.

        ``timeout`` is in seconds, for each guest. ``names`` are the guests of ``--guest``.
        """
        self._logins = logins
        self._options = options
        self._names = names
        self._limits = jobs, timeout, show
        self.guests: list[str] = []

    def run(self, sources: Sequence[RemotePath | Path], target: RemotePath | Path) -> GuestsFailed | None:
        """Copy from this machine to guests, or from guests to this machine. Return the failures, or None.

        Raise BadInput unless all sources are on this machine and the target is in guests, or the reverse. Also raise
        BadInput if a path names a guest although the user has set ``--guest``.
        """
        try:
            self._copy(sources, target)
        except GuestsFailed as error:
            return error
        return None

    def _copy(self, sources: Sequence[RemotePath | Path], target: RemotePath | Path) -> None:
        local = [source for source in sources if isinstance(source, Path)]
        remote = [source for source in sources if isinstance(source, RemotePath)]
        if isinstance(target, RemotePath) and not remote:
            self._put(local, target)
        elif isinstance(target, Path) and not local:
            self._get(remote, target)
        else:
            raise BadInput(
                "expected local sources and a destination in guests (NAME:path, or :path for all guests), or sources "
                "in guests and a local destination; between guests, use scp inside a guest"
            )

    def _find(self, guests: set[str | None]) -> Mapping[str, Sequence[str]]:
        if self._names and guests != {None}:
            raise BadInput("expected either --guest with :path, or NAME:path, got both")
        chosen = list(self._names) if None in guests else sorted(name for name in guests if name)
        found = find_batch_logins(self._logins, self._options, chosen)
        self.guests = list(found)
        return found

    def _put(self, sources: Sequence[Path], target: RemotePath) -> None:
        files = list_sources(sources)
        logins = self._find({target.guest})
        put_files(logins, files, target.path, *self._limits)

    def _get(self, sources: Sequence[RemotePath], target: Path) -> None:
        logins = self._find({source.guest for source in sources})
        remotes = {name: [source.path for source in sources if source.guest in {None, name}] for name in logins}
        is_one = len(logins) == 1 and all(source.guest for source in sources)
        get_files(logins, remotes, target, *self._limits, folder_for_each=not is_one)


@contextmanager
def _show_progress() -> Iterator[ShowFanOut]:
    from rich.console import Console  # noqa: PLC0415 - few commands need rich, which takes 0.05 s to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("copying", total=None)

        def show(progress: FanOutProgress) -> None:
            bar.update(task, total=progress.total, completed=progress.ended)

        yield show
