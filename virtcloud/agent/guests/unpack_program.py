"""The program that unpacks the archive of a container's root file system.

The agent runs ``python -I -S unpack_program.py FOLDER COMPRESSION BYTES FILES MACHINE``, with the archive on stdin. The
program uses only the standard library.

The program calls chroot(2) with the folder before it unpacks the archive, so no name and no symbolic link in the
archive leads to a file outside the folder. Then the program drops the capabilities that it does not need, such as
CAP_SYS_CHROOT, with which the program could leave the folder. The program creates no devices and no FIFOs. Unpacked
files have the owners, modes, setuid bits and capabilities that the archive contains. On the host, only root can enter
the folder. The program prints the size that `extract` returns.
"""

import ctypes
import encodings.utf_8
import lzma
import os
import resource
import signal
import stat
import struct
import sys
import tarfile
import zlib
from pathlib import Path
from typing import Literal, cast

PRELOADED = (
    encodings.utf_8,
    lzma,
    zlib,
)  # modules that tarfile needs, and could not import after chroot(2)
INIT = "/sbin/init"
CAPABILITY = "security.capability"
MEMORY_BYTES = 2 << 30
BLOCK_BYTES = 4096
PR_SET_PDEATHSIG = 1
CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
KEPT_CAPABILITIES = (0, 1, 3, 4, 31)
"""CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID and CAP_SETFCAP (linux/capability.h)."""
ELF_MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243, "ppc64le": 21, "s390x": 22, "i686": 3, "armv7l": 40}
"""Numbers of processor architectures in ELF files (e_machine, elf(5))."""
DAMAGE = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, ValueError)
"""The errors of the modules that read a damaged or incomplete archive."""


class BadArchive(Exception):
    """The archive cannot be unpacked. The message is the reason."""


def main(folder: str, compression: str, max_bytes: int, max_files: int, machine: str) -> int:
    """Unpack the archive from stdin. Return the size that `extract` returns.

    Raise BadArchive if the archive exceeds a limit or has no suitable init program. Raise TarError, OSError, ValueError
    or the decompressor's errors if the archive cannot be read or unpacked.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # if the agent ends, the kernel kills this program
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mode = cast("Literal['r|*']", f"r|{compression}")  # without compression, tarfile expects 'r|'
    archive = tarfile.open(fileobj=sys.stdin.buffer, mode=mode, errorlevel=1)  # noqa: SIM115 - open until the end of the program
    os.chroot(folder)
    os.chdir("/")
    os.umask(0)
    drop_capabilities()
    sys.path.clear()  # otherwise, an import would execute a module of the archive
    size = extract(archive, max_bytes, max_files)
    check_init(machine)
    return size


def drop_capabilities() -> None:
    """Drop all capabilities except those that set owners, modes and file capabilities. Raise OSError on failure."""
    bits = sum(1 << capability for capability in KEPT_CAPABILITIES)
    header, data = struct.pack("Ii", CAPABILITY_VERSION_3, 0), struct.pack("6I", bits, bits, 0, 0, 0, 0)
    if ctypes.CDLL(None).capset(header, data):
        raise OSError("cannot drop capabilities")


def extract(archive: tarfile.TarFile, max_bytes: int, max_files: int) -> int:
    """Create all files of an archive except devices, FIFOs, and hard links to devices and FIFOs.

    Raise BadArchive if the archive exceeds a limit, or if the file of a hard link is missing.

    Return the size of the files in bytes, plus ``BLOCK_BYTES`` for each member.
    """
    # Accept all members. Python up to 3.11.3 has no argument for a filter.
    archive.extraction_filter = lambda member, _: member
    size, devices = 0, set[str]()
    for count, member in enumerate(archive, 1):
        archive.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps every member in memory
        size += BLOCK_BYTES + count_bytes(member)
        if size > max_bytes or count > max_files:
            raise BadArchive(
                f"the archive contains more than {max_bytes} bytes or {max_files} files; the limits are in the agent's "
                "settings (image_cache)"
            )
        if member.isdev() or (member.islnk() and member.linkname in devices):
            devices.add(member.name)
            continue
        if member.islnk():
            prepare_hard_link(member)
        devices.discard(member.name)
        archive.extract(member, path="/", numeric_owner=True)
        set_capabilities(member)
    return size


def count_bytes(member: tarfile.TarInfo) -> int:
    """Return the maximum number of bytes that tarfile writes to the disk for a member.

    Raise BadArchive for a negative size.

    tarfile unpacks a member of an unknown type as a regular file. For a sparse file, tarfile writes all parts in the
    member's list, even if the file is shorter than its parts.
    """
    if member.type in tarfile.SUPPORTED_TYPES and not member.isreg():
        return 0
    parts = [length for _, length in cast("list[tuple[int, int]] | None", member.sparse) or ()]
    if min([member.size, *parts]) < 0:
        raise BadArchive(f"expected a size of at least 0 for {member.name!r}, got a negative size")
    return max(member.size, sum(parts))


def prepare_hard_link(member: tarfile.TarInfo) -> None:
    """Check that the file of a hard link exists. If this file is a symbolic link, make the member a symbolic link, too.

    tarfile creates no hard links to symbolic links whose target does not exist (yet). Raise BadArchive if the archive
    has no earlier member with the file's name.
    """
    target = Path("/", member.linkname)
    if target.is_symlink():
        member.type, member.linkname = tarfile.SYMTYPE, str(target.readlink())
    elif not target.exists():
        raise BadArchive(
            f"expected {member.linkname!r} before {member.name!r} in the archive, because {member.name!r} is a hard "
            "link to this file; got no such file: create the archive again, and exclude none of a file's names"
        )


def set_capabilities(member: tarfile.TarInfo) -> None:
    """Set the capabilities of a program, if the archive contains them (GNU tar's option --xattrs)."""
    value = member.pax_headers.get(f"SCHILY.xattr.{CAPABILITY}")
    if value is not None and member.isreg():
        os.setxattr(f"/{member.name}", CAPABILITY, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)


def check_init(machine: str) -> None:
    """Raise BadArchive unless the unpacked root has an init program for this processor architecture."""
    try:
        descriptor = os.open(INIT, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise BadArchive(
            f"expected the program {INIT} in the archive: {error.strerror}; create the archive from the top folder of "
            "a root file system: tar -C ROOT -c ."
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise BadArchive(f"expected the program {INIT} in the archive, got something else")
        head = file.read(20)
    if head.startswith(b"\x7fELF") and machine in ELF_MACHINES:
        found = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")  # noqa: PLR2004 - ELFDATA2MSB
        if found != ELF_MACHINES[machine]:
            names = {number: name for name, number in ELF_MACHINES.items()}
            raise BadArchive(f"expected programs for {machine}, but {INIT} is for {names.get(found, found)}")


def explain(fault: Exception) -> str:
    """Return the reason why the archive could not be unpacked, with a remedy for a damaged archive."""
    if isinstance(fault, BadArchive):
        return str(fault)
    reason = f"{type(fault).__name__}: {fault}"
    if not isinstance(fault, DAMAGE):
        return reason
    return (
        f"expected a complete archive, got a damaged archive ({reason}): get the file again, compare its checksum, and "
        "add it under another name"
    )


if __name__ == "__main__":
    try:
        total = main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    except (BadArchive, OSError, MemoryError, *DAMAGE) as fault:
        sys.stderr.write(explain(fault))
        sys.exit(1)
    sys.stdout.write(str(total))
