"""Whether the database answers, and has the tables of this version."""

from functools import cache

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from sbf_service.store.migrate import config
from sbf_service.store.session import Unit


def is_migrated(unit: Unit) -> bool:
    """Say whether the database has the tables of this version."""
    return MigrationContext.configure(unit.session.connection()).get_current_revision() == _head()


@cache
def _head() -> str | None:
    return ScriptDirectory.from_config(config()).get_current_head()
