"""The program that packs a container's root as a tar archive. The archive omits the guest's SSH keys and state.

The agent runs ``python -I -S pack_program.py ROOT NAMESPACE``, so the file uses only the standard library. ROOT is the
open descriptor of the guest's root folder. NAMESPACE is the open descriptor of a user namespace with the guest's IDs.
stdin has a JSON list of texts. Each file of at most 1 MiB that contains one of these texts is omitted. The archive is
written to stdout (pax format, gzip). The same root always results in the same archive.

The guest controls all names, links and files in the root. Therefore the program enters the guest's user namespace,
where it has only the rights of the guest's root user, and calls chroot(2) with the guest's root folder. After
chroot(2), the program imports no modules and looks up no user names, because the guest may have replaced modules and
libraries.
"""

import ctypes
import encodings.utf_8
import errno
import fnmatch
import gzip
import io
import json
import os
import re
import resource
import signal
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator
from typing import BinaryIO

PRELOADED = (encodings.utf_8, gzip)
REMOVED = (
    *("dev/*", "proc/*", "run/*", "sys/*", "tmp/*", "var/tmp/*"),
    *("etc/ssh/ssh_host_*", "*.ssh/authorized_keys*", "*.ssh/id_*", "*.ssh/known_hosts*", "*/.*_history"),
    *("etc/hostname", "etc/virtcloud/*", "var/lib/cloud/*", "var/lib/dbus/machine-id", "var/lib/dhcp/*"),
    *("var/lib/random-seed", "var/lib/urandom/*", "var/lib/systemd/random-seed", "var/lib/systemd/credential.secret"),
)
"""Patterns of omitted files and folders, as in virt-sysprep(1). ``*`` also matches ``/``."""
LOGS = "var/log/*"
"""Files that match this pattern are omitted. Folders are packed, because programs expect them."""
EMPTIED = ("etc/machine-id",)
"""The files that are packed empty. Each guest whose image is the archive creates its own content (machine-id(5))."""
CLUSTER_LINK = "/etc/virtcloud/"
"""Symbolic links to files in this folder are omitted: the guest's seed created them."""
HOSTS = ("etc/hosts", b"127.0.0.1\tlocalhost\n::1\tlocalhost\n")
SEARCHED_BYTES = 1 << 20
"""The maximum size in bytes of the files that are searched for the texts from stdin."""
NOBODY = 65534
CAPABILITY = "security.capability"
MEMORY_BYTES = 1 << 30
PR_SET_PDEATHSIG = 1


def main(root: int, namespace: int) -> None:
    """Enter the namespace and the root, and pack the root. Raise OSError if a file cannot be read."""
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    texts = [text.encode() for text in json.load(sys.stdin)]
    if libc.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "cannot enter the guest's user namespace")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # If the agent ends, the kernel kills this program. A later change of the user ID would remove this setting.
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.fchdir(root)
    os.chroot(".")
    sys.path.clear()
    pack(sys.stdout.buffer, texts)


def pack(output: BinaryIO, texts: list[bytes]) -> None:
    """Write the archive of the folder ``/`` to ``output``."""
    links: dict[tuple[int, int], str] = {}
    is_removed = compile_patterns(REMOVED)
    with (
        gzip.GzipFile(fileobj=output, mode="wb", compresslevel=1, mtime=0, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as archive,
    ):
        add_entry(archive, ".", os.lstat("/"), links, texts)
        has_hosts = False
        for path, status in walk("", is_removed):
            added = add_entry(archive, path, status, links, texts)
            has_hosts = has_hosts or (added and path == HOSTS[0])
        if not has_hosts:
            add_text(archive, *HOSTS)


def compile_patterns(patterns: tuple[str, ...]) -> Callable[[str], object]:
    """Return a function that returns whether a path matches one of the patterns."""
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match


def walk(folder: str, is_removed: Callable[[str], object]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each path below ``folder`` and its status, in the order of names. Skip paths that match ``is_removed``."""
    for name in sorted(os.listdir(f"/{folder}")):  # noqa: PTH208 - names may be any bytes
        path = f"{folder}/{name}" if folder else name
        if is_removed(path):
            continue
        status = os.lstat(f"/{path}")
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from walk(path, is_removed)


def add_entry(
    archive: tarfile.TarFile,
    path: str,
    status: os.stat_result,
    links: dict[tuple[int, int], str],
    texts: list[bytes],
) -> bool:
    """Add a file, a link or a folder to the archive. Return False for an omitted file."""
    entry = describe(path, status)
    if stat.S_ISDIR(status.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(f"/{path}")  # noqa: PTH115 - pathlib may import modules
        if entry.linkname.startswith(CLUSTER_LINK):
            return False
    elif stat.S_ISFIFO(status.st_mode):
        entry.type = tarfile.FIFOTYPE
    elif not stat.S_ISREG(status.st_mode):
        return False  # sockets and devices
    elif status.st_nlink > 1 and (status.st_dev, status.st_ino) in links:
        entry.type, entry.linkname = tarfile.LNKTYPE, links[status.st_dev, status.st_ino]
    else:
        return add_content(archive, entry, path, links, texts)
    archive.addfile(entry)
    return True


def add_content(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    path: str,
    links: dict[tuple[int, int], str],
    texts: list[bytes],
) -> bool:
    """Add a regular file to the archive, unless it is a log or contains one of the texts.

    Return whether the file was added.
    """
    if fnmatch.fnmatchcase(path, LOGS):
        return False
    descriptor = os.open(f"/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        entry.size = 0 if path in EMPTIED else status.st_size
        if entry.size <= SEARCHED_BYTES:
            content = file.read(SEARCHED_BYTES)
            if any(text in content for text in texts):
                return False
            file.seek(0)
        set_capabilities(entry, descriptor)
        archive.addfile(entry, file)
    archive.members = []  # type: ignore[attr-defined] # otherwise tarfile keeps every entry in memory
    links[status.st_dev, status.st_ino] = entry.name
    return True


def add_text(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    """Add a file with the content ``content`` to the archive. The file belongs to the guest's root user."""
    entry = tarfile.TarInfo(f"./{path}")
    entry.mode, entry.size = 0o644, len(content)
    archive.addfile(entry, io.BytesIO(content))


def describe(path: str, status: os.stat_result) -> tarfile.TarInfo:
    """Return an archive entry with a file's name, owner, mode and time.

    An owner without an ID in the guest's user namespace becomes `NOBODY`.
    """
    entry = tarfile.TarInfo("." if path == "." else f"./{path}")
    entry.mode = stat.S_IMODE(status.st_mode)
    entry.uid, entry.gid = min(status.st_uid, NOBODY), min(status.st_gid, NOBODY)
    entry.mtime = int(status.st_mtime)
    return entry


def set_capabilities(entry: tarfile.TarInfo, descriptor: int) -> None:
    """Add a program's capabilities to its entry, in the format of GNU tar's option --xattrs."""
    try:
        value = os.getxattr(descriptor, CAPABILITY)
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP}:
            raise
        return
    entry.pax_headers = {f"SCHILY.xattr.{CAPABILITY}": value.decode("utf-8", "surrogateescape")}


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]))
    except (tarfile.TarError, OSError, ValueError, MemoryError, RecursionError) as fault:
        sys.stderr.write(f"{type(fault).__name__}: {fault}")
        sys.exit(1)
