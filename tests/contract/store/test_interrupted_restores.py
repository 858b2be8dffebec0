"""A killed restore or migration, or a full disk, leaves the database unchanged."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, event, select
from support.sbf_fakes.restores import HOUR, back_up, restore
from support.sbf_fakes.world import World, spec

from sbf_service.__main__ import main
from sbf_service.store.connections.database import explain_error, make_engine
from sbf_service.store.maintenance import restore as restores
from sbf_service.store.maintenance.backup_format import BackupFile
from sbf_service.store.maintenance.database_migration import is_migrated_to_newest, migrate
from sbf_service.store.maintenance.restore import restore_backup
from sbf_service.store.tables.cluster_tables import ClusterRow
from virtcloud.model.errors import BadInput

KILLED_AFTER_THE_ROWS = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
from sbf_service.store.maintenance import restore
from sbf_service.store.maintenance.backup_format import open_backup
from sbf_service.store.connections.database import make_engine
restore._count_rows = lambda *_arguments: os.kill(os.getpid(), signal.SIGKILL)
backup = open_backup(Path(sys.argv[2]))
restore.restore_backup(make_engine(sys.argv[1]), backup, replace=True, grace=timedelta(hours=1), who="root@sbf")
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    is_sqlite = request.param == "sqlite"
    made = World(f"sqlite:///{tmp_path / 'sbf.db'}" if is_sqlite else str(request.getfixturevalue("postgresql")))
    made.furnish()
    yield made
    made.close()


def keys(world: World) -> list[str]:
    with world.store.read() as unit:
        return list(unit.session.scalars(select(ClusterRow.key).order_by(ClusterRow.key)))


def killed_restore(world: World, backup: BackupFile) -> int:
    command = [sys.executable, "-c", KILLED_AFTER_THE_ROWS, world.database, str(backup.path)]
    return subprocess.run(command, check=False, timeout=60).returncode  # noqa: S603 - our own


def test_a_restore_that_is_killed_changes_nothing(world: World, tmp_path: Path) -> None:
    world.put("before", spec("brno-h1"))
    backup = back_up(world, tmp_path)
    world.put("after", spec("brno-h2"))
    assert killed_restore(world, backup) == -signal.SIGKILL
    assert keys(world) == ["after", "before"]
    restore(backup, world.database, replace=True)
    assert keys(world) == ["before"]


def test_a_failed_restore_leaves_the_file_of_a_starting_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A starting service opens the database file during the restore, and migrates it after the restore has failed."""
    made = World(f"sqlite:///{tmp_path / 'sbf.db'}")
    backup = back_up(made, tmp_path)
    made.close()
    (tmp_path / "sbf.toml").write_text(f'database = "sqlite:///{tmp_path}/new.db"\n')
    service = make_engine(f"sqlite:///{tmp_path}/new.db")
    (tmp_path / "new.db").unlink()

    def open_and_fail(*_: object) -> dict[str, int]:
        with service.connect():
            return {}

    monkeypatch.setattr(restores, "_count_rows", open_and_fail)
    result = CliRunner().invoke(main, ["restore", str(backup.path), "--config", str(tmp_path / "sbf.toml")])
    assert (result.exit_code, "the database was left unchanged" in result.stderr) == (2, True)
    migrate(service)
    service.dispose()
    reopened = make_engine(f"sqlite:///{tmp_path}/new.db")
    with reopened.connect() as connection:
        assert is_migrated_to_newest(connection)
    reopened.dispose()


def limit_size(engine: Engine, pages: int) -> None:
    """Limit a SQLite file to ``pages`` pages. If the file would become larger, SQLite reports a full disk."""
    event.listen(engine, "connect", lambda connection, _entry: connection.execute(f"PRAGMA max_page_count={pages}"))


def test_a_migration_on_a_full_disk_names_the_remedy(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    limit_size(engine, 10)
    with pytest.raises(
        BadInput, match=r"disk is full; free space on the database's disk, and repeat the command; nothing was"
    ):
        migrate(engine)
    engine.dispose()
    unlimited = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    migrate(unlimited)
    unlimited.dispose()


def test_a_restore_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    made = World(f"sqlite:///{tmp_path / 'sbf.db'}")
    made.furnish()
    backup = back_up(made, tmp_path)
    made.close()
    target = f"sqlite:///{tmp_path / 'small.db'}"
    engine = make_engine(target)
    limit_size(engine, 10)
    with pytest.raises(
        BadInput, match=r"disk is full; free space on the database's disk.*the database was left unchanged"
    ):
        restore_backup(engine, backup, replace=False, grace=HOUR, who="root@sbf")
    engine.dispose()
    assert restore(backup, target).rows == backup.rows


PASSFILE_REMEDY = (
    "write a line for this host, port, database and role to the 'passfile' of the setting 'database'; the file needs "
    "mode 0600, and must belong to SBF's user"
)
CERTIFICATE_REMEDY = (
    "copy the certificate of the server, or its authority, to the file 'sslrootcert' of the setting 'database', and "
    "let SBF's user read this file"
)


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("connection failed: Connection refused", "start the database server, or correct the setting 'database'"),
        ("failed to resolve host 'db': Name or service not known", "correct the host in the setting 'database'"),
        ("could not extend file: No space left on device", "free space on the database's disk, and repeat the command"),
        ("canceling statement due to lock timeout", "wait until the other program that uses the database has ended"),
        ("database is locked", "wait until the other program that uses the database has ended"),
        ("disk I/O error", "free space on the database's disk, or replace the disk, and repeat the command"),
        ("unknown error", "check the address and the rights of the database"),
        ("connection failed: fe_sendauth: no password supplied", PASSFILE_REMEDY),
        (
            'FATAL: password authentication failed for user "sbf" password retrieved from file "/etc/virtcloud/pgpass"',
            "correct the password in the setting 'database' or in its 'passfile'",
        ),
        (
            'root certificate file "/etc/virtcloud/database.crt" does not exist Either provide the file, …',
            CERTIFICATE_REMEDY,
        ),
        ("SSL error: certificate verify failed", CERTIFICATE_REMEDY),
        (
            'server certificate for "db.example.org" (and 1 other name) does not match host name "10.99.0.13"',
            "use a name of the server's certificate as the host in the setting 'database'",
        ),
        (
            'FATAL: no pg_hba.conf entry for host "10.99.0.12", user "sbf", database "sbf", SSL encryption',
            "permit SBF's role to log in from this machine, in the server's file pg_hba.conf",
        ),
        (
            'FATAL: password authentication failed for user "sbf" … All failures were: … Connection refused …',
            "correct the password in the setting 'database' or in its 'passfile'",
        ),
    ],
)
def test_an_error_of_the_database_has_a_remedy(cause: str, remedy: str) -> None:
    assert explain_error(OSError(cause)) == f"{cause}; {remedy}"
