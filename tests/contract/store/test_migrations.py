import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import IntegrityError
from support.sbf_fakes.world import three_sites

from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.alembic_upgrade import make_alembic_config
from sbf_service.store.maintenance.database_migration import migrate, newest_migration
from sbf_service.store.store import Store
from sbf_service.store.tables.tables import Base, PortRow, SiteDocumentRow
from sbf_service.store.tables.vlan_tables import FreeVlanRow
from sbf_service.store.topology.current_topology import read_topology, read_topology_version
from sbf_service.store.vlans.claims import NEVER_USED
from sbf_service.store.vlans.transport_vlans import list_collisions
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.topology_parts import arrange_links

BEFORE_LONG_NUMBERS = "0040"
"""After this migration, audit rows on PostgreSQL have numbers of 32 bits. A later migration extends them to 64 bits."""
BEFORE_PARTS = "0048"
"""After this migration, the topology is one document. A later migration divides it into parts."""
BEFORE_TRANSPORTS = "0049"
"""After this migration, claims have no transport. A later migration adds it."""
INSERT_CLUSTER = text(
    "INSERT INTO clusters (id, key, turn, attempt, owner, spec, version, state, created_at, deadline, lease_ends, "
    "quarantined, transport) VALUES (:key, :key, 0, 0, 'alice', '{}', 1, 'active', '2026-01-01', '2026-01-01', "
    "'2026-01-01', false, :transport)"
)
COLLISION = (
    "transport core, VLAN 100: expected one network, found the networks of clusters x, y, which receive each other's "
    "frames: end all but one of these clusters"
)
BEFORE_UDP = "0038"
"""After this migration, publications have no protocol. A later migration adds it."""
BEFORE_RECORDS = "0015"
"""After this migration, SBF owns every VLAN of a pool. A later migration adds the record of created VLANs."""


def test_the_last_migration_file_has_the_newest_revision() -> None:
    heads = ScriptDirectory.from_config(make_alembic_config()).get_heads()
    assert heads == [newest_migration()]


def test_the_migrations_create_exactly_the_tables(empty_database: str) -> None:
    engine = make_engine(empty_database)
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_constraints_are_in_the_database(empty_database: str) -> None:
    engine = make_engine(empty_database)
    migrate(engine)
    found = inspect(engine)
    assert found.get_pk_constraint("claims")["constrained_columns"] == ["site", "vlan"]
    assert found.get_pk_constraint("service_claims")["constrained_columns"] == ["transport", "number"]
    assert [one["column_names"] for one in found.get_unique_constraints("service_claims")] == [["cluster_id"]]
    assert [one["name"] for one in found.get_check_constraints("claims")] == ["ck_claims_vlan"]
    assert [one["column_names"] for one in found.get_unique_constraints("claims")] == [["cluster_id", "site"]]
    engine.dispose()


def test_migrations_keep_the_release_times_of_vlan_ids(empty_database: str) -> None:
    engine = make_engine(empty_database)
    written = (
        "INSERT INTO sites VALUES ('brno', true, '100-103'), ('praha', true, '')",
        "INSERT INTO clusters VALUES ('c', 'demo', 0, 'eva', '{}', 1, 'active', NULL, :at, :at, :at, NULL, false)",
        "INSERT INTO claims VALUES ('brno', 101, 'c')",
        "INSERT INTO freed_numbers VALUES ('brno', 101, :at), ('brno', 102, :at), ('brno', 200, :at)",
    )
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0001")
        for line in written:
            connection.execute(text(line), {"at": "2026-01-01 00:00:00.000000+00"} if ":at" in line else {})
    migrate(engine)
    with engine.connect() as connection:
        found = connection.execute(
            select(FreeVlanRow.site, FreeVlanRow.vlan, FreeVlanRow.since).order_by(FreeVlanRow.vlan)
        ).all()
    day = datetime(2026, 1, 1, tzinfo=UTC)
    assert found == [("brno", 100, NEVER_USED), ("brno", 102, day), ("brno", 103, NEVER_USED)]
    engine.dispose()


