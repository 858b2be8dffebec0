"""Adapts a program to an older glibc, if the program was linked with glibc 2.38 or later.

A program that calls strtol() and was linked with glibc 2.38 refers to ``__isoc23_strtol`` of version GLIBC_2.38. The
function ``__isoc23_strtol`` differs from strtol() of version GLIBC_2.2.5 only in that it also accepts binary numbers.
The same applies to other functions with the prefix ``__isoc23_``. :func:`use_older_names` replaces the references to
these functions by references to the older functions. If the program needs any other function of version GLIBC_2.38, the
program is not changed.

Format: System V ABI, AMD64 supplement; symbol versions: Linux Standard Base Core 5.0, section 10.7.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SECTION_OFFSET, SECTION_COUNT = 40, 60
SECTION_SIZE, SYMBOL_SIZE, VERSION_INDEX_SIZE = 64, 24, 2
DYNSYM, VERNEED, VERSYM = 11, 0x6FFFFFFE, 0x6FFFFFFF
PREFIX = b"__isoc23_"
NEW, OLD = b"GLIBC_2.38", b"GLIBC_2.2.5"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file: type, offset and size in bytes, and the index of the section with its strings."""

    kind: int
    offset: int
    size: int
    strings: int


@dataclass(frozen=True, slots=True)
class NeededVersion:
    """A symbol version that a program needs: the offset of its entry in the file, its name, and its index."""

    offset: int
    name: bytes
    index: int


def use_older_names(program: bytes) -> bytes:
    """Return ``program`` (ELF, 64 bits, little-endian) with references to the older functions. Idempotent.

    Raise ValueError if ``program`` has another format.
    """
    try:
        return _renamed(program)
    except (struct.error, StopIteration, IndexError) as error:
        raise ValueError(f"the program is no dynamic ELF program of 64 bits: {error!r}") from error


def _renamed(program: bytes) -> bytes:
    sections = _read_sections(program)
    symbols = next(section for section in sections if section.kind == DYNSYM)
    indexes = next(section for section in sections if section.kind == VERSYM)
    needed = next(section for section in sections if section.kind == VERNEED)
    versions = {version.name: version for version in _read_versions(program, sections, needed)}
    if NEW not in versions or OLD not in versions:
        return program
    strings, changed = sections[symbols.strings].offset, bytearray(program)
    references = _references(program, symbols, indexes, versions[NEW].index)
    names = {at: struct.unpack_from("<I", program, at)[0] for at in references}
    if not all(program.startswith(PREFIX, strings + name) for name in names.values()):
        return program
    for at, name in names.items():
        struct.pack_into("<I", changed, at, name + len(PREFIX))
    _replace_version(changed, versions[NEW], versions[OLD])
    return bytes(changed)


def _read_sections(program: bytes) -> list[Section]:
    (table,), (count,) = (
        struct.unpack_from("<Q", program, SECTION_OFFSET),
        struct.unpack_from("<H", program, SECTION_COUNT),
    )
    headers = (struct.unpack_from("<IIQQQQIIQQ", program, table + SECTION_SIZE * index) for index in range(count))
    return [Section(header[1], header[4], header[5], header[6]) for header in headers]


def _read_versions(program: bytes, sections: list[Section], needed: Section) -> Iterator[NeededVersion]:
    strings, library, following = sections[needed.strings].offset, needed.offset, -1
    while following:
        _, count, _, first, following = struct.unpack_from("<HHIII", program, library)
        at = library + first
        for _ in range(count):
            _, _, index, name, size = struct.unpack_from("<IHHII", program, at)
            start = strings + name
            yield NeededVersion(at, program[start : program.index(b"\0", start)], index)
            at += size
        library += following


def _references(program: bytes, symbols: Section, indexes: Section, version: int) -> list[int]:
    return [
        symbols.offset + SYMBOL_SIZE * number
        for number in range(symbols.size // SYMBOL_SIZE)
        if struct.unpack_from("<H", program, indexes.offset + VERSION_INDEX_SIZE * number)[0] == version
    ]


def _replace_version(program: bytearray, old: NeededVersion, new: NeededVersion) -> None:
    (hash_of_name,) = struct.unpack_from("<I", program, new.offset)
    (name,) = struct.unpack_from("<I", program, new.offset + 8)
    struct.pack_into("<I", program, old.offset, hash_of_name)
    struct.pack_into("<I", program, old.offset + 8, name)
