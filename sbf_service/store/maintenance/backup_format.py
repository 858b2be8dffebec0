"""The format of a backup file: JSON lines, compressed with gzip (docs/decisions/0073).

The first line is the header: the format, the versions, and the columns of each table. A line ``{"table": NAME}`` begins
a table. Each row is a list of values. The last line has the number of rows of each table, and the SHA-256 of all other
lines. With the SHA-256, ``sbf restore`` detects a truncated or edited file before it changes the database.

A backup of SQLite can be restored into PostgreSQL, and the reverse.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from sqlalchemy import BigInteger, Boolean, Float, Integer, String, TableClause, Text, column, table
from sqlalchemy.types import TypeEngine

from sbf_service.store.tables.columns import UtcDateTime, VlanSetText
from virtcloud.model.document import Document
from virtcloud.model.errors import BadInput
from virtcloud.model.validation_errors import format_validation_errors

FORMAT = "virtcloud-backup"
FORMAT_VERSION = 1
MAX_LINE = 1 << 30
"""The maximum length of a line, in bytes, to protect the memory of ``sbf restore``.

The line of a cluster with 4,096 guests and the maximum size of user data has about 70 MB. PostgreSQL stores no value
above 1 GiB.
"""

ColumnKind = Literal["integer", "float", "boolean", "time", "text"]
_TYPES: Mapping[ColumnKind, TypeEngine[Any]] = {
    "integer": BigInteger(),
    "float": Float(),
    "boolean": Boolean(),
    "time": UtcDateTime(),
    "text": Text(),
}


class BackupHeader(Document):
    """The first line of a backup file."""

    format: Literal["virtcloud-backup"] = "virtcloud-backup"
    format_version: int = FORMAT_VERSION
    virtcloud: str
    """The version of the program that wrote the file."""
    migration: str
    """The newest migration of the database."""
    database: str
    """The kind of the database: `sqlite` or `postgresql`."""
    taken_at: datetime
    counters: dict[str, int] = Field(default_factory=dict)
    """The highest row number that was ever assigned, for each table whose row numbers must not be reused."""
    tables: dict[str, dict[str, ColumnKind]]
    """The columns of each table with their kinds, in the order of the values in a row."""


class BackupTrailer(Document):
    """The last line of a backup file."""

    rows: dict[str, int]
    sha256: str


def find_column_kind(type_: TypeEngine[Any]) -> ColumnKind:
    """Return the kind of a column's values in a backup. Raise TypeError for an unsupported type."""
    if isinstance(type_, UtcDateTime):
        return "time"
    kinds: tuple[tuple[type[TypeEngine[Any]], ColumnKind], ...] = (
        (Boolean, "boolean"),
        (Integer, "integer"),
        (Float, "float"),
        (String, "text"),
    )
    found = Text() if isinstance(type_, VlanSetText) else type_
    for known, kind in kinds:
        if isinstance(found, known):
            return kind
    raise TypeError(f"backups have no kind of column for {type_!r}")


def make_table(name: str, columns: Mapping[str, ColumnKind]) -> TableClause:
    """Return an SQLAlchemy table with a backup's columns, which may differ from the columns of this version's table."""
    return table(name, *(column(key, _TYPES[kind]) for key, kind in columns.items()))


def _format_value(value: object) -> object:
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _parse_row(values: list[Any], columns: Mapping[str, ColumnKind]) -> dict[str, object]:
    if len(values) != len(columns):
        raise ValueError(f"expected {len(columns)} values, found {len(values)}")
    return {
        name: datetime.fromisoformat(value) if kind == "time" and value is not None else value
        for (name, kind), value in zip(columns.items(), values, strict=True)
    }


def _format_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _make_long_row(name: str, first: object, length: int) -> BadInput:
    return BadInput(
        f"backup: table {name}, row {first}: expected at most {MAX_LINE} bytes, found {length}: back up the "
        "database with its own program, such as pg_dump, until SBF has deleted the row"
    )


