"""Whether the database answers, has the tables of this version, and can be written."""

from functools import cache

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from sbf_service.store.migrate import config
from sbf_service.store.session import Store, Unit
from sbf_service.store.tables import ReplicaRow


def is_migrated(unit: Unit) -> bool:
    """Say whether the database has the tables of this version."""
    return MigrationContext.configure(unit.session.connection()).get_current_revision() == _head()


def write_probe(store: Store, replica: str) -> None:
    """Commit a change of a row that is the replica's own. Raise DatabaseUnavailable when that cannot be done.

    A database on a full disk still answers what is read.
    """
    with store.touch(who=replica) as unit:
        row = unit.session.get(ReplicaRow, replica)
        if row is None:
            unit.session.add(ReplicaRow(name=replica, wrote_at=unit.now))
        else:
            row.wrote_at = unit.now


@cache
def _head() -> str | None:
    return ScriptDirectory.from_config(config()).get_current_head()
