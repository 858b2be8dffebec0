"""Calls functions with the rights of a job's user, in a child process."""

import os
import pwd
import resource
import stat
from typing import Any, Callable

from pbs_hooks.kit.deadline import ChildError, Deadline, run_in_child

CPU_SECONDS = 2


class UnusableFile(ChildError):
    """The file is not a regular file, or is longer than the limit."""


def run_as_user(name: str, work: Callable[[], Any], seconds: float) -> Any:
    """Call ``work`` in a child process with the rights of a user, and return the result of ``work``.

    The result must be representable as JSON. Raise ChildError if the user is unknown or root, if this process cannot
    become the user, or if ``work`` raises an error or takes longer than ``seconds``.
    """
    return run_in_child(lambda: _run_with_rights(name, work), Deadline(seconds))


def _run_with_rights(name: str, work: Callable[[], Any]) -> Any:
    """Permanently switch this process to the user, limit its CPU time, and call ``work``."""
    account = find_account(name)
    if account.pw_uid == 0:
        raise ChildError("the hook does not read files as root: submit the job as another user")
    become_user(account)
    if (os.getuid(), os.geteuid()) != (account.pw_uid, account.pw_uid):
        raise ChildError("the process has no right to become user %s" % name)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    return work()


def find_account(name: str) -> pwd.struct_passwd:
    """Return the account of a user. Raise ChildError for an unknown user."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ChildError("user %s is unknown on host %s" % (name, os.uname().nodename)) from None


def become_user(account: pwd.struct_passwd) -> None:
    """Permanently switch the process to a user and the user's groups.

    Do nothing if the process does not run as root, or if the account is root's.
    """
    if os.getuid() == 0 and account.pw_uid != 0:
        os.initgroups(account.pw_name, account.pw_gid)
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)


def read_regular_file(path: str, limit: int) -> bytes:
    """Return the content of a regular file of up to ``limit`` bytes.

    Raise UnusableFile for longer files, and for devices and pipes, whose content may never end. Raise OSError if the
    file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnusableFile("not a regular file")
        read = file.read(limit + 1)
    if len(read) > limit:
        raise UnusableFile("more than %d bytes" % limit)
    return read
