import dataclasses
import gzip
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, insert, inspect, select, text
from support.sbf_fakes.restores import back_up, restore
from support.sbf_fakes.world import World, four_sites, make_world, spec

from sbf_service.store.connections.database import make_engine
from sbf_service.store.connections.replica_lock import hold_replica_name
from sbf_service.store.maintenance.backup import OMITTED_TABLES, list_columns
from sbf_service.store.maintenance.backup_format import BackupFile, BackupWriter, make_table, open_backup
from sbf_service.store.maintenance.database_migration import begin_migration
from sbf_service.store.maintenance.outages import SWEEP_TIME
from sbf_service.store.maintenance.restored_state import REVISION_STEP
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow
from sbf_service.store.tables.guest_tables import GuestSessionRow
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import Base
from sbf_service.store.tables.vlan_tables import CreatedVlanRow
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from virtcloud.model.errors import BadInput


@dataclass
class Small:
    """A world on SQLite, its backup, and ``other``: the address of a database that does not exist yet."""

    world: World
    folder: Path
    backup: BackupFile
    other: str


VALUES = {"integer": 77, "float": 1.5, "boolean": True, "time": datetime(2026, 2, 28, 23, 59, 59, 123456, UTC)}


def read_rows(engine: Engine, name: str) -> list[tuple[object, ...]]:
    columns = list_columns()[name]
    with engine.connect() as connection:
        return sorted((tuple(row) for row in connection.execute(select(make_table(name, columns)))), key=str)


