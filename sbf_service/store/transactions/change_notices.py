"""Notices by which a replica announces its changes to the other replicas, with LISTEN and NOTIFY of PostgreSQL.

A transaction sends the topics of its change with NOTIFY. A topic names what was changed, such as ``element:brno-sw1``.
PostgreSQL delivers the notice after the commit. A notice is lost if the connection of the listening replica is lost.
With SQLite, there is only one replica and no notice.
"""

import json
import select as selecting
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, func, select, text

from sbf_service.store.connections.postgresql_connections import make_separate_engine

CHANNEL = "virtcloud_changes"
MAX_NOTICE_BYTES = 7_000
"""The maximum size of a notice's topics, in bytes. PostgreSQL limits the whole notice to 7,999 bytes."""
MAX_NOTICES = 20
"""The maximum number of notices for one change.

For larger changes, a replica sends one notice without topics, which wakes all waiting calls.
"""
_NOTIFY = select(func.pg_notify(CHANNEL, bindparam("notice")))


@dataclass(frozen=True, slots=True)
class ChangeNotice:
    """A notice of another replica's change.

    ``topics`` is None if the topics do not fit into ``MAX_NOTICES`` notices.
    """

    topics: frozenset[str] | None


def send_notice(connection: Connection, sender: str, topics: Iterable[str]) -> None:
    """Send the topics of a change to the other replicas. Do nothing on SQLite.

    Call this in the transaction of the change. ``sender`` is the name of this replica.
    """
    if connection.dialect.name != "postgresql":
        return
    groups = list(_group_topics(sorted(topics)))
    contents: Sequence[list[str] | None] = groups if len(groups) <= MAX_NOTICES else [None]
    for content in contents:
        connection.execute(_NOTIFY, {"notice": json.dumps([sender, content])})


def _group_topics(topics: Iterable[str]) -> Iterator[list[str]]:
    group, length = list[str](), 0
    for topic in topics:
        size = len(json.dumps(topic)) + 2
        if group and length + size > MAX_NOTICE_BYTES:
            yield group
            group, length = [], 0
        group.append(topic)
        length += size
    if group:
        yield group


def parse_notice(text_of_notice: str, own: str) -> ChangeNotice | None:
    """Parse the text of a notice. Return None for a notice of this replica (``own``)."""
    sender, topics = json.loads(text_of_notice)
    return None if sender == own else ChangeNotice(None if topics is None else frozenset(topics))


@dataclass
class Doorbell:
    """A pair of sockets by which one thread ends the wait of another thread. Thread-safe."""

    _sockets: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def ring(self) -> None:
        """End the current call of :meth:`wait`. If no thread waits, the next call returns immediately."""
        self._sockets[1].send(b"!")

    def wait(self, seconds: float, *others: int) -> None:
        """Wait for a ring or for input on one of the file descriptors ``others``, for at most ``seconds``.

        poll(2) needs no file descriptor of its own, so the thread survives while the process can open no file.
        """
        own, waiting = self._sockets[0].fileno(), selecting.poll()
        for descriptor in (own, *others):
            waiting.register(descriptor, selecting.POLLIN)
        if any(descriptor == own for descriptor, _ in waiting.poll(max(0.0, seconds) * 1000)):
            self._sockets[0].recv(4096)

    def close(self) -> None:
        """Close the sockets."""
        for one in self._sockets:
            one.close()


@dataclass(frozen=True, slots=True)
class NoticeListener:
    """A connection to PostgreSQL that receives the notices of all replicas except ``own``, this replica."""

    connection: Any
    own: str

    def wait(self, seconds: float, doorbell: Doorbell) -> list[ChangeNotice]:
        """Return other replicas' notices, after a wait for a notice or a ring of ``doorbell`` of at most ``seconds``.

        Raise an error of the database driver if the connection is lost.
        """
        notices = self._take()
        if not notices:
            doorbell.wait(seconds, self.connection.fileno())
            notices = self._take()
        return notices

    def check(self) -> None:
        """Raise an error of the database driver if the connection is lost."""
        self.connection.execute("SELECT 1")

    def _take(self) -> list[ChangeNotice]:
        found = (parse_notice(notify.payload, self.own) for notify in self.connection.notifies(timeout=0))
        return [notice for notice in found if notice is not None]


@contextmanager
def listen_for_notices(engine: Engine, own: str) -> Iterator[NoticeListener]:
    """Yield a listener on a separate connection. Raise an error of SQLAlchemy if the connection fails."""
    with make_separate_engine(engine).connect() as connection:
        connection.execute(text(f"LISTEN {CHANNEL}"))
        connection.commit()  # so that the end of a lost connection sends no rollback, whose error would hide the cause
        yield NoticeListener(connection.connection.driver_connection, own)
