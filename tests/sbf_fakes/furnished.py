"""Copies of furnished SQLite databases: a copy takes a quarter of the time that SBF needs to store a topology."""

import sqlite3
from collections import OrderedDict
from contextlib import closing
from datetime import datetime

from migrated import is_new_sqlite
from sqlalchemy import make_url

from virtcloud.model.topology import Topology

KEPT = 16
_kept: OrderedDict[tuple[str, str, datetime], sqlite3.Connection] = OrderedDict()
"""Databases in memory, by pool, topology and time, least recently used first."""


class FurnishedCopy:
    """A copy of a database after a topology and the pools of its sites were stored at the time ``now``.

    Only an SQLite database that was new before is copied or replaced.
    """

    def __init__(self, database: str, pool: str, topology: Topology, now: datetime) -> None:
        self._file = make_url(database).database
        self._is_possible = is_new_sqlite(database)
        self._key = pool, topology.model_dump_json(), now

    def restore(self) -> bool:
        """Replace the content of the database by the kept copy. Return False if there is no such copy."""
        if not self._is_possible or self._key not in _kept:
            return False
        _kept.move_to_end(self._key)
        with closing(self._connect()) as target:
            _kept[self._key].backup(target)
        return True

    def keep(self) -> None:
        """Keep a copy of the furnished database, if the database was new before."""
        if not self._is_possible:
            return
        _kept[self._key] = sqlite3.connect(":memory:", check_same_thread=False)
        with closing(self._connect()) as source:
            source.backup(_kept[self._key])
        if len(_kept) > KEPT:
            _kept.popitem(last=False)[1].close()

    def _connect(self) -> sqlite3.Connection:
        assert self._file is not None
        connection = sqlite3.connect(self._file)
        connection.execute("PRAGMA synchronous=OFF")
        return connection


def forget() -> None:
    """Close all kept copies."""
    while _kept:
        _kept.popitem()[1].close()
