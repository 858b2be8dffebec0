"""Counters of costs: SQL statements, rows fetched, steps of SQLite's virtual machine, and processor time."""

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sqlalchemy import Engine, event


@dataclass(slots=True)
class Costs:
    """The costs of one operation.

    ``sent``: the number of characters of the statements' parameters. ``steps``: the number of instructions that the
    virtual machine of SQLite executed; 0 for other databases. ``instructions``: the number of instructions that Python
    executed; 0 if they were not counted.
    """

    statements: int = 0
    rows: int = 0
    sent: int = 0
    steps: int = 0
    instructions: int = 0
    processor_s: float = 0.0


STEP = 20
"""The number of virtual-machine instructions after which SQLite reports to the counter."""


class CostCounter:
    """Counts the costs of the statements of one engine. Create the counter before the engine connects."""

    def __init__(self, engine: Engine, *, steps: bool = False) -> None:
        """Listen to the events of an engine.

        If ``steps``, also count SQLite's instructions; the count takes processor time.
        """
        self.costs = Costs()
        self._engine, self._counts_steps = engine, steps
        self.counts_instructions = False
        """Whether :meth:`measure` also counts Python's instructions. The count is slow."""
        event.listen(engine, "do_connect", self._replace_cursor)
        event.listen(engine, "connect", self._prepare)
        event.listen(engine, "before_cursor_execute", self._count_statement)
        event.listen(engine, "after_cursor_execute", self._count_result)

    @contextmanager
    def measure(self, server: "ServerProcesses | None" = None) -> Iterator[Costs]:
        """Yield the costs of the code in the context. The values are complete at the end of the context."""
        costs = self.costs = Costs()
        server_before = server.processor_s() if server else 0.0
        before = time.process_time()
        with _count_instructions(costs) if self.counts_instructions else nullcontext():
            yield costs
        costs.processor_s = time.process_time() - before
        costs.processor_s += server.processor_s() - server_before if server else 0.0

    def _replace_cursor(self, _dialect: object, _record: object, _arguments: object, settings: dict[str, Any]) -> None:
        if self._engine.dialect.name == "sqlite":
            settings["factory"] = _make_connection_class(self)

    def _prepare(self, connection: Any, _record: object) -> None:  # noqa: ANN401 - a connection of any driver
        if self._counts_steps and isinstance(connection, sqlite3.Connection):
            connection.set_progress_handler(self._count_steps, STEP)

    def _count_steps(self) -> int:
        self.costs.steps += STEP
        return 0

    def _count_statement(
        self, _connection: object, _cursor: object, _text: str, parameters: object, _context: object, _many: object
    ) -> None:
        self.costs.statements += 1
        self.costs.sent += len(str(parameters))

    def _count_result(self, _connection: object, cursor: Any, *_rest: object) -> None:  # noqa: ANN401 - of any driver
        if not isinstance(cursor, sqlite3.Cursor) and cursor.description is not None:
            self.costs.rows += max(cursor.rowcount, 0)


@contextmanager
def _count_instructions(costs: Costs) -> Iterator[None]:
    def trace(frame: FrameType, event_name: str, _argument: object) -> Any:  # noqa: ANN401 - see sys.settrace
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        costs.instructions += event_name == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _make_connection_class(counter: CostCounter) -> type[sqlite3.Connection]:
    class CountingCursor(sqlite3.Cursor):
        def fetchall(self) -> list[Any]:
            return _counted(super().fetchall())

        def fetchmany(self, size: int | None = None) -> list[Any]:
            return _counted(super().fetchmany(self.arraysize if size is None else size))

        def fetchone(self) -> Any:  # noqa: ANN401 - a row
            row = super().fetchone()
            counter.costs.rows += row is not None
            return row

    def _counted(rows: list[Any]) -> list[Any]:
        counter.costs.rows += len(rows)
        return rows

    class CountingConnection(sqlite3.Connection):
        def cursor(self, *_arguments: Any, **_options: Any) -> Any:  # noqa: ANN401 - the arguments of sqlite3
            return super().cursor(CountingCursor)

    return CountingConnection


@dataclass(frozen=True, slots=True)
class ServerProcesses:
    """The process ``pid`` of a database server on this machine, and its children, including ended children."""

    pid: int

    def processor_s(self) -> float:
        """Return the processor time of all processes of the server, in seconds."""
        total = 0
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    words = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                except OSError:
                    continue
                is_server = int(folder.name) == self.pid
                if is_server or int(words[1]) == self.pid:
                    total += sum(map(int, words[11:15] if is_server else words[11:13]))
        return total / os.sysconf("SC_CLK_TCK")