def omit_sweep(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Omit the time of the last deadline sweep, because a restore sets this time."""
    return [row for row in rows if SWEEP_TIME not in row]


def fill_every_column(engine: Engine) -> None:
    """Insert a row without NULL into each table that has no foreign keys and no check constraints."""
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        for name, columns in list_columns().items():
            table = Base.metadata.tables[name]
            if table.foreign_keys or any("CheckConstraint" in str(type(one)) for one in table.constraints):
                continue
            row = {key: VALUES.get(kind, "100-139") for key, kind in columns.items()}
            connection.execute(insert(make_table(name, columns)), row)


@pytest.fixture
def small(tmp_path: Path, folder: Path) -> Iterator[Small]:
    made = make_world(tmp_path)
    made.furnish()
    yield Small(made, folder, back_up(made, folder), f"sqlite:///{tmp_path / 'small.db'}")
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (made := tmp_path / "backups").mkdir()
    return made


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def other_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'other.db'}"
    found: str = request.getfixturevalue("empty_postgresql")
    return found


def test_every_table_moves_to_another_database(world: World, folder: Path, other_database: str) -> None:
    world.put("demo", spec("brno-h1", "praha-h1"))
    world.put("member", spec("brno-h2", joins="demo", guests=[{"name": "g9", "host": "brno-h2", "image": "debian"}]))
    world.settle()
    fill_every_column(world.store.engine)
    backup = back_up(world, folder)
    assert restore(backup, other_database).rows == backup.rows
    engine = make_engine(other_database)
    changed = {"elements", "clusters", "topology", "site_documents", "audit"}
    with Store(engine).read() as unit:
        assert read_topology(unit) == world.topology()
    for name in list_columns().keys() - changed:
        assert omit_sweep(read_rows(engine, name)) == omit_sweep(read_rows(world.store.engine, name)), name
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        restored = connection.scalar(select(func.max(AuditRow.id)))
        connection.execute(insert(AuditRow).values(at=VALUES["time"], who="eva", what="x"))
        assert connection.scalar(select(func.max(AuditRow.id))) == restored + 1 > REVISION_STEP
        number = "INSERT INTO guest_sessions (id, element, network, guest, request, expires_at) VALUES ('s', 'brno-h1', 'n', 'g', '{}', :at) RETURNING number"  # noqa: E501 - all columns
        assert connection.scalar(text(number), {"at": "2026-01-01 00:00:00"}) > REVISION_STEP
    engine.dispose()


def test_every_table_is_in_a_backup_or_known_as_omitted(small: Small) -> None:
    tables = {*inspect(small.world.store.engine).get_table_names()} - {"alembic_version", "sqlite_sequence"}
    assert list_columns().keys() | OMITTED_TABLES == tables


def test_a_backup_is_consistent_while_sbf_writes(world: World, folder: Path) -> None:
    stop, differences = threading.Event(), []

    def write() -> None:
        for number in range(2, 4000):
            with world.store.change() as unit:
                unit.session.add(AuditRow(at=unit.now, who="eva", what="pair"))
                unit.session.add(CreatedVlanRow(element="brno-sw1", vlan=number, created_at=unit.now))
            if stop.is_set():
                break

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            backup = back_up(world, folder, f"{number}.backup")
            rows = {name: list(found) for name, found in backup.read_tables()}
            differences.append(len(rows["created_vlans"]) - sum(row["what"] == "pair" for row in rows["audit"]))
    finally:
        stop.set()
        writer.join()
    assert differences == [0, 0, 0]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_restore_into_a_database_in_use_is_refused(kind: str, request: pytest.FixtureRequest, small: Small) -> None:
    database = small.other if kind == "sqlite" else str(request.getfixturevalue("postgresql"))
    engine = make_engine(database)
    with hold_replica_name(engine, "one"), pytest.raises(BadInput, match=r"service.*: stop"):
        restore(small.backup, database, replace=True)
    engine.dispose()


@pytest.mark.postgresql
def test_a_replica_that_starts_before_a_restore_prevents_it(postgresql: str, small: Small) -> None:
    """The restore waits until the replica has migrated the database. By then, the replica uses the database."""
    engine = make_engine(postgresql)
    with ThreadPoolExecutor(1) as pool, ExitStack() as replica:
        with begin_migration(engine) as migrating:
            restoring = pool.submit(restore, small.backup, postgresql, replace=True)
            while not migrating.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
                time.sleep(0.01)
            replica.enter_context(hold_replica_name(engine, "one"))
        with pytest.raises(BadInput, match="found 1 running replica"):
            restoring.result()
    engine.dispose()


def test_a_database_with_rows_is_replaced_only_on_request(small: Small) -> None:
    database = small.world.database
    with pytest.raises(BadInput, match=r"found rows in audit, .*topology: .* with --replace"):
        restore(small.backup, database)
    small.world.put("later", spec("brno-h1"))
    restore(small.backup, database, replace=True)
    assert [row.key for row in _clusters(small.world)] == []


@pytest.mark.parametrize("replace", [False, True])
def test_a_restore_leaves_the_tables_of_other_programs(small: Small, other_database: str, *, replace: bool) -> None:
    engine = make_engine(other_database)
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        connection.execute(text("CREATE TABLE inventory (machine text)"))
        connection.execute(text("INSERT INTO inventory VALUES ('brno-h1')"))
    restore(small.backup, other_database, replace=replace)
    restore(small.backup, other_database, replace=True)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT machine FROM inventory")).scalars().all() == ["brno-h1"]
    engine.dispose()


def insert_session(world: World) -> int:
    with world.store.change() as unit:
        columns = {"element": "brno-h1", "network": "n", "guest": "g1", "request": "{}", "expires_at": unit.now}
        unit.session.add(row := GuestSessionRow(id="s", **columns))
        unit.session.flush()
        return row.number


def test_session_numbers_increase_after_the_database_is_replaced(small: Small) -> None:
    insert_session(small.world)
    restore(small.backup, small.world.database, replace=True)
    assert insert_session(small.world) > REVISION_STEP


def test_a_service_that_ran_during_the_restore_reads_the_restored_topology(small: Small) -> None:
    """For example, the service's machine was disconnected from the database during the restore."""
    before = small.world.topology()
    small.world.put_topology(four_sites())
    assert small.world.topology() == four_sites()
    restore(small.backup, small.world.database, replace=True)
    assert small.world.topology() == before


def test_two_restores_of_a_backup_have_different_topology_versions(small: Small) -> None:
    """Otherwise, a service that ran during both restores would keep the topology of the first restore."""
    versions = []
    for _ in range(2):
        restore(small.backup, small.world.database, replace=True)
        with small.world.store.read() as unit:
            versions.append(read_topology_version(unit))
    assert len(set(versions)) == 2


def test_a_backup_of_a_newer_version_is_refused(small: Small) -> None:
    header = small.backup.header.model_copy(update={"migration": "9999", "virtcloud": "7.0"})
    newer = dataclasses.replace(small.backup, header=header)
    with pytest.raises(BadInput, match=r"migration 9999 of virtcloud 7.0: upgrade virtcloud on this machine first"):
        restore(newer, small.other)


def test_a_backup_of_an_older_version_is_migrated(small: Small) -> None:
    """The backup has the tables of migration 0039. Later migrations added tables, and the columns in ``removed``."""
    path = small.folder / "older.backup"
    removed = {
        "elements": {"first_revision", "unchecked", "local_images", "known_vlans"},
        "placements": {"settled"},
        "outside_uses": {"names"},
        "audit": {"request_id"},
        "clusters": {"request_id", "traceparent"},
    }
    tables = {
        name: {key: kind for key, kind in columns.items() if key not in removed.get(name, ())}
        for name, columns in small.backup.header.tables.items()
        if name not in {"service_times", "traffic", "unused_services", "site_documents", "service_nodes"}
    }
    tables["topology"] = {"id": "integer", "version": "integer", "document": "text"}
    with small.world.store.read() as unit:
        document = read_topology(unit)
    header = small.backup.header.model_copy(update={"migration": "0039", "tables": tables})
    with gzip.open(path, "wb") as file:
        writer = BackupWriter(file)
        writer.write_header(header)
        for name, rows in small.backup.read_tables():
            if name in tables:
                former = ({"document": document.model_dump_json(), **row} for row in rows)
                writer.write_table(name, ([row[key] for key in tables[name]] for row in former))
        writer.write_trailer()
    assert restore(open_backup(path), small.other).rows == {name: small.backup.rows[name] for name in tables}
    store = Store(make_engine(small.other))
    with store.read() as unit:
        assert read_topology(unit) == document
    store.close()


def test_a_truncated_file_is_refused_at_every_length(small: Small) -> None:
    whole = small.backup.path.read_bytes()
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        small.backup.path.write_bytes(whole[:length])
        with pytest.raises(BadInput, match="use another backup; the database was left unchanged") as raised:
            open_backup(small.backup.path)
        assert str(raised.value).count("expected a complete file") == 1


@pytest.mark.parametrize("edit", ["header", "value", "row", "table", "after"])
def test_an_edited_file_is_refused(small: Small, edit: str) -> None:
    lines = gzip.decompress(small.backup.path.read_bytes()).splitlines(keepends=True)
    number = next(index for index, line in enumerate(lines) if line.startswith(b'["brno-sw1"'))
    edits = {
        "header": [lines[0].replace(b'{"format"', b'{"other":1,"format"'), *lines[1:]],
        "value": [*lines[:number], lines[number].replace(b"brno", b"Brno"), *lines[number + 1 :]],
        "row": [*lines[:number], *lines[number + 1 :]],
        "table": [line for line in lines if line != b'{"table":"tokens"}\n'],
        "after": [*lines, b"{}\n"],
    }
    small.backup.path.write_bytes(gzip.compress(b"".join(edits[edit])))
    with pytest.raises(BadInput, match=r"^[^\n]* was edited or damaged [^\n]*$"):
        open_backup(small.backup.path)


def test_a_backup_can_be_read_by_its_owner_only(small: Small) -> None:
    assert stat.S_IMODE(small.backup.path.stat().st_mode) == 0o600


def test_a_backup_replaces_no_file(small: Small) -> None:
    with pytest.raises(BadInput, match="expected no file, found one: choose another name"):
        back_up(small.world, small.folder)


def test_simultaneous_backups_to_one_name_yield_a_complete_file(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table = BackupWriter.write_table

    def write_after_another_backup(writer: BackupWriter, name: str, rows: Iterator[tuple[object, ...]]) -> None:
        monkeypatch.setattr(BackupWriter, "write_table", write_table)
        back_up(small.world, small.folder, "b.backup")
        write_table(writer, name, rows)

    monkeypatch.setattr(BackupWriter, "write_table", write_after_another_backup)
    with pytest.raises(BadInput, match="expected no file, found one"):
        back_up(small.world, small.folder, "b.backup")
    assert open_backup(small.folder / "b.backup").rows == small.backup.rows
    assert sorted(path.name for path in small.folder.iterdir()) == ["a.backup", "b.backup"]


def test_a_row_that_no_restore_could_read_is_not_written(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbf_service.store.maintenance.backup_format.MAX_LINE", 10_000)
    assert back_up(small.world, small.folder, "short.backup").rows == small.backup.rows
    put_long_row(small, 10_000)
    with pytest.raises(BadInput, match=r"^backup: table audit, row \d+: expected at most 10000 bytes, found 10\d{3}: "):
        back_up(small.world, small.folder, "long.backup")
    assert sorted(path.name for path in small.folder.iterdir()) == ["a.backup", "short.backup"]


def test_a_backup_with_a_row_of_65_mebibytes_is_restored(small: Small) -> None:
    """The text is as long as the resolved spec of some thousands of guests with the maximum of user data."""
    put_long_row(small, 65 << 20)
    backup = back_up(small.world, small.folder, "long.backup")
    assert restore(backup, small.other).rows == backup.rows


def put_long_row(small: Small, length: int) -> None:
    with small.world.store.change() as unit:
        unit.session.add(AuditRow(at=unit.now, who="eva", what="x", why="x" * length))


def test_an_error_leaves_the_database_unchanged(small: Small) -> None:
    path = small.folder / "bad.backup"
    with gzip.open(path, "wb") as file:
        writer = BackupWriter(file)
        writer.write_header(small.backup.header)
        for name, rows in small.backup.read_tables():
            kept = (row for row in rows if name != "sites" or row["name"] != "brno")
            writer.write_table(name, (list(row.values()) for row in kept))
        writer.write_trailer()
    before = {name: read_rows(small.world.store.engine, name) for name in list_columns()}
    with pytest.raises(BadInput, match="rows refer to missing rows"):
        restore(open_backup(path), small.world.database, replace=True)
    assert {name: read_rows(small.world.store.engine, name) for name in list_columns()} == before


def _clusters(world: World) -> list[ClusterRow]:
    with world.store.read() as unit:
        return list(unit.session.scalars(select(ClusterRow)))
