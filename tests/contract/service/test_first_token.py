"""Tests of the real command ``sbf token create`` on the machine of the service."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine
from support.migrated import create_sqlite
from support.programs.sbf_process import run_sbf
from support.sbf_fakes.world import make_world

from sbf_service import __main__ as program
from sbf_service.local_files import ensure_database_file
from sbf_service.store.connections.database import make_engine
from sbf_service.store.connections.replica_lock import hold_replica_name
from sbf_service.store.maintenance.database_migration import migrate
from virtcloud.client.credentials import read_token
from virtcloud.model.errors import DatabaseUnavailable

SERVICE_UID = 65534
NO_ACCOUNT = 1_999_999_999
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of a folder")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's temporary folders."""
    with tempfile.TemporaryDirectory(prefix="virtcloud-token-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def create(database: Path, *options: str) -> subprocess.CompletedProcess[str]:
    config = database.parent.parent / "sbf.toml"
    config.write_text(f'database = "sqlite:///{database}"\n')
    return run_sbf("token", "create", "eva", "--role", "operator", *options, "--config", str(config))


def state_folder(folder: Path) -> Path:
    state = folder / "state"
    state.mkdir()
    os.chown(state, SERVICE_UID, SERVICE_UID)
    return state


@pytest.mark.parametrize("address", ["/var/lib/word.db", "postgresql://sbf:p@ss:word@db/sbf"])
def test_an_invalid_address_is_bad_input(folder: Path, address: str) -> None:
    config = folder / "sbf.toml"
    config.write_text(f'database = "{address}"\n')
    ended = run_sbf("token", "create", "eva", "--role", "operator", "--config", str(config))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"sbf: {config}: database: expected an address such as sqlite:////")
    assert "Traceback" not in ended.stderr
    assert "word.db" not in ended.stderr
    assert "word@" not in ended.stderr


def test_a_database_of_a_running_older_service_is_not_migrated(folder: Path) -> None:
    (folder / "state").mkdir()
    database = folder / "state/sbf.db"
    create_sqlite(f"sqlite:///{database}")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    with hold_replica_name(make_engine(f"sqlite:///{database}"), "older"):
        ended = create(database)
    assert (ended.returncode, "another service uses this file" in ended.stderr) == (2, True)


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_token_file_is_private_from_the_start(folder: Path, umask: int) -> None:
    (folder / "state").mkdir()
    before = os.umask(umask)
    try:
        ended = create(folder / "state/sbf.db", "--output", str(folder / "eva.token"))
    finally:
        os.umask(before)
    assert (ended.returncode, ended.stdout) == (0, f"the token of eva (operator) is in {folder}/eva.token\n")
    assert (folder / "eva.token").stat().st_mode & 0o777 == 0o600
    assert read_token(folder / "eva.token").get_secret_value().startswith("vc_")


@pytest.mark.parametrize(
    ("file", "fault"), [("absent/eva.token", "No such file or directory"), ("x" * 300, "File name too long")]
)
def test_an_unwritable_token_file_creates_no_token(file: str, fault: str, folder: Path) -> None:
    (folder / "state").mkdir()
    ended = create(folder / "state/sbf.db", "--output", str(folder / file))
    assert ended.returncode == 2
    assert ended.stderr == f"sbf: token file {folder}/{file}: cannot be written: {fault}; choose another file\n"
    assert list((folder / "state").iterdir()) == []


def test_the_file_of_an_older_token_is_kept(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "eva.token").write_text("vc_older\n")
    ended = create(folder / "state/sbf.db", "--output", str(folder / "eva.token"))
    assert (ended.returncode, (folder / "eva.token").read_text()) == (2, "vc_older\n")
    assert ended.stderr.startswith(f"sbf: token file {folder}/eva.token: expected a new file, but the file exists; ")
    assert list((folder / "state").iterdir()) == []


@as_root
def test_a_new_database_on_a_full_disk_is_completed_later(folder: Path) -> None:
    config = folder / "sbf.toml"
    config.write_text(f'database = "sqlite:///{folder}/state/sbf.db"\n')
    (folder / "state").mkdir()
    command = f"{sys.executable} -m sbf_service token create eva --role operator --config {config}"
    mount = f"mount -t tmpfs -o size=40k none {folder}/state"
    script = f"{mount}; {command}; mount -o remount,size=9m {folder}/state; {command}"
    argv = ["unshare", "--mount", "sh", "-c", script]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    assert "database or disk is full; free space on the database's disk" in ended.stderr
    assert ended.stdout.startswith("vc_")


