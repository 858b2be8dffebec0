"""The database's own history."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from sbf_service.store.migrate import migrate
from sbf_service.store.session import make_engine
from sbf_service.store.tables import Base
from virtcloud.model.errors import BadInput


def test_the_migrations_make_exactly_the_tables(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_constraints_are_in_the_database(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    migrate(engine)
    with engine.connect() as connection:
        made = connection.execute(text("SELECT sql FROM sqlite_master WHERE name = 'claims'")).scalar_one()
    engine.dispose()
    assert "PRIMARY KEY (site, vlan)" in made
    assert "CHECK (vlan BETWEEN 2 AND 4094)" in made
    assert "UNIQUE (cluster_id, site)" in made


def test_migrating_again_changes_nothing(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    migrate(engine)
    migrate(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM topology")).scalar_one() == 1
    engine.dispose()


def test_a_migration_that_dies_leaves_an_empty_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op  # noqa: PLC0415

    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")

    def die(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(op, "execute", die)
        with pytest.raises(KeyboardInterrupt):
            migrate(engine)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one() == 0
    migrate(engine)
    engine.dispose()


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    migrate(engine)
    with engine.execution_options(virtcloud_write=True).begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(BadInput, match=r"database sqlite:///.* was made by a newer version of virtcloud"):
        migrate(engine)
    engine.dispose()


def test_a_database_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'nowhere' / 'sbf.db'}")
    with pytest.raises(BadInput, match=r"database sqlite:///.*sbf.db cannot be opened for writing: unable to open"):
        migrate(engine)
    engine.dispose()


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "sbf.db").write_text("this is a letter to my aunt, not a database at all\n" * 100)
    engine = make_engine(f"sqlite:///{tmp_path / 'sbf.db'}")
    with pytest.raises(BadInput, match="file is not a database"):
        migrate(engine)
    engine.dispose()
