"""Tests of retention: SBF writes old rows to files and then deletes them from the database."""

import errno
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import PrimaryKeyConstraint, Table, UniqueConstraint, func, select
from support.sbf_fakes.world import World, spec

from sbf_service.domain.retention import RetentionLimits
from sbf_service.retention_schedule import RetentionSchedule
from sbf_service.store.connections.replica_lock import hold_task
from sbf_service.store.maintenance import retention
from sbf_service.store.maintenance.archive_files import write_archive
from sbf_service.store.maintenance.retention import PruneReport, count_old_rows, prune
from sbf_service.store.store import Store
from sbf_service.store.tables.cluster_tables import ClusterRow, PlacementRow
from sbf_service.store.tables.service_tables import AuditRow
from sbf_service.store.tables.tables import Base
from sbf_service.store.unit_of_work import Unit, record_audit
from virtcloud.model.errors import BadInput, DatabaseUnavailable, Gone

DAY = timedelta(days=1)
SERVICE_UID = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: only root can change the owner of a folder")
LIMITS = RetentionLimits(audit_days=30, cluster_days=10)


@pytest.fixture
def database(sqlite_database: str) -> str:
    return sqlite_database


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def end_cluster(world: World, key: str, **changes: Any) -> str:
    world.put(key, spec("brno-h1", **changes))
    world.settle()
    cluster_id = world.view(key).id
    world.delete(key)
    world.settle()
    return cluster_id


def count(world: World, table: type[Base]) -> int:
    with world.store.read() as unit:
        return unit.session.scalar(select(func.count()).select_from(table)) or 0


def read_archive(folder: Path, start: str) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.glob(f"{start}*")) for line in path.read_text().splitlines()]


def run(world: World, archive: Path, limits: RetentionLimits = LIMITS, batch: int = 2) -> PruneReport | None:
    return prune(world.store, limits, archive, batch)


def test_defaults_archive_nothing_of_the_last_four_years(world: World, archive: Path) -> None:
    end_cluster(world, "a")
    world.clock.advance(4 * 365 * 86400)
    assert run(world, archive, RetentionLimits()) == PruneReport(0, 0)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_old_audit_rows_are_archived_in_order_and_deleted(
    kind: str, request: pytest.FixtureRequest, world: World, archive: Path
) -> None:
    if kind == "postgresql":
        world = World(str(request.getfixturevalue("postgresql")))
        world.furnish()
        request.addfinalizer(world.close)
    end_cluster(world, "a")
    world.clock.advance(31 * 86400)
    world.put_pool("brno", "100-120")
    old = [row.id for row in world.audit()][:-1]
    assert run(world, archive) == PruneReport(len(old), 1)
    assert [row["id"] for row in read_archive(archive, "audit")] == old
    assert list(dict.fromkeys(row.what for row in world.audit())) == ["pool_put", "rows_archived"]


def test_ids_of_archived_audit_rows_are_not_used_again(world: World, archive: Path) -> None:
    last = world.audit()[-1].id
    world.clock.advance(31 * 86400)
    run(world, archive)
    assert world.audit()[-1].id > last


