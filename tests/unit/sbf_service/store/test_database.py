"""Tests of SQLite database files: their access rights, and files that change while SBF runs."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from sbf_service.store.connections.database import make_engine


def _modes(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mode & 0o777 for one in folder.iterdir()}


@pytest.fixture
def ordinary_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("ordinary_umask")
def test_a_new_database_is_read_by_its_owner_only(tmp_path: Path) -> None:
    """The file mode also applies to the files that SQLite creates next to the open database."""
    with make_engine(f"sqlite:///{tmp_path}/sbf.db").connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")
        assert _modes(tmp_path) == {"sbf.db": 0o600, "sbf.db-wal": 0o600, "sbf.db-shm": 0o600}


def test_a_database_readable_by_everybody_is_restricted_to_its_owner(tmp_path: Path) -> None:
    """In an old version of SBF, every user could read the database and the database's -wal and -shm files."""
    for name in ("sbf.db", "sbf.db-wal", "sbf.db-shm"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    make_engine(f"sqlite:///{tmp_path}/sbf.db")
    assert _modes(tmp_path) == {"sbf.db": 0o600, "sbf.db-wal": 0o600, "sbf.db-shm": 0o600}


def test_an_existing_database_file_keeps_its_group(tmp_path: Path) -> None:
    (tmp_path / "sbf.db").touch()
    (tmp_path / "sbf.db").chmod(0o640)
    make_engine(f"sqlite:///{tmp_path}/sbf.db")
    assert _modes(tmp_path) == {"sbf.db": 0o640}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda _file: None, "No such file or directory"),
        (lambda file: file.mkdir(), "another file"),
        (lambda file: shutil.copy(file.with_name("former.db"), file), "another file"),
    ],
    ids=["deleted", "a folder", "a copy"],
)
def test_a_file_that_replaced_the_opened_database_is_not_used(
    tmp_path: Path, change: Callable[[Path], object], found: str
) -> None:
    """Without a check, SQLite would write new rows to the renamed file, and SBF would lose them at its next start."""
    file = tmp_path / "sbf.db"
    engine = make_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (n INTEGER)")
    file.rename(tmp_path / "former.db")
    change(file)
    for _ in range(2):
        with (
            engine.connect() as connection,
            pytest.raises(OperationalError, match=f"at its start, found: {found}; put"),
        ):
            connection.exec_driver_sql("INSERT INTO t VALUES (1)")
    if file.is_dir():
        file.rmdir()
    (tmp_path / "former.db").replace(file)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO t VALUES (2)")
        assert connection.exec_driver_sql("SELECT n FROM t").all() == [(2,)]
    engine.dispose()


def test_a_new_connection_leaves_the_log_of_a_moved_file(tmp_path: Path) -> None:
    """Without a check, SQLite would create an empty file, and delete the log.

    The log contains committed rows that the moved file does not contain yet.
    """
    file = tmp_path / "sbf.db"
    engine = make_engine(f"sqlite:///{file}")
    with engine.connect() as first:
        with first.begin():
            first.exec_driver_sql("CREATE TABLE t (n INTEGER)")
            first.exec_driver_sql("INSERT INTO t VALUES (1)")
        file.rename(tmp_path / "former.db")
        with pytest.raises(OperationalError, match="found: No such file or directory; put"):
            engine.connect()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["former.db", "sbf.db-shm", "sbf.db-wal"]
        (tmp_path / "former.db").replace(file)
        with engine.begin() as second:
            assert second.exec_driver_sql("SELECT n FROM t").all() == [(1,)]
    engine.dispose()
