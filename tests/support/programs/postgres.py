"""A PostgreSQL server for tests, with its files in a temporary folder. The server listens on a UNIX socket only."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg

PROGRAMS = Path("/usr/lib/postgresql")
SORT_ORDER = ("--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=th")
"""The order of Thai ignores hyphens, and orders Latin letters as English does.

The locale ``en-u-ka-shifted`` has the same order, but PostgreSQL would need twice as long for a new connection.
"""
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "150",
    "shared_buffers": "32MB",
    "timezone": "Pacific/Auckland",
}
"""Fast settings without durability.

The time zone is far from UTC, and the sort order (``SORT_ORDER``) ignores hyphens. So tests detect a dependence on the
time zone or the sort order.
"""

KEEP_ROWS = """
DO $$ DECLARE one record; found boolean; BEGIN
  CREATE SCHEMA initial;
  FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', one.tablename) INTO found;
    IF found THEN EXECUTE format('CREATE TABLE initial.%1$I AS TABLE public.%1$I', one.tablename); END IF;
  END LOOP;
END $$"""
"""Copies the initial rows of all non-empty tables to the schema ``initial``."""
RESTORE_ROWS = """
DO $$ DECLARE one record; BEGIN
  PERFORM set_config('session_replication_role', 'replica', true);
  FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('DELETE FROM public.%I', one.tablename);
    IF to_regclass(format('initial.%I', one.tablename)) IS NOT NULL THEN
      EXECUTE format('INSERT INTO public.%1$I SELECT * FROM initial.%1$I', one.tablename);
    END IF;
  END LOOP;
  PERFORM setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
    FROM pg_sequences WHERE schemaname = 'public';
END $$"""
"""Replaces all rows by the recorded initial rows, and resets all sequences. Foreign keys are not checked."""
END_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()"""
"""Requests the end of all other sessions of a database. Returns a row for each session that has not ended yet."""


class NoPostgresError(Exception):
    """PostgreSQL is not installed on this machine."""


def programs() -> Path:
    found = sorted(PROGRAMS.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise NoPostgresError(f"NO POSTGRESQL: there is no {PROGRAMS}/*/bin/postgres; install Debian's postgresql")
    return found[-1].parent


@dataclass
class PostgresServer:
    """A PostgreSQL server. If this process ends for any reason without calling `stop`, the server ends too."""

    folder: Path
    programs: Path
    settings: Mapping[str, str]
    _numbers: Iterator[int] = field(default_factory=count)
    _process: subprocess.Popen[bytes] | None = None
    _connections: dict[str, psycopg.Connection[tuple[object, ...]]] = field(default_factory=dict)

    def make(self) -> None:
        made = self._command("initdb", "-D", str(self.folder / "data"), "-U", "sbf", "-A", "trust", "-N", *SORT_ORDER)
        subprocess.run(made, check=True, capture_output=True)  # noqa: S603 - our own command

    def start(self) -> None:
        chosen = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", str(self.folder / "data"), "-k", str(self.folder), *chosen)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log)  # noqa: S603 - our own command
        ends = time.monotonic() + 30
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > ends:
                raise AssertionError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: with SIGINT normally, with SIGQUIT as in a crash."""
        assert self._process is not None
        for database in tuple(self._connections):
            self._disconnect(database)
        self._process.send_signal(how)
        self._process.wait(30)

    @property
    def pid(self) -> int:
        """The process ID of the running server."""
        assert self._process is not None
        return self._process.pid

    def new_database(self, template: str = "template0") -> str:
        name = f"sbf{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def keep_rows(self, name: str) -> None:
        self.run(KEEP_ROWS, name)

    def restore_rows(self, name: str) -> None:
        """End all other sessions of a database and restore its rows.

        This takes a tenth of the time that the creation of a database would take.
        """
        self._end_sessions(name, name)
        self.run(RESTORE_ROWS, name)

    def drop(self, name: str) -> None:
        self._disconnect(name)
        self._end_sessions(name, "postgres")
        self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def _end_sessions(self, name: str, database: str) -> None:
        """End all sessions of the database ``name``, except the own session, which uses ``database``.

        PostgreSQL's own wait for the end of a session takes 0.1 s at least.
        """
        ends = time.monotonic() + 30
        while self.run(END_SESSIONS.format(name), database) > 0:
            assert time.monotonic() < ends, f"sessions of {name} do not end"
            time.sleep(0.001)

    def url(self, name: str, **more: str) -> str:
        query = "".join(f"&{key}={value}" for key, value in more.items())
        return f"postgresql://sbf@/{name}?host={self.folder}{query}"

    def run(self, statement: str, database: str = "postgres") -> int:
        """Run one SQL statement as the owner of the server. Return the number of rows, or -1 without a result.

        One connection to each database stays open, because a new connection takes 5 ms of processor time.
        """
        if database not in self._connections:
            self._connections[database] = psycopg.connect(
                host=str(self.folder), user="sbf", dbname=database, autocommit=True
            )
        return self._connections[database].execute(statement.encode()).rowcount

    def _disconnect(self, database: str) -> None:
        if database in self._connections:
            self._connections.pop(database).close()

    def _answers(self) -> bool:
        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _command(self, program: str, *arguments: str) -> list[str]:
        """Return the arguments that start a program. The program ends when this process ends.

        If this process is root, the program runs as ``postgres``, because PostgreSQL refuses root.
        """
        user = ["--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *user, "--pdeathsig", "INT", str(self.programs / program), *arguments]


@contextmanager
def running(**settings: str) -> Iterator[PostgresServer]:
    """Run a server for the duration of the context. Raise NoPostgresError if PostgreSQL is not installed.

    ``settings`` override the defaults.
    """
    found = programs()
    folder = Path(tempfile.mkdtemp(prefix="sbf-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        server = PostgresServer(folder, found, {**SETTINGS, **settings})
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