def test_a_failed_call_leaves_the_database_of_a_starting_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service creates the tables while the command waits."""
    (folder / "state").mkdir()
    config, database = folder / "sbf.toml", folder / "state/sbf.db"
    config.write_text(f'database = "sqlite:///{database}"\n')

    def start_service_and_fail(engine: Engine) -> None:
        migrate(engine)
        raise DatabaseUnavailable("the database is busy")

    monkeypatch.setattr(program, "migrate", start_service_and_fail)
    words = ["token", "create", "eva", "--role", "operator", "--config", str(config)]
    assert CliRunner().invoke(program.main, words).exit_code == 2
    with closing(sqlite3.connect(database)) as service:
        assert service.execute("SELECT count(*) FROM tokens").fetchone() == (0,)


def test_a_caller_without_an_account_creates_a_token(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, the user ID often has no account."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: NO_ACCOUNT)
    config, database = folder / "sbf.toml", folder / "sbf.db"
    config.write_text(f'database = "sqlite:///{database}"\n')
    words = ["token", "create", "eva", "--role", "operator", "--config", str(config)]
    ended = CliRunner().invoke(program.main, words)
    assert (ended.exit_code, ended.exception) == (0, None)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT who FROM audit").fetchall() == [(f"uid {NO_ACCOUNT}@sbf",)]


@as_root
def test_a_database_created_by_root_belongs_to_the_service(folder: Path) -> None:
    state = state_folder(folder)
    assert create(state / "sbf.db").returncode == 0
    assert {file.name: file.stat().st_uid for file in state.iterdir()} == {"sbf.db": SERVICE_UID}


@as_root
def test_roots_call_changes_no_owner_of_existing_files(folder: Path) -> None:
    state = state_folder(folder)
    create(state / "sbf.db")
    with closing(sqlite3.connect(state / "sbf.db")) as service:
        assert service.execute("SELECT count(*) FROM tokens").fetchone() == (1,)
        assert create(state / "sbf.db").returncode == 0
        owners = {file.name: file.stat().st_uid for file in state.iterdir()}
    assert owners == dict.fromkeys(("sbf.db", "sbf.db-shm", "sbf.db-wal"), SERVICE_UID)


@as_root
def test_a_missing_state_folder_is_named_with_the_remedy(folder: Path) -> None:
    ended = create(folder / "state/sbf.db")
    assert ended.returncode == 2
    assert f"database {folder}/state/sbf.db: cannot be created: " in ended.stderr
    assert "systemctl start virtcloud-sbf" in ended.stderr
    assert not (folder / "state").exists()


@as_root
def test_a_kill_leaves_no_database_owned_by_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_folder(folder)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(os, "chown", kill)
        with pytest.raises(KeyboardInterrupt):
            ensure_database_file(f"sqlite:///{state}/sbf.db")
    assert not (state / "sbf.db").exists()
    assert create(state / "sbf.db").returncode == 0
    assert {file.name: file.stat().st_uid for file in state.iterdir()} == {"sbf.db": SERVICE_UID}


@as_root
def test_the_next_call_removes_leftovers_of_a_killed_call(folder: Path) -> None:
    state = state_folder(folder)
    create(state / "sbf.db")
    (state / ".sbf.db.new").hardlink_to(state / "sbf.db")
    assert create(state / "sbf.db").returncode == 0
    assert [file.name for file in state.iterdir()] == ["sbf.db"]


def test_a_site_administrator_without_a_site_is_refused(folder: Path) -> None:
    ended = create(folder / "state/sbf.db", "--role", "site-administrator")
    message = "sbf: expected at least one site for the role site-administrator, got none\n"
    assert (ended.returncode, ended.stderr) == (2, message)


def test_a_similar_element_is_named_for_an_unknown_agent(tmp_path: Path) -> None:
    with closing(make_world(tmp_path)) as world:
        world.furnish()
        config = tmp_path / "sbf.toml"
        config.write_text(f'database = "{world.store.engine.url}"\n')
        words = ["token", "create", "brno-h11", "--role", "agent", "--config", str(config)]
        ended = CliRunner().invoke(program.main, words)
    assert (ended.exit_code, ended.stdout[:3]) == (0, "vc_")
    assert "sbf: the topology has no host or gateway brno-h11 (similar: brno-h1): " in ended.stderr