@dataclass
class BackupWriter:
    """Writes a backup into a binary file."""

    file: gzip.GzipFile
    rows: dict[str, int] = field(default_factory=dict)
    _digest: Any = field(default_factory=hashlib.sha256)

    def write_header(self, header: BackupHeader) -> None:
        """Write the first line."""
        self._write(header.model_dump(mode="json"))

    def write_table(self, name: str, rows: Iterable[Iterable[object]]) -> None:
        """Write all rows of a table. Raise BadInput for a row that is too long to be restored."""
        self._write({"table": name})
        self.rows[name] = 0
        for row in rows:
            values = [_format_value(value) for value in row]
            line = _format_line(values)
            if len(line) > MAX_LINE:
                raise _make_long_row(name, values[0], len(line))
            self._write_line(line)
            self.rows[name] += 1

    def write_trailer(self) -> None:
        """Write the last line."""
        self._write(BackupTrailer(rows=self.rows, sha256=self._digest.hexdigest()).model_dump())

    def _write(self, value: object) -> None:
        self._write_line(_format_line(value))

    def _write_line(self, line: bytes) -> None:
        self._digest.update(line)
        self.file.write(line)


@dataclass(frozen=True)
class BackupFile:
    """A complete backup file with a correct checksum, whose rows can be read several times."""

    path: Path
    header: BackupHeader
    rows: Mapping[str, int]

    def read_tables(self) -> Iterator[tuple[str, Iterator[dict[str, object]]]]:
        """Yield table names and rows. Read all rows of a table before the next table."""
        with gzip.open(self.path) as file:
            lines = _read_lines(file)
            next(lines)
            for _, line in lines:
                if "table" in line:
                    yield line["table"], self._read_rows(line["table"], lines)

    def _read_rows(self, name: str, lines: Iterator["_Line"]) -> Iterator[dict[str, object]]:
        columns = self.header.tables[name]
        return (_parse_row(next(lines)[1], columns) for _ in range(self.rows[name]))


_Line = tuple[bytes, Any]


def open_backup(path: Path) -> BackupFile:
    """Read a whole backup file and check it.

    Raise BadInput for a file that is unreadable, incomplete, changed, or of a later format.
    """
    try:
        with gzip.open(path) as file:
            lines, digest = _read_lines(file), hashlib.sha256()
            header = _parse_header(path, next(lines, (b"", None)), digest)
            return BackupFile(path, header, _check_lines(lines, header, digest))
    except BadInput:
        raise
    except EOFError as error:
        raise _make_error(path, "ends before its last line, so it was truncated") from error
    except (gzip.BadGzipFile, zlib.error, ValueError, LookupError, TypeError) as error:
        raise _make_error(path, f"was edited or damaged ({error})") from error
    except OSError as error:
        raise BadInput(
            f"backup {path}: cannot be read: {error.strerror or error}; correct the name, or the rights of the file"
        ) from error


def _make_error(path: Path, fault: str) -> BadInput:
    return BadInput(
        f"backup {path}: expected a complete file of sbf backup, but the file {fault}: use another backup; "
        "the database was left unchanged"
    )


def _read_lines(file: gzip.GzipFile) -> Iterator[_Line]:
    while line := file.readline(MAX_LINE):
        if not line.endswith(b"\n"):
            raise EOFError
        yield line, json.loads(line)


def _parse_header(path: Path, line: _Line, digest: "hashlib._Hash") -> BackupHeader:
    raw, values = line
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise _make_error(path, "has another format")
    if values["format_version"] > FORMAT_VERSION:
        raise BadInput(
            f"backup {path}: expected format {FORMAT_VERSION} or older, found format {values['format_version']} of "
            f"virtcloud {values['virtcloud']}: restore with that version; the database was left unchanged"
        )
    digest.update(raw)
    try:
        return BackupHeader.model_validate(values)
    except ValidationError as error:
        raise ValueError(f"first line: {', '.join(format_validation_errors(error).splitlines())}") from error


def _check_lines(lines: Iterator[_Line], header: BackupHeader, digest: "hashlib._Hash") -> Mapping[str, int]:
    rows, name = dict[str, int](), ""
    for raw, line in lines:
        if isinstance(line, list):
            _parse_row(line, header.tables[name])
            rows[name] += 1
        elif "sha256" in line:
            trailer = BackupTrailer.model_validate(line)
            if (trailer.sha256, trailer.rows) != (digest.hexdigest(), rows) or rows.keys() != header.tables.keys():
                raise ValueError("its checksum differs")
            if next(lines, None) is not None:
                raise ValueError("lines follow the last line")
            return rows
        else:
            name = line["table"]
            rows[name] = 0
        digest.update(raw)
    raise EOFError