def test_a_version_1_database_keeps_rows_and_references(empty_database: str) -> None:
    """In SQLite, a migration copies the elements to a new table."""
    engine = make_engine(empty_database)
    written = (
        "INSERT INTO sites VALUES ('brno', true, '100-139')",
        "INSERT INTO clusters VALUES ('c', 'demo', 0, 'eva', '{}', 1, 'active', NULL, :at, :at, :at, NULL, false)",
        "INSERT INTO elements VALUES ('brno-sw1', 'brno', 'switch', true, 2, 2, NULL, true, NULL, NULL, NULL, NULL, NULL, 1)",  # noqa: E501 - all columns
        "INSERT INTO placements VALUES ('c', 'brno-sw1', 2, NULL)",
    )
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0001")
        for line in written:
            connection.execute(text(line), {"at": "2026-01-01 00:00:00"} if ":at" in line else {})
    migrate(engine)
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        assert connection.execute(text("SELECT * FROM placements")).all() == [("c", "brno-sw1", 2, None, False, False)]
        connection.execute(text("UPDATE elements SET kind = 'edge'"))
        with pytest.raises(IntegrityError):
            connection.execute(text("INSERT INTO placements VALUES ('c', 'nowhere', 2, NULL, false, false)"))
    engine.dispose()


def test_ports_confirmed_before_an_upgrade_count_as_adopted(empty_database: str) -> None:
    """The migration records confirmed ports without VLANs as shut: SBF may have shut such a port down."""
    engine = make_engine(empty_database)
    written = (
        "INSERT INTO sites VALUES ('brno', true, '100-139')",
        "INSERT INTO elements VALUES ('brno-sw1', 'brno', 'switch', true, 2, 2, NULL, true, NULL, NULL, :carried, NULL, NULL, 1)",  # noqa: E501 - all columns
    )
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0001")
        for line in written:
            connection.execute(text(line), {"carried": '{"p1":"100","p2":""}'} if ":carried" in line else {})
    migrate(engine)
    columns = (PortRow.port, PortRow.taken, PortRow.shut, PortRow.leaving, PortRow.use_before)
    with engine.connect() as connection:
        found = connection.execute(select(*columns).order_by(PortRow.port)).all()
    assert found == [("p1", True, False, False, None), ("p2", True, True, False, None)]
    engine.dispose()


