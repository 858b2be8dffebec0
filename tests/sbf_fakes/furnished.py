"""Copies of furnished databases: a copy takes a quarter of the time that SBF needs to store a topology and pools."""

import sqlite3
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from migrated import is_new_sqlite
from postgres import RUNNING, PostgresServer
from sqlalchemy import make_url

from virtcloud.model.topology import Topology

KEPT = 16
"""The number of copies that are kept for each kind of database."""
_kept: OrderedDict[str, sqlite3.Connection] = OrderedDict()
"""Databases in memory, by content, least recently used first."""


@dataclass(frozen=True)
class SqliteCopy:
    """A copy of an SQLite database after a topology and the pools of its sites were stored."""

    file: str
    content: str

    def restore(self) -> bool:
        """Replace the content of the database by the kept copy. Return False if there is no such copy."""
        if self.content not in _kept:
            return False
        _kept.move_to_end(self.content)
        with closing(self._connect()) as target:
            _kept[self.content].backup(target)
        return True

    def keep(self) -> None:
        """Keep a copy of the furnished database."""
        _kept[self.content] = sqlite3.connect(":memory:", check_same_thread=False)
        with closing(self._connect()) as source:
            source.backup(_kept[self.content])
        if len(_kept) > KEPT:
            _kept.popitem(last=False)[1].close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.file)
        connection.execute("PRAGMA synchronous=OFF")
        return connection


@dataclass(frozen=True)
class PostgresCopy:
    """A copy of a PostgreSQL database's rows after a topology and the pools of its sites were stored."""

    server: PostgresServer
    name: str
    content: str

    def restore(self) -> bool:
        """Replace the rows of the database by the kept copy. Return False if there is no such copy."""
        is_kept = self.content in self.server.schemas_with_rows(self.name)
        if is_kept:
            self.server.refill(self.name, self.content)
        return is_kept

    def keep(self) -> None:
        """Keep a copy of the furnished database, unless there are already many copies."""
        if len(self.server.schemas_with_rows(self.name)) <= KEPT:
            self.server.keep_rows(self.name, self.content)


def find_copy(database: str, pool: str, topology: Topology, now: datetime) -> SqliteCopy | PostgresCopy | None:
    """Return the copy for a topology and the pools that are stored at the time ``now``.

    Return None if the database is not new, that is, if it does not have exactly the rows that migrations wrote.
    """
    content = f"furnished_{sha256(f'{pool} {now} {topology.model_dump_json()}'.encode()).hexdigest()[:32]}"
    address = make_url(database)
    if is_new_sqlite(database):
        return SqliteCopy(str(address.database), content)
    server = RUNNING.get(str(address.query.get("host")))
    if server and address.database and server.is_restored(address.database):
        return PostgresCopy(server, address.database, content)
    return None


def forget() -> None:
    """Close all kept copies of SQLite databases."""
    while _kept:
        _kept.popitem()[1].close()
