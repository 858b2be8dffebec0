"""Tests of the errors and log lines for statements that the database refuses."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sbf_fakes.world import World
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from sbf_service.__main__ import main
from sbf_service.store.database import make_engine
from sbf_service.store.service_tables import ReplicaRow
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
