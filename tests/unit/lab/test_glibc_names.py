"""Tests that a program which was linked with a newer glibc is adapted to an older glibc.

The tests link programs with a small library that has the name and the symbol versions of glibc 2.38.
"""

import struct
import subprocess
from pathlib import Path

import pytest

from virtcloud.lab.glibc_names import DYNSYM, SECTION_COUNT, SECTION_OFFSET, VERSYM, use_older_names

LIBRARY = """
long __isoc23_strtol(const char *text, char **end, int base) { return 0; }
void newer_function(void) {}
unsigned long strlen(const char *text) { return 0; }
int __libc_start_main(void) { return 0; }
"""
VERSIONS = """
GLIBC_2.2.5 { global: strlen; local: *; };
GLIBC_2.34 { global: __libc_start_main; };
GLIBC_2.38 { global: __isoc23_strtol; newer_function; };
"""
PROGRAM = """
long __isoc23_strtol(const char *text, char **end, int base);
void newer_function(void);
unsigned long strlen(const char *text);
int main(int argc, char **argv) { if (argc > 3) CALL; return __isoc23_strtol(argv[1], 0, 10) + strlen(argv[2]); }
"""


def link_program(folder: Path, call: str) -> Path:
    for name, text in (("libc.c", LIBRARY), ("versions", VERSIONS), ("program.c", PROGRAM.replace("CALL", call))):
        (folder / name).write_text(text)
    options = ["-shared", "-nostdlib", "-fno-builtin", "-w", "-Wl,-soname,libc.so.6", "-Wl,--version-script,versions"]
    run_compiler(folder, *options, "-o", "newer.so", "libc.c")
    run_compiler(folder, "-fno-builtin", "-nodefaultlibs", "-o", "program", "program.c", "./newer.so")
    return folder / "program"


def run_compiler(folder: Path, *argv: str) -> None:
    subprocess.run(["gcc", *argv], cwd=folder, check=True)  # noqa: S603, S607 - constant arguments


def test_a_program_that_needs_only_new_names_runs_here(tmp_path: Path) -> None:
    program = link_program(tmp_path, "strlen(argv[3])")
    newer = program.read_bytes()
    older = use_older_names(newer)
    assert (b"GLIBC_2.38" in older, len(older), use_older_names(older)) == (True, len(newer), older)
    program.write_bytes(older)
    assert subprocess.run([program, "30", "four"], check=False).returncode == 34  # noqa: S603 - the linked program


def test_a_program_that_needs_another_new_function_is_unchanged(tmp_path: Path) -> None:
    newer = link_program(tmp_path, "newer_function()").read_bytes()
    assert use_older_names(newer) == newer


def elf_program(*kinds: int) -> bytes:
    """Return an ELF file that has only the file's header and, for each of ``kinds``, the header of an empty section."""
    header = bytearray(64)
    struct.pack_into("<Q", header, SECTION_OFFSET, len(header))
    struct.pack_into("<H", header, SECTION_COUNT, len(kinds))
    return bytes(header) + b"".join(struct.pack("<IIQQQQIIQQ", 0, kind, *[0] * 8) for kind in kinds)


OTHER_FORMATS = {
    "empty": b"",
    "script": b"#!/bin/sh\n",
    "zeros": b"\x7fELF" + bytes(100),
    "no versions": elf_program(DYNSYM, VERSYM),
}


@pytest.mark.parametrize("program", OTHER_FORMATS.values(), ids=OTHER_FORMATS)
def test_other_formats_are_refused(program: bytes) -> None:
    with pytest.raises(ValueError, match="no dynamic ELF program"):
        use_older_names(program)
