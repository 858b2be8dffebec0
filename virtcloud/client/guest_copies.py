"""Copies of files and folders to and from many guests at the same time, over ssh.

A copy is a tar stream. The receiver unpacks the stream into a temporary folder beside the destination, and then renames
the files, so an interrupted copy leaves no incomplete file. Guests need only a POSIX shell, tar and mktemp.
"""

import re
import secrets
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from virtcloud.client.fan_out import DEFAULT_JOBS, GuestTask, ShowFanOut, fan_out
from virtcloud.client.guest_commands import MarkedStream, start_thread
from virtcloud.client.received_files import receive_files
from virtcloud.client.ssh_arguments import SshArguments
from virtcloud.client.ssh_failures import explain_failure
from virtcloud.model.errors import BadInput, GuestsFailed, Refused, VirtcloudError
from virtcloud.model.message_text import printable

LAST_MEMBER = ".virtcloud-complete"
"""The last file of a stream to a guest.

This file shows that the stream is complete: some versions of tar also accept a stream that ends between two files.
"""
MAX_REASON_LINES = 3
HOME = 'case "$d" in "~") d=.;; "~/"*) d=./${d#??};; "") d=.;; esac'
PUT_SCRIPT = f"""\
echo "$0" >&2; export LC_ALL=C; d=$1; many=$2; shift 2; {HOME}; name=
if [ -d "$d" ]; then into=$d
elif [ "$many" = 1 ] || [ "${{d%/}}" != "$d" ]; then echo "$d is no folder: create it first with mkdir" >&2; exit 1
else into=$(dirname -- "$d"); name=$(basename -- "$d"); fi
cd -- "$into" 2>/dev/null || {{
  if [ -d "$into" ]; then echo "you may not enter folder $into" >&2; exit 1; fi
  echo "$into is no folder: create it first with mkdir" >&2; exit 1
}}
h=$(uname -n)
for o in "./.virtcloud-$h"-*; do
  p=${{o#"./.virtcloud-$h-"}}; p=${{p%-*}}
  case $p in ""|*[!0-9]*) continue;; esac
  [ ! -d /proc/self ] || [ -d "/proc/$p" ] || rm -rf "$o" 2>/dev/null
done
t=$(mktemp -d "./.virtcloud-$h-$$-XXXXXX") || {{ echo "cannot write to folder $PWD" >&2; exit 1; }}
trap 'rm -rf "$t"' EXIT; trap 'exit 1' HUP INT TERM PIPE
tar -xpf - -C "$t" || exit 1
[ -e "$t/{LAST_MEMBER}" ] || {{ echo "the copy was interrupted" >&2; exit 1; }}
move() {{
  if [ -d "$1" ] && [ ! -L "$1" ]; then
    if [ -d "$2" ] && [ ! -L "$2" ]; then merge "$1" "$2"; return; fi
    if [ -e "$2" ] || [ -L "$2" ]; then echo "$PWD/$2 exists and is no folder" >&2; return 1; fi
  elif [ -d "$2" ]; then echo "$PWD/$2 is a folder" >&2; return 1; fi
  mv -f -- "$1" "$2"
}}
merge() {{
  for e in "$1"/* "$1"/.[!.]* "$1"/..?*; do
    if [ -e "$e" ] || [ -L "$e" ]; then move "$e" "$2/${{e##*/}}" || return 1; fi
  done
}}
for n; do move "$t/$n" "${{name:-$n}}" || exit 1; done
"""
"""Script that unpacks a tar stream. Arguments: the destination; 1 if the destination must be a folder, otherwise 0; and
the names of the files and folders in the stream.

The name of the temporary folder contains the guest's name and the script's process ID. If the script is killed, its
temporary folder remains. The next copy to the same folder of the same guest removes this temporary folder. On a network
file system that several guests share, a copy does not remove temporary folders of other guests.
"""
GET_SCRIPT = f"""\
echo "$0" >&2; export LC_ALL=C; IFS=
for d; do {HOME}
  for f in $d; do
    [ -e "$f" ] || {{ echo "$f: no such file or folder" >&2; exit 1; }}
    case $(basename -- "$f") in .|..) [ "$f" = "$d" ] || continue; f=$(cd -- "$f" && pwd -P) || exit 1;; esac
    case $f in *[!/]*) ;; *) echo "$f: cannot copy the root folder; name its files and folders" >&2; exit 1;; esac
    follow=; [ -L "$f" ] && follow=h
    tar "-c${{follow}}f" - -C "$(dirname -- "$f")" "./$(basename -- "$f")" && continue
    [ $? = 1 ] && tar --version 2>/dev/null | grep -q GNU || exit 1
  done
done
"""
"""Script that writes a tar stream for each file or folder. Arguments: paths, or patterns that match several paths.

The script replaces a path that ends with ``.`` or ``..``, such as the path of the home folder, with the folder's full
path. The receiver needs the folder's name, because the copy gets this name. Patterns such as ``.*`` do not match ``.``
and ``..``.

The script ignores the exit code 1 of GNU tar, which means that a file changed during the copy.
"""


