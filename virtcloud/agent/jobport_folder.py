"""A job's folder: files that only the job's user may read. Everything may be repeated.

The folder is made beside its final place, where users cannot write, and then takes that place as a whole: nothing is
ever written through a path that a user can change, such as a symbolic link in a folder that is the user's own.
"""

import os
import pwd
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from virtcloud.agent import log
from virtcloud.agent.names import file_of
from virtcloud.model.errors import Refused

PASSABLE = 0o711  # users pass through, and learn no other job's key
FOLDER, FILE = 0o500, 0o600  # the user's ssh adds to its file of known hosts
NEW, OLD = ".new-", ".old-"  # no key of a cluster begins with a dot


class JobFolders:
    """The folders of all jobs on this machine, below ``root``."""

    def __init__(self, root: Path) -> None:
        """Work below ``root``; it is made when first needed."""
        self._root = root

    def place(self, key: str, state: str = "") -> Path:
        """Say where the folder of a job is, or one that is not there yet or any more."""
        return self._root / f"{state}{file_of(key)}"

    def ensure(self, key: str, user: str, files: Mapping[str, str]) -> Path:
        """Make the folder of a job with exactly these files; raises Refused for a user unknown on this machine."""
        account = account_of(user)
        place, new = self.place(key), self.place(key, NEW)
        with _refused(f"make the job's folder {place}"):
            self._ensure_root()
            self._remove(new)
            new.mkdir(mode=0o700)
            for name, text in files.items():
                _write(new / name, text, account)
            os.chown(new, account.pw_uid, account.pw_gid)
            new.chmod(FOLDER)
            self._put_away(key)
            new.rename(place)
            self._remove(self.place(key, OLD))
        return place

    def ensure_none(self, key: str) -> None:
        """Remove the folder of a job; nothing there is success."""
        with _refused(f"remove the job's folder {self.place(key)}"):
            self._remove(self.place(key, NEW))
            self._put_away(key)
            self._remove(self.place(key, OLD))

    def _ensure_root(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(PASSABLE)

    def _put_away(self, key: str) -> None:
        """Take a folder out of its place and out of its user's hands."""
        old = self.place(key, OLD)
        self._remove(old)
        try:
            self.place(key).rename(old)
        except FileNotFoundError:
            return
        with _opened(old) as folder:
            os.fchown(folder, os.geteuid(), os.getegid())
            os.fchmod(folder, 0o700)

    def _remove(self, folder: Path) -> None:
        """Remove a folder and all below it, following no link."""
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        log.info("job_folder_removed", folder=folder)


def account_of(user: str) -> pwd.struct_passwd:
    """Look a user up; raises Refused for one whom this machine does not know."""
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise Refused(
            f"user {user} is not known on this machine ({os.uname().nodename}); its job's files can belong to nobody. "
            "Let this machine know the user (getent passwd must find it)"
        ) from error


def _write(path: Path, text: str, account: pwd.struct_passwd) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchown(descriptor, account.pw_uid, account.pw_gid)
        os.fchmod(descriptor, FILE)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"cannot {what}: {error.strerror} ({error.filename})") from error
