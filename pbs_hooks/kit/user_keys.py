"""Reads the public SSH keys in the home folder of a job's user, so that the user can log in to the job's guests.

A child process reads the files with the rights of the user. The time of the process and the size of the files are
limited, because the folder may be on a file server that hangs.
"""

import os
import pwd
import stat
from typing import Iterator, List

from pbs_hooks.kit.deadline import ChildError, Deadline, become_user, run_in_child
from virtcloud.jobs.public_keys import select_public_keys

READ_TIMEOUT_S = 1.0
MAX_FILES = 16
MAX_FILE_BYTES = 16 << 10
KEY_FOLDER = ".ssh"
SUFFIX = ".pub"


def read_user_keys(user: str, seconds: float = READ_TIMEOUT_S) -> List[str]:
    """Return the keys in ``~/.ssh/*.pub`` of a user. Return no keys if there is no such folder.

    Raises ChildError if the user is unknown or root, or if the folder or a file cannot be read in time.
    """
    return list(run_in_child(lambda: _read_as_user(user), Deadline(seconds)))


def _read_as_user(name: str) -> List[str]:
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise ChildError("user %s is unknown on this host" % name) from None
    if account.pw_uid == 0:
        raise ChildError("keys are not read for root")
    become_user(account)
    if (os.getuid(), os.geteuid()) != (account.pw_uid, account.pw_uid):
        raise ChildError("the process has no right to become user %s" % name)
    return select_public_keys(_read_files(os.path.join(account.pw_dir, KEY_FOLDER)))


def _read_files(folder: str) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    for name in names[:MAX_FILES]:
        yield _read_regular_file(os.path.join(folder, name))


def _read_regular_file(path: str) -> str:
    """Return the text of a regular file; "" for devices and pipes, whose content may never end, and for long files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        read = file.read(MAX_FILE_BYTES + 1)
    return "" if len(read) > MAX_FILE_BYTES else read.decode(errors="replace")