def test_migrating_again_changes_nothing(empty_database: str) -> None:
    engine = make_engine(empty_database)
    migrate(engine)
    migrate(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM topology")).scalar_one() == 1
    engine.dispose()


def test_a_failed_migration_leaves_an_empty_database(empty_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op  # noqa: PLC0415

    engine = make_engine(empty_database)

    def fail(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(op, "execute", fail)
        with pytest.raises(KeyboardInterrupt):
            migrate(engine)
    assert inspect(engine).get_table_names() == []
    migrate(engine)
    engine.dispose()


def test_a_database_of_a_newer_version_is_unchanged(empty_database: str) -> None:
    engine = make_engine(empty_database)
    migrate(engine)
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(BadInput, match=r"database (sqlite|postgresql).* belongs to a newer version of virtcloud"):
        migrate(engine)
    engine.dispose()


def test_the_error_names_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'nowhere' / 'sbf.db'}")
    with pytest.raises(BadInput, match=r"database sqlite:///.*sbf.db cannot be opened for writing: unable to open"):
        migrate(engine)
    engine.dispose()


def test_the_error_names_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "sbf.db").write_text("this is a letter to my aunt, not a database at all\n" * 100)
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    with pytest.raises(BadInput, match="file is not a database"):
        migrate(engine)
    engine.dispose()


def test_vlans_on_switches_are_recorded_as_created(empty_database: str) -> None:
    """The migration records the VLANs of SBF's last reading of the switch.

    The migration also records the VLANs of clusters that the switch has confirmed.
    """
    engine = make_engine(empty_database)
    cluster = "INSERT INTO clusters (id, key, turn, attempt, owner, spec, version, state, created_at, deadline, lease_ends, quarantined)"  # noqa: E501 - all columns
    element = "INSERT INTO elements (name, site, kind, present, wanted_revision, confirmed_revision, highest_confirmed, failed_saves, reachable, fence, carried)"  # noqa: E501 - all columns
    written = (
        "INSERT INTO sites VALUES ('brno', true, '100-139')",
        *(
            f"{cluster} VALUES ('{one}', '{one}', 0, 0, 'eva', '{{}}', 1, 'active', :at, :at, :at, false)"
            for one in "ab"
        ),
        f"""{element} VALUES ('brno-sw1', 'brno', 'switch', true, 5, 3, 3, 0, true, 1, '{{"p1": "110-111"}}')""",
        "INSERT INTO claims VALUES ('brno', 100, 'a'), ('brno', 101, 'b')",
        "INSERT INTO placements VALUES ('a', 'brno-sw1', 2, NULL), ('b', 'brno-sw1', 4, NULL)",
    )
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, BEFORE_RECORDS)
        for line in written:
            connection.execute(text(line), {"at": "2026-01-01 00:00:00"} if ":at" in line else {})
    migrate(engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT element, vlan FROM created_vlans ORDER BY vlan")).all()
    assert found == [("brno-sw1", 100), ("brno-sw1", 110), ("brno-sw1", 111)]
    engine.dispose()


def test_observed_states_of_the_other_kind_of_device_are_deleted(empty_database: str) -> None:
    """In earlier versions, the observed state of a switch stayed when an edge got the switch's name, and vice versa."""
    engine = make_engine(empty_database)
    element = "INSERT INTO elements (name, site, kind, present, wanted_revision, confirmed_revision, highest_confirmed, failed_saves, reachable, fence, carried)"  # noqa: E501 - all columns
    states = (
        ("e1", "edge", '{"p1":"100"}'),
        ("e2", "edge", "[]"),
        ("s1", "switch", '[{"transport":"core","port":"ac","vlan":100,"service":1}]'),
        ("s2", "switch", '{"p1":""}'),
    )
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, BEFORE_RECORDS)
        connection.execute(text("INSERT INTO sites VALUES ('brno', true, '100-139')"))
        for name, kind, carried in states:
            values = {"name": name, "kind": kind, "carried": carried}
            insert = text(f"{element} VALUES (:name, 'brno', :kind, true, 1, 0, 0, 0, true, 1, :carried)")
            connection.execute(insert, values)
    migrate(engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT name, carried FROM elements ORDER BY name")).all()
        assert connection.execute(text("SELECT count(*) FROM created_vlans")).scalar_one() == 0
    assert found == [("e1", None), ("e2", "[]"), ("s1", None), ("s2", '{"p1":""}')]
    engine.dispose()


def test_numbers_of_audit_rows_exceed_32_bits(empty_database: str) -> None:
    engine = make_engine(empty_database)
    many = "INSERT INTO audit (at, who, what) SELECT :at, 'eva', 'x' FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) SELECT i FROM n) AS rows"  # noqa: E501 - one statement
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, BEFORE_LONG_NUMBERS)
        connection.execute(text(many), {"at": "2026-01-01 00:00:00"})
        last = "INSERT INTO audit (id, at, who, what) VALUES (2147483647, '2026-01-01 00:00:00', 'eva', 'last')"
        connection.execute(text(last))
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT setval('audit_id_seq', 2147483647)"))
    migrate(engine)
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        connection.execute(text("INSERT INTO audit (at, who, what) VALUES ('2026-01-01 00:00:00', 'eva', 'next')"))
        found = connection.execute(text("SELECT max(id), count(*) FROM audit")).one()
    assert found == (2147483648, 2002)
    engine.dispose()


def test_publications_of_a_former_version_stay_tcp(empty_database: str) -> None:
    engine = make_engine(empty_database)
    cluster = "INSERT INTO clusters (id, key, turn, attempt, owner, spec, version, state, created_at, deadline, lease_ends, quarantined) VALUES ('a', 'a', 0, 0, 'eva', '{}', 1, 'active', :at, :at, :at, false)"  # noqa: E501 - all columns
    element = "INSERT INTO elements (name, site, kind, present, wanted_revision, confirmed_revision, highest_confirmed, failed_saves, reachable, fence) VALUES ('gw', 'brno', 'gateway', true, 5, 3, 3, 0, true, 1)"  # noqa: E501 - all columns
    former = "INSERT INTO publications VALUES ('gw', 40000, 'a', 'g1', '10.0.0.1', 22, :at, 'eva', NULL)"
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, BEFORE_UDP)
        for line in ("INSERT INTO sites VALUES ('brno', true, '100-139')", element, cluster, former):
            connection.execute(text(line), {"at": "2026-01-01 00:00:00"} if ":at" in line else {})
    migrate(engine)
    with engine.connect() as connection:
        columns = "gateway, protocol, port, guest_port, created_by, moved_from"
        found = connection.execute(text(f"SELECT {columns} FROM publications")).all()  # noqa: S608 - columns above
    assert found == [("gw", "tcp", 40000, 22, "eva", None)]
    engine.dispose()


def test_a_topology_is_divided_into_parts(empty_database: str) -> None:
    """The migration reorders the links: first the links within each site, then the links between sites."""
    store_undivided_topology(empty_database)
    check_divided_topology(empty_database)


