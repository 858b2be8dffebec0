"""The client's token: the search for the token file, and the check that no other user can read this file.

The first source that is set is used:

1. ``--token-file FILE``
2. ``VIRTCLOUD_TOKEN_FILE``
3. ``~/.config/virtcloud/token``, written by ``virtcloud login``; not used for ``unix://`` addresses, where the kernel
   identifies the caller

No command accepts a token as an argument, because every local user can read a command's arguments.
"""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import SecretStr

from virtcloud.model.errors import BadInput, Unauthenticated, VirtcloudError

FILE_VARIABLE = "VIRTCLOUD_TOKEN_FILE"
CA_VARIABLE = "VIRTCLOUD_CA_FILE"
CERTIFICATE_VARIABLE = "VIRTCLOUD_CERTIFICATE"
PRIVATE = 0o600
PREFIX = "vc_"
TokenSource = Callable[[], SecretStr | None]
"""A function that returns the token. The client calls this function for each request, so that a new token in a file
takes effect."""


def no_token() -> None:
    """Return None. A client with this token source sends no token."""


@dataclass(frozen=True, slots=True)
class FileToken:
    """A token source that reads a file for each call."""

    path: Path

    def __call__(self) -> SecretStr:
        """Return the token. Raise the errors of :func:`read_token`."""
        return read_token(self.path)


def default_token_file() -> Path:
    """Return the path of the file that ``virtcloud login`` writes. Raise BadInput for a user without a home folder."""
    return find_user_folder("XDG_CONFIG_HOME", ".config") / "token"


def find_user_folder(variable: str, default: str) -> Path:
    """Return virtcloud's folder in a folder of the user (XDG Base Directory).

    ``variable`` names the environment variable with the user's folder. If the variable is not set, the user's folder is
    ``default`` in the home folder. Raise BadInput for a user without a home folder.
    """
    named = os.environ.get(variable)
    if named:
        return Path(named) / "virtcloud"
    try:
        return Path.home() / default / "virtcloud"
    except RuntimeError as error:
        raise BadInput(
            f"expected the user's home folder in the variable HOME, or an account of user ID {os.getuid()} on this "
            f"machine, found neither: set HOME or {variable}"
        ) from error


def token_source(url: str, token: str | SecretStr | None = None, file: str | Path | None = None) -> TokenSource:
    """Return a function that returns the token for calls to ``url``.

    The function reads a token file at each call. ``token`` has precedence over all token files. Raise BadInput if
    ``token`` cannot be a token.
    """
    if token is not None:
        secret = token if isinstance(token, SecretStr) else SecretStr(token)
        check_token(secret.get_secret_value(), "token")
        return lambda: secret
    path = file or os.environ.get(FILE_VARIABLE)
    if path:
        return FileToken(Path(path))
    if url.startswith("unix:"):
        return no_token
    return read_default_token


def find_token_file(source: TokenSource) -> Path | None:
    """Return the existing file from which ``source`` reads the token, or None for a token from elsewhere."""
    path = source.path if isinstance(source, FileToken) else None
    if source is read_default_token:
        path = default_token_file()
    return path if path is not None and path.exists() else None


def name_token_file(error: VirtcloudError, source: TokenSource) -> VirtcloudError:
    """Return an error that SBF answered. If SBF refused the token, the message begins with the token's file."""
    path = find_token_file(source) if isinstance(error, Unauthenticated) else None
    return error if path is None else Unauthenticated(f"token file {path}: {error}")


def read_token(path: Path) -> SecretStr:
    """Read a token file. Raise Unauthenticated if the file is unreadable.

    Raise BadInput if other users can read the file, or if the file contains no token.
    """
    try:
        with path.open(encoding="ascii") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise BadInput(
                    f"token file {path}: expected mode 0600, got {mode:04o}: other local users could read the token. "
                    f"Run chmod 600 {path}, and revoke the token if another user may have read it"
                )
            return SecretStr(_check_prefix(path, file.read().strip()))
    except OSError as error:
        raise Unauthenticated(
            f"token file {path}: cannot be read: {error.strerror}; correct the name, or the rights of the file"
        ) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"token file {path}: expected a token such as {PREFIX}…, got something else") from error


def _check_prefix(path: Path, text: str) -> str:
    check_token(text if text.startswith(PREFIX) else "", f"token file {path}")
    return text


def check_token(text: str, source: str) -> None:
    """Raise BadInput for a text that cannot be a token. The message does not contain the text."""
    if not re.fullmatch("[!-~]+", text):
        raise BadInput(f"{source}: expected a token such as {PREFIX}…, got something else")


def write_token(path: Path, token: str) -> None:
    """Atomically write a token to a file that only its owner can read. Raise BadInput if the file cannot be written."""
    _replace(path, f"{token}\n", "token file")


def replace_private_file(path: Path, text: str) -> None:
    """Atomically write a file that only its owner can read. Raise BadInput if the file cannot be written."""
    _replace(path, text, "file")


def _replace(path: Path, text: str, kind: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a rename would replace the device, pipe or socket
            raise BadInput(f"{kind} {path}: expected a file, got a folder, a device, a pipe or a socket")
        # Two commands can write the same file at the same time, so the temporary folders differ.
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            new_path = Path(folder) / "new"
            with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE), "w") as file:
                file.write(text)
            new_path.replace(path)
    except OSError as error:
        raise BadInput(f"{kind} {path}: cannot be written: {error.strerror}") from error


def read_default_token() -> SecretStr | None:
    """Return the token in the file of ``virtcloud login``, or None without this file.

    Raise the errors of :func:`default_token_file` and :func:`read_token`.
    """
    path = default_token_file()
    try:
        exists = path.exists()
    except OSError as error:  # for example, HOME names the home folder of another user
        raise Unauthenticated(
            f"token file {path}: cannot be read: {error.strerror}; set HOME to your home folder, or name another file "
            "with --token-file"
        ) from error
    return read_token(path) if exists else None
