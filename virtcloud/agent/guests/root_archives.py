"""Archives of containers' roots, from which images are made. `pack_program` packs a root."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from virtcloud.agent.files import refuse_os_errors, write_all
from virtcloud.agent.guests import mounts
from virtcloud.agent.guests.guest_archives import READ_BYTES, GuestArchive, open_archive_files
from virtcloud.agent.guests.id_ranges import IDS_PER_GUEST
from virtcloud.agent.guests.rooted_files import GuestRoot
from virtcloud.model.errors import Refused
from virtcloud.model.guest_seed import GuestSeed
from virtcloud.model.image import ImageFormat

PROGRAM: Final = Path(__file__).with_name("pack_program.py")
"""The agent does not import the program, because tarfile would need memory in each agent."""
MIN_KEY_LINE: Final = 40
MAX_ERROR_CHARACTERS: Final = 500


class RootArchive(GuestArchive):
    """An archive of a container's root."""

    image_format = ImageFormat.TAR_GZ

    def pack(self, root: GuestRoot, texts: Iterable[str]) -> Generator[int]:
        """Pack a root. Omit files that contain one of ``texts``. Yield the number of bytes written so far.

        If the caller closes the generator, the packing program is killed. Raise Refused if a file cannot be read, the
        disk is full, or the guest was removed during the packing.
        """
        with refuse_os_errors(f"pack the root {root.folder}"), _running_program(root, texts) as program:
            output, packed = program.stdout, root.folder.stat()
            while data := output.read1(READ_BYTES) if output else b"":  # type: ignore[attr-defined] # a buffered pipe
                write_all(self._file, data)
                self._digest.update(data)
                yield self.size
            error = program.stderr.read().decode(errors="replace") if program.stderr else ""
            if program.wait():
                raise Refused(f"cannot pack the root: {' '.join(error.split())[:MAX_ERROR_CHARACTERS]}")
            if not os.path.samestat(packed, root.folder.stat()):  # a removal first unmounts the root
                raise Refused(f"expected a complete archive of {root.folder}, but the guest was removed meanwhile")


@contextmanager
def open_root_archive(folder: Path) -> Iterator[RootArchive]:
    """Yield an empty archive on the file system of ``folder``."""
    with open_archive_files(folder, 1) as (file,):
        yield RootArchive(file)


def list_key_lines(seed: GuestSeed | None) -> list[str]:
    """Return lines of the private keys of a guest and its cluster, which identify files that contain the keys.

    Omit the first two lines and the last line of each key, which other OpenSSH keys share, and lines with fewer than
    `MIN_KEY_LINE` characters.
    """
    keys = () if seed is None else (seed.host_key, seed.cluster_key)
    lines = (line for key in keys for line in key.get_secret_value().splitlines()[2:-1])
    return [line for line in lines if len(line) >= MIN_KEY_LINE]


@contextmanager
def _running_program(root: GuestRoot, texts: Iterable[str]) -> Iterator[subprocess.Popen[bytes]]:
    with (
        mounts.opened_folder(root.folder) as folder,
        mounts.user_namespace(root.id_shift, IDS_PER_GUEST) as namespace,
        subprocess.Popen(  # noqa: S603 - no shell
            [sys.executable, "-I", "-S", str(PROGRAM), str(folder), str(namespace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(folder, namespace),
            env={},
        ) as program,
    ):
        try:
            if program.stdin:
                program.stdin.write(json.dumps(list(texts)).encode())
                program.stdin.close()
            yield program
        finally:
            program.kill()