def test_a_row_that_is_committed_later_is_archived_later(
    world: World, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, a row can be committed later than rows with higher IDs."""
    with world.store.change() as unit:
        unit.session.add_all([AuditRow(id=id_, at=unit.now, who="eva", what="x") for id_ in (900, 1000)])
    world.clock.advance(31 * 86400)

    def write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
        with world.store.change() as unit:
            unit.session.merge(AuditRow(id=899, at=unit.now, who="eva", what="late"))
        write_archive(folder, name, rows)

    monkeypatch.setattr(retention, "write_archive", write)
    run(world, archive, batch=100)
    assert "late" in {row.what for row in world.audit()}


def test_audit_rows_above_the_maximum_count_are_archived(world: World, archive: Path) -> None:
    with world.store.change() as unit:
        unit.session.add_all([AuditRow(at=unit.now, who="eva", what="x") for _ in range(1010)])
    newest = [row.id for row in world.audit()][-1000:]
    run(world, archive, RetentionLimits(audit_rows=1000), 500)
    assert [row.id for row in world.audit()][:-1] == newest


def test_an_ended_cluster_is_archived_with_all_its_rows(world: World, archive: Path) -> None:
    gone = end_cluster(world, "a")
    world.put("b", spec("brno-h1"))
    world.clock.advance(11 * 86400)
    assert run(world, archive) == PruneReport(0, 1)
    assert (count(world, ClusterRow), count(world, PlacementRow)) == (1, 2)
    rows = read_archive(archive, "clusters")
    assert {row["table"] for row in rows} == {"clusters", "placements"}
    assert {row.get("id", row.get("cluster_id")) for row in rows} == {gone}


def test_a_network_is_archived_after_its_members(world: World, archive: Path) -> None:
    world.put("net", spec("brno-h1"))
    member = [{"name": "g9", "host": "brno-h2", "image": "debian"}]
    world.put("member", spec(joins="net", guests=member))
    world.settle()
    world.delete("net")
    world.settle()
    world.clock.advance(11 * 86400)
    assert run(world, archive, batch=1) == PruneReport(0, 2)


def test_a_quarantined_cluster_is_not_archived(world: World, archive: Path) -> None:
    world.put("a", spec("brno-h1"))
    world.settle()
    world.dead_hosts.add("brno-h1")
    world.delete("a")
    world.clock.advance(11 * 86400)
    world.settle()
    assert str(world.site("brno").quarantined) == "100"
    assert run(world, archive) == PruneReport(0, 0)


def test_former_attempts_are_refused_for_a_week(world: World, archive: Path) -> None:
    world.put("job", spec("brno-h1"), attempt=2)
    world.settle()
    world.delete("job")
    world.settle()
    many = RetentionLimits(cluster_days=7)
    world.clock.advance(6 * 86400)
    assert run(world, archive, many) == PruneReport(0, 0)
    with pytest.raises(Gone):
        world.put("job", spec("brno-h1"), attempt=1)


def test_clusters_above_the_maximum_count_are_retained_a_week(world: World, archive: Path) -> None:
    for key in "abc":
        end_cluster(world, key)
    one = LIMITS.model_copy(update={"clusters": 1})  # model_copy does not check the minimum of the setting
    world.clock.advance(6 * 86400)
    assert run(world, archive, one) == PruneReport(0, 0)
    world.clock.advance(2 * 86400)
    assert run(world, archive, one) == PruneReport(0, 2)


@pytest.mark.parametrize("kind", ["audit", "clusters"])
def test_a_run_killed_before_the_deletion_archives_rows_once(
    world: World, archive: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for key in "abc":
        end_cluster(world, key)
    world.clock.advance(31 * 86400)
    before = len(world.audit())

    def write_and_die(folder: Path, name: str, written: list[dict[str, object]]) -> None:
        write(folder, name, written)
        if name.startswith(kind):
            raise KeyboardInterrupt

    write = write_archive
    monkeypatch.setattr(retention, "write_archive", write_and_die)
    with pytest.raises(KeyboardInterrupt):
        run(world, archive)
    monkeypatch.setattr(retention, "write_archive", write)
    rows = [row.id for row in world.audit() if row.what != "rows_archived"]
    assert len(rows) == before
    run(world, archive)
    # The archive of the clusters was recorded before the kill, or the newest row stays.
    assert [row["id"] for row in read_archive(archive, "audit")] == (rows if kind == "audit" else rows[:-1])
    assert len([row for row in read_archive(archive, "clusters") if row["table"] == "clusters"]) == 3


def test_no_row_is_deleted_if_the_disk_is_full(world: World, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.clock.advance(31 * 86400)
    before = count(world, AuditRow)

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(BadInput, match="No space left on device; its rows stay in the database: free space, or"):
        run(world, archive)
    assert (count(world, AuditRow), list(archive.iterdir())) == (before, [])


def test_the_audit_log_names_rows_archived_before_an_error(
    world: World, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk becomes full when the ended clusters are archived, and their audit rows are not."""
    end_cluster(world, "a")
    world.clock.advance(31 * 86400)

    def write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
        if name.startswith("audit"):
            raise BadInput("disk full")
        write_archive(folder, name, rows)

    monkeypatch.setattr(retention, "write_archive", write)
    with pytest.raises(BadInput, match="disk full"):
        run(world, archive)
    assert world.audit()[-1].why == f"0 audit rows and 1 ended clusters written to {archive}"


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_the_audit_log_counts_rows_archived_before_the_database_failed(
    world: World, archive: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    """After some batches, the database does not answer any more. The first batch has the cluster."""
    end_cluster(world, "a")
    world.clock.advance(31 * 86400)
    with world.store.change_row() as unit:
        record_audit(unit, "young")
    kept, units = count(world, AuditRow), iter(range(batches))

    def limit(
        change: Callable[[Store], AbstractContextManager[Unit]],
    ) -> Callable[[Store], AbstractContextManager[Unit]]:
        def open_unit(store: Store) -> AbstractContextManager[Unit]:
            if next(units, None) is None:
                raise DatabaseUnavailable("the connection was lost")
            return change(store)

        return open_unit

    with monkeypatch.context() as lost:
        lost.setattr(Store, "change", limit(Store.change))
        lost.setattr(Store, "change_row", limit(Store.change_row))
        with pytest.raises(DatabaseUnavailable):
            run(world, archive)
    recorded = [row.why for row in world.audit("rows_archived")]
    archived = kept - count(world, AuditRow) + len(recorded)
    parts = [(0, 1), (2, 0), (2, 0)][:batches]
    assert recorded == [f"{audit} audit rows and {ended} ended clusters written to {archive}" for audit, ended in parts]
    assert archived == sum(audit for audit, _ in parts)


def test_a_run_changes_no_row_that_was_read_before(
    world: World, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that follows the audit log reads each row once, here before each batch."""
    end_cluster(world, "a")
    world.clock.advance(31 * 86400)
    followed: dict[int, str | None] = {}

    def write(folder: Path, name: str, rows: list[dict[str, object]]) -> None:
        followed.update({row.id: row.why for row in world.audit() if row.id not in followed})
        write_archive(folder, name, rows)

    monkeypatch.setattr(retention, "write_archive", write)
    run(world, archive)
    kept = {row.id: row.why for row in world.audit()}
    assert {id_: followed.get(id_, why) for id_, why in kept.items()} == kept


def test_the_rows_of_a_run_do_not_displace_others(world: World, archive: Path) -> None:
    with world.store.change_row() as unit:
        for number in range(1100):
            record_audit(unit, f"what-{number}")
    before, limits = count(world, AuditRow), RetentionLimits(audit_rows=1000)
    assert run(world, archive, limits, batch=10) == PruneReport(before - 1000, 0)
    assert count(world, AuditRow) - len(world.audit("rows_archived")) == 1000


def test_the_error_for_a_forbidden_archive_folder_names_the_remedy(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", fail)
    expected = f"Read-only file system; its rows stay in the database: add .* 'ReadWritePaths={archive}'"
    with pytest.raises(BadInput, match=expected):
        write_archive(archive, "audit-1.jsonl", [])


def test_only_one_replica_archives_at_a_time(world: World, archive: Path) -> None:
    with hold_task(world.store.engine, "retention"):
        assert run(world, archive) is None


def test_the_dry_run_counts_what_a_run_archives(world: World, archive: Path) -> None:
    end_cluster(world, "a")
    world.clock.advance(31 * 86400)
    with world.store.read() as unit:
        counted = count_old_rows(unit, LIMITS)
    assert counted == run(world, archive)


@pytest.mark.parametrize("parent", ["clusters", "images", "vpn_profiles"])
def test_an_index_finds_rows_that_refer_to_deleted_rows(parent: str) -> None:
    """For each deleted row, the database searches for rows that refer to the row. This search uses no partial index."""
    keys = [
        (table, key.parent)
        for table in Base.metadata.sorted_tables
        for key in table.foreign_keys
        if key.column.table.name == parent
    ]
    assert [f"{table.name}.{column.name}" for table, column in keys if column not in list_indexed(table)] == []


def list_indexed(table: Table) -> list[object]:
    """Return the first column of the primary key, of each unique constraint, and of each index with all rows."""
    unique = (one for one in table.constraints if isinstance(one, PrimaryKeyConstraint | UniqueConstraint))
    indexes = (one for one in table.indexes if one.dialect_options["postgresql"]["where"] is None)
    return [next(iter(one.columns)) for one in unique] + [one.expressions[0] for one in indexes]


def test_sbf_runs_the_retention_by_itself(world: World, archive: Path) -> None:
    end_cluster(world, "a")
    world.clock.advance(31 * 86400)
    schedule = RetentionSchedule(world.store, LIMITS, world.database)
    schedule.run_once()
    assert read_archive(archive, "audit")
    assert not [path for path in archive.iterdir() if path.stat().st_mode & 0o077]


@as_root
@pytest.mark.parametrize("state", ["missing", "left by an earlier version"])
def test_archive_folders_of_root_get_the_owner_of_their_parent(tmp_path: Path, state: str) -> None:
    """An administrator runs ``sbf prune`` as root, and SBF archives later as another user."""
    os.chown(tmp_path, SERVICE_UID, SERVICE_UID)
    archive = tmp_path / "state/archive"
    if state != "missing":
        archive.mkdir(parents=True)
        os.chown(archive.parent, SERVICE_UID, SERVICE_UID)
    path = write_archive(archive, "audit-1.jsonl", [{"id": 1}])
    assert {entry.stat().st_uid for entry in (archive.parent, archive, path)} == {SERVICE_UID}
    assert [archive.stat().st_gid, path.stat().st_gid] == [SERVICE_UID, SERVICE_UID]


@as_root
def test_an_archive_folder_of_another_user_keeps_its_owner(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    os.chown(archive, SERVICE_UID, SERVICE_UID)
    path = write_archive(archive, "audit-1.jsonl", [{"id": 1}])
    assert [archive.stat().st_uid, path.stat().st_uid] == [SERVICE_UID, SERVICE_UID]


@as_root
def test_root_changes_no_folder_behind_a_symbolic_link(tmp_path: Path) -> None:
    """SBF's user can replace the archive folder by a link to any folder of root."""
    target, state = tmp_path / "target", tmp_path / "state"
    target.mkdir()
    state.mkdir()
    os.chown(state, SERVICE_UID, SERVICE_UID)
    (state / "archive").symlink_to(target)
    write_archive(state / "archive", "audit-1.jsonl", [{"id": 1}])
    assert target.stat().st_uid == 0
