import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from support.sbf_fakes.http_calls import ask, problem
from support.sbf_fakes.world import World, make_world

from sbf_service.__main__ import main
from sbf_service.store.connections.database import make_engine
from sbf_service.store.connections.database_errors import make_unavailable
from sbf_service.store.tables.service_tables import ReplicaRow
from virtcloud.model.errors import Conflict


def test_a_violated_constraint_is_logged_with_its_name(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def add_twice() -> None:
        with world.store.change_row() as unit:
            unit.session.add_all([ReplicaRow(name="r1", wrote_at=unit.now) for _ in range(2)])

    with pytest.raises(Conflict):
        add_twice()
    (line,) = [line for line in caplog.messages if "rows_changed_concurrently" in line]
    assert "replicas" in line
    assert "r1" not in line


def test_the_message_of_a_failed_statement_contains_no_values(world: World) -> None:
    with world.store.engine.connect() as connection, pytest.raises(SQLAlchemyError) as failed:
        connection.execute(text("INSERT INTO missing VALUES (:secret)"), {"secret": "hunter2"})
    assert "hunter2" not in str(failed.value)


COMMANDS = [("backup", "x"), ("prune",), ("upgrade",), ("upgrade", "--check")]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_name_a_remedy_for_an_unreachable_database(words: tuple[str, ...], tmp_path: Path) -> None:
    (config := tmp_path / "sbf.toml").write_text('database = "postgresql://sbf@127.0.0.1:1/sbf"\n')
    done = CliRunner().invoke(main, [*words, "--config", str(config)])
    assert done.exit_code == 2
    assert "Connection refused" in done.stderr
    assert "; start the database server, or correct the setting 'database'" in done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_name_a_remedy_for_a_damaged_sqlite_file(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "sbf.db").write_text("not written by SQLite")
    (config := tmp_path / "sbf.toml").write_text(f'database = "sqlite:///{tmp_path}/sbf.db"\n')
    done = CliRunner().invoke(main, [*words, "--config", str(config)])
    assert done.exit_code == 2
    assert "; correct the setting 'database', or move the damaged file to another folder and restore" in done.stderr


def damage(folder: Path) -> World:
    world = make_world(folder)
    world.furnish()
    world.store.engine.dispose()
    for path in folder.glob("sbf.db*"):
        path.write_bytes(b"not written by SQLite" * 1000)
    return world


def test_the_error_distinguishes_a_damaged_file_from_an_unreachable_database(tmp_path: Path) -> None:
    world = damage(tmp_path)
    status, slug, detail = problem(ask(world, "GET", "/v1/clusters"))
    assert (status, slug) == (503, "database-unavailable")
    assert detail == (
        "the file of the database is damaged (file is not a database): an administrator must stop SBF and restore a "
        "backup (sbf restore)"
    )


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (sqlite3.DatabaseError("database disk image is malformed"), "the file of the database is damaged (database"),
        (sqlite3.OperationalError("disk I/O error"), "the disk of the database reports an error (disk I/O error): an"),
        (
            sqlite3.OperationalError("database or disk is full"),
            "the disk of the database is full (database or disk is full): an administrator must free space on the disk",
        ),
        (sqlite3.OperationalError("database is locked"), "the database does not answer: try again later"),
        (
            psycopg.errors.DiskFull('could not extend file "base/5/1259": No space left on device\nHINT: Check free'),
            'the disk of the database is full (could not extend file "base/5/1259": No space left on device): an admin',
        ),
        (psycopg.OperationalError("malformed"), "the database does not answer: try again later"),
    ],
)
def test_the_error_distinguishes_faults_of_the_file_and_its_disk(cause: Exception, text: str) -> None:
    assert str(make_unavailable(OperationalError(None, None, cause))).startswith(text)


def test_a_first_connection_waits_for_another_programs_first_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another program writes, SQLite can immediately refuse to enable the write-ahead log. SBF then retries."""
    engine = make_engine(f"sqlite:///{tmp_path}/sbf.db")
    with closing(sqlite3.connect(tmp_path / "sbf.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(time, "sleep", lambda _: other.execute("COMMIT"))
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
    engine.dispose()
