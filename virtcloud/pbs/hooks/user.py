"""What a user names is looked at as that user, in a child process: with the user's rights, and for a limited time."""

import json
import os
import pwd
import resource
import stat
from typing import Any, Callable, List, Optional, Sequence

from virtcloud.jobs.errors import RequestError
from virtcloud.pbs.hooks.child import ChildError, in_child
from virtcloud.pbs.hooks.deadline import Deadline

SECONDS = 1.5
CPU_SECONDS = 2
MOST_BYTES = 64 << 10
MOST_KEPT = 256 << 10
IMAGE_FILE = "image.yaml"


def read_spec(path: str, user: str) -> str:
    """Read a request's file as its user; gives it as JSON on one line. Raises RequestError."""
    try:
        return str(in_child(lambda: _as_user(user, lambda: _spec(path)), Deadline(SECONDS)))
    except ChildError as error:
        raise RequestError("spec: expected a file of YAML or JSON, got %s: %s" % (path, error)) from None


def check_images(folder: Optional[str], images: Sequence[str], user: str) -> None:
    """Refuse images that are not in the folder, or not readable by the user. Raises RequestError."""
    if folder is None or not images:
        return
    try:
        missing, closed = in_child(lambda: _as_user(user, lambda: _images(folder, images)), Deadline(SECONDS))
    except ChildError as error:
        raise RequestError("images cannot be looked up for %s: %s; try again" % (user, error)) from None
    for name in missing:
        raise RequestError("image '%s' not found; see 'virtcloud image list'" % name)
    for name in closed:
        raise RequestError("image '%s' is not readable by %s" % (name, user))


def _as_user(name: str, work: Callable[[], Any]) -> Any:
    """Become the user for good, and then do it."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise ChildError("the batch system's server does not know the user %s" % name) from None
    if found.pw_uid == 0:
        raise ChildError("it is not read for root")
    if os.getuid() == 0:
        os.initgroups(name, found.pw_gid)
        os.setgid(found.pw_gid)
        os.setuid(found.pw_uid)
    if (os.getuid(), os.geteuid()) != (found.pw_uid, found.pw_uid):
        raise ChildError("the server cannot read it as %s" % name)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    return work()


def _spec(path: str) -> str:
    text = _text(path)
    try:
        return _written(_document(text))
    except RecursionError:
        raise ChildError("nested too deep") from None


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return _yaml(text)


def _written(document: Any) -> str:
    """Write it on one line; an alias in YAML can make much of little."""
    kept = ""
    for part in json.JSONEncoder(separators=(",", ":")).iterencode(document):
        kept += part
        if len(kept) > MOST_KEPT:
            raise ChildError("more than %d bytes, written out" % MOST_KEPT)
    return kept


def _text(path: str) -> str:
    """Read a regular file, no device and no pipe, of which there may be a lot."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise ChildError("no regular file")
        with os.fdopen(number, "rb") as file:
            read = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ChildError(error.strerror) from None
    if len(read) > MOST_BYTES:
        raise ChildError("more than %d bytes" % MOST_BYTES)
    try:
        return read.decode()
    except UnicodeDecodeError:
        raise ChildError("no text in UTF-8") from None


def _yaml(text: str) -> Any:
    from yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415 - a tenth of a second, for few jobs
    from yaml.loader import BaseLoader  # noqa: PLC0415

    try:
        return BaseLoader(text).get_single_data()
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = "line %d, column %d: " % (mark.line + 1, mark.column + 1) if mark else ""
        raise ChildError("%s%s" % (where, error.problem)) from None
    except YAMLError as error:
        raise ChildError(" ".join(str(error).split())) from None


def _images(folder: str, images: Sequence[str]) -> List[List[str]]:
    """Give those that are not there, and those that the user may not read."""
    os.stat(folder)
    at = {name: os.path.join(folder, name) for name in images}
    unread = [name for name, path in at.items() if not os.access(os.path.join(path, IMAGE_FILE), os.R_OK)]
    missing = [name for name in unread if os.access(folder, os.X_OK) and not os.path.lexists(at[name])]
    return [missing, [name for name in unread if name not in missing]]
