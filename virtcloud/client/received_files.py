"""Files that a guest sends as a tar stream. The guest is not trusted: no file is written outside the destination."""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from virtcloud.client.process_folders import name_process_folder, remove_folders_of_ended_processes
from virtcloud.model.errors import Refused

CHUNK = 1 << 20
PURPOSE = ".virtcloud-"


@contextmanager
def receive_files(target: Path) -> Iterator[Callable[[IO[bytes]], None]]:
    """Yield a function that unpacks a stream into a temporary folder, which is in or beside ``target``.

    At the end of the block, if ``target`` is a folder, move the received files into ``target``. Otherwise, rename the
    only file or folder of the stream to ``target``. If the block raises an exception, no file remains.

    Raise Refused in these cases:

    - No temporary folder can be created.
    - ``target`` is no folder, and the stream does not contain exactly one file or folder.
    - A file would replace a folder, or a folder would replace a file.
    - The stream is unsafe (raised by the yielded function).
    """
    into = target if target.is_dir() else target.parent
    try:
        remove_folders_of_ended_processes(into, PURPOSE, "-[^-]+")
        folder = Path(tempfile.mkdtemp(prefix=f"{name_process_folder(PURPOSE)}-", dir=into))
    except OSError as error:
        raise Refused(f"cannot write to folder {into}: {error.strerror}") from error
    try:
        links: dict[Path, str] = {}
        yield lambda stream: _unpack(stream, folder, links)
        for path, destination in links.items():
            path.symlink_to(destination)
        _place(sorted(folder.iterdir()), target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(stream: IO[bytes], folder: Path, links: dict[Path, str]) -> None:
    """Unpack a stream of one or several archives into ``folder``.

    Record symbolic links in ``links`` without creating them, so that no later file can be written through a link.

    Raise Refused for an archive member that is neither file, folder nor link, or that would be outside ``folder``. Also
    raise Refused for a name or time that this computer's file system cannot store, and for a second file or link with
    the same name.
    """
    try:
        with tarfile.open(fileobj=stream, mode="r|", ignore_zeros=True) as archive:
            for member in archive:
                _unpack_member(archive, member, folder, links)
    except (ValueError, OverflowError) as error:
        raise Refused(f"the guest sent a file with an invalid name or time: {error}") from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, links: dict[Path, str]) -> None:
    path = find_path(folder, member.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path in links or (path.exists() and not member.isdir()):
        raise Refused(f"two sources have the name {path.relative_to(folder)}; copy them one after the other")
    if member.isdir():
        path.mkdir(exist_ok=True)
        path.chmod(member.mode & 0o777 | 0o700)
    elif member.isreg():
        _write(archive, member, path)
    elif member.issym():
        links[path] = member.linkname.partition("\0")[0]  # the kernel reads a name only up to NUL
    elif member.islnk():
        linked = find_path(folder, member.linkname)
        if linked in links:
            links[path] = links[linked]
        else:
            os.link(linked, path, follow_symlinks=False)
    else:
        raise Refused(f"{member.name} is no file, folder or symbolic link")


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = archive.extractfile(member)
    with path.open("xb") as file:
        if content:
            shutil.copyfileobj(content, file, CHUNK)
        os.fchmod(file.fileno(), member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))


def find_path(folder: Path, name: str) -> Path:
    """Return the path of archive member ``name`` in ``folder``. Raise Refused for a path outside ``folder``. Pure."""
    parts = [part for part in PurePosixPath(name).parts if part != "."]
    if not parts or ".." in parts or name.startswith("/"):
        raise Refused(f"the guest sent a file outside the copied folder: {name!r}")
    return folder.joinpath(*parts)


def _place(new: list[Path], target: Path) -> None:
    if target.is_dir():
        for path in new:
            _move(path, target / path.name)
    elif len(new) == 1:
        _move(new[0], target)
    else:
        raise Refused(f"{target} is no folder: create it first, because {len(new)} files or folders were copied")


def _move(new: Path, final: Path) -> None:
    """Rename a file or folder. Merge folders, but never through a symbolic link."""
    if new.is_dir() and not new.is_symlink():
        if final.is_dir() and not final.is_symlink():
            for entry in new.iterdir():
                _move(entry, final / entry.name)
            return
        if os.path.lexists(final):
            raise Refused(f"{final} exists and is no folder")
    elif final.is_dir():
        raise Refused(f"{final} is a folder")
    new.replace(final)
