"""Unpacking the archive of a root file system, in a process that first calls chroot(2) with the target folder."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from virtcloud.model.errors import Refused
from virtcloud.model.image import ImageFormat

COMPRESSIONS: Final = {ImageFormat.TAR: "", ImageFormat.TAR_GZ: "gz", ImageFormat.TAR_XZ: "xz", ImageFormat.TAR_ZST: ""}
"""The compression of the data that Python's tarfile reads, or "" for data without compression.

The program zstd decompresses ``tar.zst`` before tarfile reads the data.
"""
PROGRAM: Final = Path(__file__).with_name("unpack_program.py")
"""The agent does not import the program, because tarfile would need memory in each agent."""
MAX_ERROR_CHARACTERS: Final = 500
NOBODY: Final = 65534
"""The user as which zstd decompresses an untrusted archive."""


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """The limits of a root file system: its size in bytes, and its number of files."""

    size: int
    files: int = 2_000_000


def unpack(archive: Path, image_format: ImageFormat, folder: Path, limits: UnpackLimits, architecture: str) -> int:
    """Unpack an archive into an empty folder. Return the size of the unpacked files in bytes.

    Raise Refused if the archive is damaged, exceeds a limit, or has no init program for ``architecture``. Also raise
    Refused if the archive is compressed with zstd, and the program zstd is not installed.
    """
    arguments = (folder, COMPRESSIONS[image_format], limits.size, limits.files, architecture)
    argv = [sys.executable, "-I", "-S", str(PROGRAM), *map(str, arguments)]
    with archive.open("rb") as file:
        if image_format is not ImageFormat.TAR_ZST:
            return _run(argv, file.fileno())
        try:
            decompressor = subprocess.Popen(
                ["zstd", "-dcq"],  # noqa: S607 - found in the standard path
                stdin=file,
                stdout=subprocess.PIPE,
                env={"PATH": os.defpath},
                user=NOBODY,
                group=NOBODY,
                extra_groups=(),
            )
        except FileNotFoundError as error:
            raise Refused("cannot unpack the archive: zstd is not installed; apt-get install zstd") from error
    with decompressor:
        size = _run(argv, cast("IO[bytes]", decompressor.stdout).fileno())
    if decompressor.returncode not in {0, -signal.SIGPIPE}:  # SIGPIPE: there are data behind the archive's end
        raise Refused(
            f"cannot unpack the archive: zstd ended with exit code {decompressor.returncode}; check the archive with "
            "'zstd -t', and compress it again if it is damaged"
        )
    return size


def _run(argv: list[str], archive: int) -> int:
    done = subprocess.run(argv, stdin=archive, capture_output=True, text=True, errors="replace", check=False, env={})  # noqa: S603 - no shell
    if done.returncode:
        reason = " ".join(done.stderr.split())[:MAX_ERROR_CHARACTERS] or f"the program ended with {done.returncode}"
        raise Refused(f"cannot unpack the archive: {reason}")
    return int(done.stdout)
