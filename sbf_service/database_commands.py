"""The commands on the service's database: ``sbf backup``, ``restore``, ``prune`` and ``upgrade``."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import click
from sqlalchemy import Engine

from sbf_service.command_options import CONFIG, describe_database, load_settings, name_caller, report_bad_input
from sbf_service.local_files import ensure_database_file
from sbf_service.store.connections.database import make_engine
from sbf_service.store.connections.replica_lock import hold_whole_database
from sbf_service.store.maintenance.database_migration import check_migrated, migrate
from sbf_service.store.maintenance.metric_counts import BACKUP_TIME, record_service_time
from sbf_service.store.store import Store
from virtcloud.model.errors import BadInput, VirtcloudError
from virtcloud.model.message_text import count_of
from virtcloud.model.values import format_utc
from virtcloud.otlp_tracing import check_packages

DEFAULT_GRACE_MINUTES = 60
PATH = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("file", type=PATH)
@CONFIG
def backup(file: Path, config: Path | None) -> None:
    """Write a backup of the database to FILE. SBF need not be stopped.

    FILE contains the hashes of tokens, the clusters and names of all users, and the secrets from which SBF derives the
    keys of guests and VPNs. FILE has mode 0600: store FILE like a private key. FILE does not contain the settings, the
    secrets of devices or the files of images.

    Example: sbf backup /var/backups/sbf-$(date +%F).backup
    """
    from sbf_service.store.maintenance.backup import write_backup  # noqa: PLC0415 - other commands do not need it

    with report_bad_input():
        engine = make_engine(load_settings(config).database, create=False)
        taken_at, rows = write_backup(engine, file)
        _record_backup_time(engine, taken_at)
        engine.dispose()
    click.echo(
        f"{file}: {count_of(sum(rows.values()), 'row')} of {count_of(len(rows), 'table')} at {format_utc(taken_at)}"
    )


def _record_backup_time(engine: Engine, taken_at: datetime) -> None:
    try:
        with Store(engine).change_row() as unit:
            record_service_time(unit, BACKUP_TIME, taken_at)
    except VirtcloudError as error:
        click.echo(f"warning: the backup is complete, but its time is missing in the metrics: {error}", err=True)


@click.command()
@click.argument("file", type=PATH)
@click.option("--replace", is_flag=True, help="Replace all rows of a database that is not empty.")
@click.option(
    "--grace",
    type=click.IntRange(0, 60 * 24 * 30),
    default=DEFAULT_GRACE_MINUTES,
    show_default=True,
    metavar="MINUTES",
    help="Minimum lease of running clusters after the restore. Extensions that were made after the backup are lost.",
)
@CONFIG
def restore(file: Path, *, replace: bool, grace: int, config: Path | None) -> None:
    """Restore the database from FILE, on this or another machine. SBF must not run.

    The settings name the database to restore. A backup of SQLite can be restored to PostgreSQL, and the reverse. If the
    restore fails, the database is unchanged. After its start, SBF reads all elements. SBF sets up no new cluster at a
    site until SBF has read the elements of the site.

    Example: sbf restore /var/backups/sbf-2026-11-23.backup
    """
    from sbf_service.store.maintenance.backup_format import open_backup  # noqa: PLC0415 - other commands do not need it
    from sbf_service.store.maintenance.restore import restore_backup  # noqa: PLC0415 - other commands do not need it

    with report_bad_input():
        settings = load_settings(config)
        checked = open_backup(file)
        ensure_database_file(settings.database)
        engine = make_engine(settings.database)
        report = restore_backup(engine, checked, replace=replace, grace=timedelta(minutes=grace), who=name_caller())
        engine.dispose()
    _print_rows(checked.rows, report.rows)
    taken_at = format_utc(report.taken_at)
    click.echo(f"restored the backup of {taken_at} into {describe_database(settings)}")
    click.echo(f"{count_of(report.elements, 'element')} must be read before new clusters start: virtcloud element list")
    click.echo(f"{count_of(report.extended, 'lease')} extended to {grace} min from now")
    click.echo(f"tokens, VPN profiles and invitations revoked after {taken_at} are valid again: virtcloud token list")


def _print_rows(expected: Mapping[str, int], restored: Mapping[str, int]) -> None:
    click.echo(f"{'table':<24} {'in the file':>12} {'restored':>12}")
    for name in sorted(expected):
        click.echo(f"{name:<24} {expected[name]:>12} {restored[name]:>12}")


@click.command()
@click.option("--dry-run", is_flag=True, help="Print how many rows the command would archive, and change nothing.")
@CONFIG
def prune(*, dry_run: bool, config: Path | None) -> None:
    """Write rows beyond the limits in [retention] to files of JSON lines, then delete these rows from the database.

    SBF need not be stopped: SBF itself archives rows once an hour. The rows of a file are deleted only when the file is
    complete and on the disk. An interrupted run loses no row.

    Example: sbf prune --dry-run
    """
    from sbf_service.store.maintenance.retention import count_old_rows, find_archive_folder  # noqa: PLC0415 - slow to load
    from sbf_service.store.maintenance.retention import prune as archive_rows  # noqa: PLC0415 - slow to load

    with report_bad_input():
        settings = load_settings(config)
        store = Store(make_engine(settings.database, create=False))
        folder = find_archive_folder(settings.retention, settings.database)
        check_migrated(store)
        if dry_run:
            with store.read() as unit:
                report = count_old_rows(unit, settings.retention)
        else:
            done = archive_rows(store, settings.retention, folder)
            if done is None:
                raise BadInput("another process archives rows of this database: try again later")
            report = done
        store.close()
    verb = "would be archived" if dry_run else "archived"
    click.echo(
        f"{count_of(report.audit, 'audit row')} and {count_of(report.clusters, 'ended cluster')} {verb} in {folder}"
    )


@click.command()
@click.option("--check", is_flag=True, help="Try the upgrade, print its result and its duration, and change nothing.")
@CONFIG
def upgrade(*, check: bool, config: Path | None) -> None:
    """Convert the database to the version of this program. SBF must be stopped.

    SBF also converts the database when SBF starts. With --check, SBF of the older version need not be stopped. On
    SQLite, --check converts a copy of the database. On PostgreSQL, --check converts the database in a transaction and
    rolls the transaction back; replicas wait until the end of this transaction. The check takes as long as the upgrade.
    --check also fails if the settings need Python packages that are not installed (telemetry.endpoint).

    The command also warns of clusters that share a VLAN ID on a transport that separates clusters only by their VLAN
    IDs. Earlier versions of SBF could create such clusters.

    Example: sbf upgrade --check
    """
    from sbf_service.store.maintenance.upgrade_check import (  # noqa: PLC0415 - slow to load
        plan_upgrade,
        read_collisions,
        try_upgrade,
    )

    with report_bad_input():
        settings = load_settings(config)
        if check:
            check_packages(settings.telemetry)
        engine = make_engine(settings.database, create=False)
        plan = plan_upgrade(engine)
        for name, description in plan.missing:
            click.echo(f"{name}  {description}")
        if not plan.missing:
            collisions = read_collisions(engine)
            click.echo("the database is of this version; nothing to do")
        elif check:
            trial = try_upgrade(engine)
            collisions = trial.collisions
            origin = plan.current or "an empty database"
            # The Ansible role sbf searches the output for "will pass".
            click.echo(f"the upgrade from {origin} will pass; the check took {trial.seconds:.1f} s")
        else:
            with hold_whole_database(engine):
                migrate(engine)
            collisions = read_collisions(engine)
            click.echo(f"the database was upgraded from {plan.current or 'an empty database'}")
        for collision in collisions:
            click.echo(f"warning: {collision}")
        engine.dispose()