class RemotePath(NamedTuple):
    """A path in the guest ``guest`` (None: in each guest)."""

    guest: str | None
    path: str


def parse_copy_path(text: str) -> RemotePath | Path:
    """Parse a path in a guest (``NAME:path``), in all guests (``:path``), or on this computer. Pure.

    As for scp, a text with a slash before its first colon, such as ``./a:b``, is a local path.
    """
    guest, colon, path = text.partition(":")
    if not colon or "/" in guest:
        return Path(text)
    return RemotePath(guest or None, path)


def list_sources(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Return the path of each local file or folder by its name. Symbolic links are followed.

    Raise BadInput if a source does not exist, or if two sources have the same name.
    """
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        source = path.resolve()
        name = path.name if path.name not in {"", ".."} else source.name
        if not (source.is_file() or source.is_dir()) or not name:
            raise BadInput(f"{path}: expected a file or a folder to copy, found none")
        if name in found:
            raise BadInput(f"{path} and {found[name]} have the same name; copy them one after the other")
        found[name] = source
    return found


def put_files(  # noqa: PLR0913, PLR0917 - the options of Cluster.put
    logins: Mapping[str, SshArguments],
    sources: Mapping[str, Path],
    remote: str,
    jobs: int = DEFAULT_JOBS,
    timeout: float | None = None,
    progress: ShowFanOut | None = None,
) -> None:
    """Copy files and folders to each guest. ``remote`` is an existing folder, or the new name of the only source.

    At most ``jobs`` copies run at the same time. A copy that takes longer than ``timeout`` seconds fails. Raise
    GuestsFailed with the reasons if the copy failed on any guest.
    """
    many = "1" if len(sources) > 1 else "0"

    def put(name: str, task: GuestTask) -> None:
        errors: list[str] = []
        feed = partial(_send_files, sources, errors)
        try:
            _run_script(logins[name], PUT_SCRIPT, (remote, many, *sources), task, feed, _drain)
        except Refused as error:
            raise Refused(errors[0] if errors else str(error)) from error

    _copy_all(logins, put, jobs, timeout, progress)


def get_files(  # noqa: PLR0913, PLR0917 - the options of Cluster.get
    logins: Mapping[str, SshArguments],
    remotes: Mapping[str, Sequence[str]],
    target: Path,
    jobs: int = DEFAULT_JOBS,
    timeout: float | None = None,
    progress: ShowFanOut | None = None,
    *,
    folder_for_each: bool = True,
) -> None:
    """Copy files and folders from each guest. ``remotes`` are the paths or patterns by guest.

    If ``folder_for_each`` is true, copy the files of each guest into the folder ``target/NAME``, which is created if it
    is missing. Otherwise ``target`` is an existing folder, or the new name of the only source. ``jobs``, ``timeout``
    and GuestsFailed are as in :func:`put_files`.
    """

    def get(name: str, task: GuestTask) -> None:
        if not folder_for_each:
            receive(name, task, target)
            return
        (target / name).mkdir(parents=True, exist_ok=True)
        try:
            receive(name, task, target / name)
        finally:
            with suppress(OSError):
                (target / name).rmdir()  # fails, as intended, if the folder contains files

    def receive(name: str, task: GuestTask, folder: Path) -> None:
        with receive_files(folder) as unpack:
            _run_script(logins[name], GET_SCRIPT, remotes[name], task, _close, unpack)

    _copy_all(logins, get, jobs, timeout, progress)


def _copy_all(
    names: Mapping[str, SshArguments],
    copy: Callable[[str, GuestTask], None],
    jobs: int,
    timeout: float | None,
    progress: ShowFanOut | None,
) -> None:
    def work(name: str, task: GuestTask) -> str | None:
        try:
            copy(name, task)
        except BadInput:
            raise
        except VirtcloudError as error:
            return f"the copy did not end within {timeout:g} s" if task.is_late else str(error)
        except OSError as error:
            return f"{error.filename or 'local files'}: {error.strerror or error}"
        return None

    results = fan_out(names, work, jobs, timeout, progress)
    if failures := {name: reason for name, reason in results.items() if reason}:
        raise GuestsFailed("the copy", failures, len(results))


def _run_script(  # noqa: PLR0913, PLR0917 - the parts of a process
    login: SshArguments,
    script: str,
    words: Sequence[str],
    task: GuestTask,
    feed: Callable[[IO[bytes]], None],
    read: Callable[[IO[bytes]], None],
) -> None:
    mark = secrets.token_hex(16)
    messages = bytearray()
    stderr = MarkedStream(f"{mark}\n".encode(), messages.extend)
    command = shlex.join(("sh", "-c", script, mark, *words))
    with task.run([*login[:-1], "-T", login[-1], f"exec {command}"], subprocess.PIPE, subprocess.PIPE) as process:
        threads = [start_thread(stderr.copy, process.stderr), start_thread(feed, process.stdin)]
        try:
            failure = _read(read, process.stdout)
        except BaseException:
            task.end()
            raise
        finally:
            for thread in threads:
                thread.join()
    if not stderr.has_started:
        raise Refused(explain_failure(stderr.before.decode(errors="replace"), process.returncode))
    if process.returncode:
        # The shell's own messages begin with its name, which is the mark. Most shells then print a line's number.
        text = re.sub(
            rf"(?m)^{mark}(\[\d+\])?: ((line )?\d+: )?", "", messages.decode(errors="replace").replace("\r", "")
        )
        lines = printable(text).split("\n")
        reason = "; ".join([line for line in lines if line.strip()][-MAX_REASON_LINES:])
        raise Refused(reason or f"the copy ended with exit code {process.returncode}; the connection may be lost")
    if failure:
        raise Refused(f"expected a tar stream of the guest: {failure}; install tar in the guest") from failure


def _read(read: Callable[[IO[bytes]], None], stream: IO[bytes] | None) -> tarfile.TarError | None:
    """Read a stream. Return the error if the stream is no archive, otherwise None.

    The caller prefers the message of a failed script.
    """
    if stream is None:
        return None
    try:
        read(stream)
    except tarfile.TarError as error:
        _drain(stream)
        return error
    return None


def _send_files(sources: Mapping[str, Path], errors: list[str], stream: IO[bytes]) -> None:
    try:
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            for name, path in sources.items():
                archive.add(path, name, filter=_make_neutral)
            archive.addfile(tarfile.TarInfo(LAST_MEMBER))
        stream.close()
    except BrokenPipeError:
        _close(stream)  # the guest has closed the stream, and its message has the reason
    except OSError as error:
        errors.append(f"{error.filename or 'a local file'}: {error.strerror or error}")
        _close(stream)


def _make_neutral(member: tarfile.TarInfo) -> tarfile.TarInfo:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise OSError(f"{member.name} is no file, folder or symbolic link")
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = member.mode & 0o777 | (0o700 if member.isdir() else 0)
    return member


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return  # the script has already ended


def _drain(stream: IO[bytes]) -> None:
    while stream.read(1 << 16):
        pass
