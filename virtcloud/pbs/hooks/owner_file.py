"""A word to a job's owner in the job's own file of errors, which PBS brings home when the job ends."""

import os
import pwd
import stat

from virtcloud.pbs.hooks.child import ChildError, in_child
from virtcloud.pbs.hooks.deadline import Deadline

SECONDS = 2.0


def add_line(path: str, user: str, text: str) -> None:
    """Add a line, as the owner, in a child that ends in time: the file may be anywhere. Raises ChildError."""
    in_child(lambda: _as(user, path, text + "\n"), Deadline(SECONDS))


def _as(user: str, path: str, text: str) -> None:
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise ChildError("this host does not know the user %s" % user) from None
    if os.getuid() == 0 and found.pw_uid != 0:
        os.initgroups(user, found.pw_gid)
        os.setgid(found.pw_gid)
        os.setuid(found.pw_uid)
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ChildError("%s is no regular file" % path)
        os.write(number, text.encode())
    finally:
        os.close(number)
