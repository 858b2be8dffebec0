"""A client's token: where it is looked for, and that nobody else can read it.

======================================  ===========================================================
``--token-file FILE``                   goes before
``VIRTCLOUD_TOKEN_FILE``                goes before
``~/.config/virtcloud/token``           which ``virtcloud login`` writes; not for ``unix://`` addresses,
                                        where the kernel says who calls
======================================  ===========================================================

A token never stands on a command line, where every user of the machine could read it.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from virtcloud.model.errors import BadInput, Unauthenticated

FILE_VARIABLE = "VIRTCLOUD_TOKEN_FILE"
CA_VARIABLE = "VIRTCLOUD_CA_FILE"
CERTIFICATE_VARIABLE = "VIRTCLOUD_CERTIFICATE"
PRIVATE = 0o600
PREFIX = "vc_"
TokenSource = Callable[[], str | None]
"""Gives the token, at each call: a file that was replaced is felt at once."""


def no_token() -> None:
    """Show no token."""


def default_token_file() -> Path:
    """Give the file that ``virtcloud login`` writes (XDG Base Directory)."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "virtcloud" / "token"


def token_source(url: str, token: str | None = None, file: str | Path | None = None) -> TokenSource:
    """Say where the token of calls to ``url`` comes from; nothing is read yet."""
    if token is not None:
        return lambda: token
    named = file or os.environ.get(FILE_VARIABLE)
    if named:
        return lambda: read_token(Path(named))
    if url.startswith("unix:"):
        return no_token
    return _read_default_token


def read_token(path: Path) -> str:
    """Read a token's file. Raises Unauthenticated when it cannot be read, BadInput when others could read it."""
    try:
        with path.open(encoding="ascii") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            if mode & 0o077:
                raise BadInput(
                    f"token file {path}: others on this machine could read it (mode {mode:04o}): chmod 600 {path}, and "
                    "have the token revoked if one may have"
                )
            return _check_prefix(path, opened.read().strip())
    except OSError as error:
        raise Unauthenticated(f"token file {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"token file {path}: expected a token such as {PREFIX}…, got something else") from error


def _check_prefix(path: Path, text: str) -> str:
    """Refuse what is no token by its file; SBF could only speak of the header that it came in."""
    if not text.startswith(PREFIX):
        raise BadInput(f"token file {path}: expected a token such as {PREFIX}…, got something else")
    return text


def write_token(path: Path, token: str) -> None:
    """Keep a token in a file that only its owner reads; what was there is replaced as a whole. Raises BadInput."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as opened:
            opened.write(f"{token}\n")
        fresh.replace(path)
    except OSError as error:
        raise BadInput(f"token file {path}: cannot be written: {error.strerror}") from error


def _read_default_token() -> str | None:
    path = default_token_file()
    return read_token(path) if path.exists() else None
