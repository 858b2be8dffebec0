"""Tests that a second service with the same name or on the same SQLite file does not start."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from sbf_service.store.connections import replica_lock
from sbf_service.store.connections.database import make_engine
from sbf_service.store.connections.replica_lock import hold_replica_name, hold_whole_database
from sbf_service.store.maintenance.database_migration import migrate
from virtcloud.model.errors import BadInput

LOCK_HOLDERS = text("SELECT pid FROM pg_locks WHERE locktype = 'advisory'")


@pytest.fixture
def engine(database: str) -> Engine:
    created = make_engine(database)
    migrate(created)
    return created


def is_free(engine: Engine, name: str) -> bool:
    try:
        with hold_replica_name(engine, name, patience=0):
            return True
    except BadInput:
        return False


def test_a_replica_name_in_use_is_refused(engine: Engine) -> None:
    with (
        hold_replica_name(engine, "one"),
        pytest.raises(BadInput, match="another service"),
        hold_replica_name(engine, "one", patience=0),
    ):
        pass
    engine.dispose()


def test_a_replica_name_is_free_after_a_stop(engine: Engine) -> None:
    with hold_replica_name(engine, "one"):
        assert not is_free(engine, "one")
    assert is_free(engine, "one")
    engine.dispose()


@pytest.mark.postgresql
def test_replicas_of_different_names_share_a_database(postgresql: str) -> None:
    engine = make_engine(postgresql)
    with hold_replica_name(engine, "one"):
        assert is_free(engine, "two")
    engine.dispose()


@pytest.mark.postgresql
def test_a_replica_keeps_its_name_after_a_restart_of_postgresql(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_lock, "LOCK_CHECK_S", 0.05)
    engine = make_engine(postgresql)
    with hold_replica_name(engine, "one"):
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            (former,) = connection.execute(LOCK_HOLDERS).scalars().all()
            connection.execute(text(f"SELECT pg_terminate_backend({former})"))
            ends = time.monotonic() + 30
            while connection.execute(LOCK_HOLDERS).scalars().all() in ([], [former]):
                assert time.monotonic() < ends, "the replica does not lock its name again"
                time.sleep(0.01)
        assert not is_free(engine, "one")
    assert is_free(engine, "one")
    engine.dispose()


def test_a_lock_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "sbf.db.lock").mkdir()
    engine = make_engine(f"sqlite:///{tmp_path}/sbf.db")
    expected = r"sbf\.db\.lock: .* Is a directory; run this command as the service's user"
    with ExitStack() as stack, pytest.raises(BadInput, match=expected):
        stack.enter_context(hold_whole_database(engine))


def test_only_its_owner_and_group_can_lock_a_new_file(tmp_path: Path) -> None:
    """Any local user could otherwise lock the file, and SBF would not start."""
    engine, before = make_engine(f"sqlite:///{tmp_path}/sbf.db"), os.umask(0)
    try:
        with hold_whole_database(engine):
            assert (tmp_path / "sbf.db.lock").stat().st_mode & 0o777 == 0o660
    finally:
        os.umask(before)


def test_other_users_lose_the_lock_file_of_version_0_2(tmp_path: Path) -> None:
    """Version 0.2.0 created this file with mode 0644."""
    (lock := tmp_path / "sbf.db.lock").touch()
    lock.chmod(0o644)
    with hold_whole_database(make_engine(f"sqlite:///{tmp_path}/sbf.db")):
        assert lock.stat().st_mode & 0o777 == 0o640
