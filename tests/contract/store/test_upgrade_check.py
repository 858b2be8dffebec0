import hashlib
import shutil
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from sqlalchemy import update
from support.sbf_fakes.world import four_sites, make_world, spec

from sbf_service.database_commands import upgrade
from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.alembic_upgrade import upgrade_to
from sbf_service.store.maintenance.database_migration import begin_migration, list_migrations
from sbf_service.store.maintenance.upgrade_check import plan_upgrade, try_upgrade
from sbf_service.store.tables.vlan_tables import ClaimRow
from virtcloud.model.errors import BadInput


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("old") / "old.db"
    create_old(f"sqlite:///{file}")
    return file


@pytest.fixture
def old_database(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(template, tmp_path))


def create_old(address: str) -> None:
    engine = make_engine(address)
    with begin_migration(engine) as connection:
        upgrade_to(connection, sorted(list_migrations())[-2])
    engine.dispose()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_database_that_cannot_be_converted_is_reported(old_database: Path) -> None:
    with sqlite3.connect(old_database) as connection:
        connection.execute("INSERT INTO claims (site, vlan, cluster_id) VALUES ('nowhere', 100, 'nothing')")
    before, engine = digest(old_database), make_engine(f"sqlite:///{old_database}")
    with pytest.raises(BadInput, match="rows refer to missing rows"):
        try_upgrade(engine)
    assert digest(old_database) == before
    engine.dispose()


def test_too_little_space_is_reported_before_the_trial(old_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1 << 18))
    engine = make_engine(f"sqlite:///{old_database}")
    with pytest.raises(
        BadInput, match=r"expected \d MiB of free space for the upgrade, found 0 MiB: first delete files"
    ):
        try_upgrade(engine)
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused(old_database: Path) -> None:
    with sqlite3.connect(old_database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    engine = make_engine(f"sqlite:///{old_database}")
    with pytest.raises(BadInput, match=r"found 9999 of a newer version: install that version, or restore a backup"):
        plan_upgrade(engine)
    engine.dispose()


def test_a_missing_database_is_not_created(tmp_path: Path) -> None:
    (config := tmp_path / "sbf.toml").write_text(f'database = "sqlite:///{tmp_path}/sbf.db"')
    done = CliRunner().invoke(upgrade, ["--check", "--config", str(config)])
    assert (done.exit_code, "expected a file, found none" in done.stderr) == (2, True)
    assert not (tmp_path / "sbf.db").exists()


def test_the_check_names_clusters_with_colliding_vlan_ids(tmp_path: Path) -> None:
    """Earlier versions could allocate a VLAN ID twice."""
    world = make_world(tmp_path)
    world.furnish(topology=four_sites())
    world.put("x", spec("a-h1", "d-h1"))
    world.put("y", spec("b-h1", "c-h1"))
    with world.store.change() as unit:
        unit.session.execute(update(ClaimRow).where(ClaimRow.vlan == 101).values(vlan=100))
    world.close()
    (config := tmp_path / "sbf.toml").write_text(f'database = "sqlite:///{tmp_path}/sbf.db"')
    done = CliRunner().invoke(upgrade, ["--check", "--config", str(config)])
    assert done.stdout == (
        "the database is of this version; nothing to do\n"
        "warning: transport core, VLAN 100: expected one network, found the networks of clusters x, y, which receive "
        "each other's frames: end all but one of these clusters\n"
    )


@pytest.mark.postgresql
def test_a_check_on_postgresql_changes_nothing(empty_postgresql: str) -> None:
    create_old(empty_postgresql)
    engine = make_engine(empty_postgresql)
    before = plan_upgrade(engine)
    assert try_upgrade(engine).seconds > 0
    assert plan_upgrade(engine) == before
    engine.dispose()


def test_a_missing_extra_that_the_settings_need_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    config = tmp_path / "sbf.toml"
    config.write_text(
        f'database = "sqlite:///{tmp_path}/sbf.db"\n[telemetry]\nendpoint = "http://collector.example.org:4318"\n'
    )
    ended = CliRunner().invoke(upgrade, ["--check", "--config", str(config)])
    assert ended.exit_code == 2
    assert "pip install 'virtcloud[telemetry]'" in ended.output
