"""A PostgreSQL server of the tests' own, in a temporary folder, on a UNIX socket only."""

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
ENGLISH = ("--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-u-ka-shifted")
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "150",
    "shared_buffers": "32MB",
    "timezone": "Pacific/Auckland",
}
"""Quick and forgetful; far from UTC, and (above) sorting as dictionaries do, which pass over dashes, so that nothing
depends on either."""

KEEP_ROWS = """
DO $$ DECLARE one record; found boolean; BEGIN
  CREATE SCHEMA initial;
  FOR one IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', one.tablename) INTO found;
    IF found THEN EXECUTE format('CREATE TABLE initial.%1$I AS TABLE public.%1$I', one.tablename); END IF;
  END LOOP;
END $$"""
"""Copies what tables have rows at first to another schema."""
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
"""Replaces all rows by those, without foreign keys being checked in between."""
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"


class NoPostgresError(Exception):
    """PostgreSQL's programs are not on this machine."""


def programs() -> Path:
    """Find the newest server's programs."""
    found = sorted(PROGRAMS.glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise NoPostgresError(f"NO POSTGRESQL: there is no {PROGRAMS}/*/bin/postgres; install Debian's postgresql")
    return found[-1].parent


@dataclass
class PostgresServer:
    """The server; it ends with this process, however that ends."""

    folder: Path
    programs: Path
    settings: Mapping[str, str]
    _numbers: Iterator[int] = field(default_factory=count)
    _process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make the cluster."""
        made = self._command("initdb", "-D", str(self.folder / "data"), "-U", "sbf", "-A", "trust", "-N", *ENGLISH)
        subprocess.run(made, check=True, capture_output=True)  # noqa: S603 - our own command

    def start(self) -> None:
        """Start it and wait until it answers."""
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
        """Stop it: SIGINT ends sessions and stops in order, SIGQUIT is as a crash."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(30)

    def new_database(self, template: str = "template0") -> str:
        """Make a database, as a copy of ``template``; gives its name."""
        name = f"sbf{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def keep_rows(self, name: str) -> None:
        """Record the rows of a database, so that :meth:`restore_rows` can restore them."""
        self.run(KEEP_ROWS, name)

    def restore_rows(self, name: str) -> None:
        """End all sessions of a database, and restore its rows: ten times as quick as a new database."""
        self.run(END_SESSIONS.format(name=name))
        self.run(RESTORE_ROWS, name)

    def drop(self, name: str) -> None:
        """Remove a database, also one that is in use."""
        self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def url(self, name: str, **more: str) -> str:
        """Give a database's address."""
        query = "".join(f"&{key}={value}" for key, value in more.items())
        return f"postgresql://sbf@/{name}?host={self.folder}{query}"

    def run(self, statement: str, database: str = "postgres") -> None:
        """Run one statement as the server's owner."""
        with psycopg.connect(host=str(self.folder), user="sbf", dbname=database, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _answers(self) -> bool:
        try:
            self.run("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _command(self, program: str, *arguments: str) -> list[str]:
        """Run as another user where we are root, which PostgreSQL refuses to be; end when this process ends."""
        user = ["--reuid=postgres", "--regid=postgres", "--init-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *user, "--pdeathsig", "INT", str(self.programs / program), *arguments]


@contextmanager
def running(**settings: str) -> Iterator[PostgresServer]:
    """Run a server for as long as the context lasts, with ``settings`` besides ours. Raises NoPostgresError."""
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
