"""Reads the public SSH keys in the home folder of a job's user, for logins to the job's guests.

A child process reads the files with the rights of the user: root may have no rights on a file server. The process's
time is limited, because a file server may hang.
"""

import json
import os
import time
from typing import Dict, Iterator, List

from pbs_hooks.kit.deadline import ChildError
from pbs_hooks.kit.user_rights import UnusableFile, find_account, read_regular_file, run_as_user
from virtcloud.jobs.public_keys import select_public_keys

READ_TIMEOUT_S = 1.0
PAUSE_S = 60.0
MAX_FILES = 16
MAX_FILE_BYTES = 16 << 10
KEY_FOLDER = ".ssh"
SUFFIX = ".pub"
SLOW_VARIABLE = "VIRTCLOUD_SLOW_HOMES"
"""An environment variable in which :func:`read_user_keys` records slow home folders.

In pbs_server, the variable survives a restart of the Python interpreter. Its JSON object maps each user whose home
folder did not answer in time to the monotonic time of the next permitted reading.
"""


def read_user_keys(user: str, seconds: float = READ_TIMEOUT_S) -> List[str]:
    """Return the keys in the first 16 files ``~/.ssh/*.pub`` of a user. Return no keys if the folder is missing.

    After a timeout, the folder is not read for a minute. Each further attempt would block pbs_server for a second.

    Raise ChildError for an unknown user, for root, for an error of the file system, if the keys are not read within
    ``seconds``, or during the minute after such a timeout.
    """
    left = _read_slow_homes().get(user, 0.0) - time.monotonic()
    if left > 0:
        raise ChildError("the home folder of %s did not answer; it will be read again in %d s" % (user, left + 1))
    began = time.monotonic()
    try:
        return list(run_as_user(user, lambda: _read_keys(user), seconds))
    except ChildError:
        if time.monotonic() - began >= seconds:
            os.environ[SLOW_VARIABLE] = json.dumps(dict(_read_slow_homes(), **{user: time.monotonic() + PAUSE_S}))
        raise


def _read_slow_homes() -> Dict[str, float]:
    try:
        homes = json.loads(os.environ.get(SLOW_VARIABLE, "{}"))
        return {user: float(until) for user, until in homes.items() if until > time.monotonic()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _read_keys(user: str) -> List[str]:
    return select_public_keys(_read_files(os.path.join(find_account(user).pw_dir, KEY_FOLDER)))


def _read_files(folder: str) -> Iterator[str]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except FileNotFoundError:
        return
    for name in names[:MAX_FILES]:
        yield _read_key_file(os.path.join(folder, name))


def _read_key_file(path: str) -> str:
    """Return the text of a regular file; "" for long files and for all other kinds of files."""
    try:
        return read_regular_file(path, MAX_FILE_BYTES).decode(errors="replace")
    except (UnusableFile, FileNotFoundError, IsADirectoryError):
        return ""