def test_a_killed_division_of_the_topology_is_repeated(empty_database: str) -> None:
    store_undivided_topology(empty_database)
    program = [sys.executable, "-c", KILLED_IN_THE_DIVISION, empty_database]
    assert subprocess.run(program, check=False, timeout=60).returncode == -signal.SIGKILL  # noqa: S603 - our own
    check_divided_topology(empty_database)


KILLED_IN_THE_DIVISION = """
import os, signal, sys
from sqlalchemy import event
from sbf_service.store.connections.database import make_engine
from sbf_service.store.maintenance.database_migration import migrate

def kill(_connection, _cursor, statement, *_others):
    if statement.startswith("UPDATE topology SET common"):
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(engine := make_engine(sys.argv[1]), "before_cursor_execute", kill)
migrate(engine)
"""
"""A program that is killed after it wrote the parts of all sites, and before it writes the common part."""


def store_undivided_topology(database: str) -> None:
    engine, former = make_engine(database), undivided_topology()
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, BEFORE_PARTS)
        for site in former.sites:
            connection.execute(text("INSERT INTO sites VALUES (:name, true, '')"), {"name": site.name})
        stored = text("UPDATE topology SET version = 7, document = :document")
        connection.execute(stored, {"document": former.model_dump_json()})
    engine.dispose()


def check_divided_topology(database: str) -> None:
    engine = make_engine(database)
    migrate(engine)
    with Store(engine).read() as unit:
        assert (read_topology_version(unit), read_topology(unit)) == (7, arrange_links(undivided_topology()))
        parts = unit.session.execute(select(SiteDocumentRow.site, SiteDocumentRow.version)).all()
    assert sorted(parts) == [("brno", 7), ("plzen", 7), ("praha", 7)]
    engine.dispose()


def test_claims_of_an_earlier_version_get_their_networks_transports(tmp_path: Path) -> None:
    """Before the migration, networks without a common site could have the same VLAN ID on the same transport."""
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        settings = make_alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, BEFORE_TRANSPORTS)
        for site in "abcd":
            connection.execute(text("INSERT INTO sites VALUES (:name, true, '')"), {"name": site})
        for key, transport, sites in (("x", "core", "ad"), ("y", "core", "bc"), ("z", None, "a")):
            connection.execute(INSERT_CLUSTER, {"key": key, "transport": transport})
            for site in sites:
                vlan = 100 if transport else 101
                values = {"site": site, "vlan": vlan, "key": key}
                connection.execute(text("INSERT INTO claims VALUES (:site, :vlan, :key)"), values)
    migrate(engine)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT site, transport FROM claims ORDER BY site, vlan")).all()
        assert [str(found) for found in list_collisions(connection)] == [COLLISION]
    engine.dispose()
    assert found == [("a", "core"), ("a", None), ("b", "core"), ("c", "core"), ("d", "core")]


def test_a_start_repairs_claims_that_an_earlier_version_wrote(empty_database: str) -> None:
    """If a replica of an earlier version still runs after the migration, it records claims without their transports."""
    engine = make_engine(empty_database)
    migrate(engine)
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        for site in "ab":
            connection.execute(text("INSERT INTO sites VALUES (:name, true, '')"), {"name": site})
        for key, transport in (("x", "core"), ("y", None)):
            connection.execute(INSERT_CLUSTER, {"key": key, "transport": transport})
        insert_claim = text("INSERT INTO claims (site, vlan, cluster_id) VALUES (:site, :vlan, :key)")
        for site, vlan, key in (("a", 100, "x"), ("b", 100, "x"), ("a", 101, "y")):
            connection.execute(insert_claim, {"site": site, "vlan": vlan, "key": key})
    for _ in range(2):
        migrate(engine)
        with engine.connect() as connection:
            found = connection.execute(text("SELECT site, vlan, transport FROM claims ORDER BY site, vlan")).all()
        assert found == [("a", 100, "core"), ("a", 101, None), ("b", 100, "core")]
    engine.dispose()


def undivided_topology() -> Topology:
    return linked_sites().model_copy(update={"links": linked_sites().links[::-1]})


def linked_sites() -> Topology:
    document = three_sites().model_dump()
    for site in document["sites"][:2]:
        site["switches"][0]["ports"] = (*site["switches"][0]["ports"], "between")
    ends = [f"{site['switches'][0]['name']}:between" for site in document["sites"][:2]]
    return Topology.model_validate({**document, "links": [*document["links"], {"a": ends[0], "b": ends[1]}]})
