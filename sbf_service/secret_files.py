"""The files with secrets that SBF reads. SBF logs a warning for each file that all local users can read.

The group of a file may read it, because services often get secrets through a group.
"""

import stat
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import make_url

from sbf_service.log import get_log
from sbf_service.settings import ServiceSettings

log = get_log(__name__)


def log_readable_secrets(settings: ServiceSettings, settings_file: Path | None) -> None:
    """Log each file with a secret that every local user can read."""
    for key, path in _list_secret_files(settings, settings_file):
        mode = find_public_mode(path)
        if mode is not None:
            remedy = f"chmod 640 {path} (or 600), and replace the secret if another user may have read the file"
            log.warning("secret_file_readable", file=path, key=key, mode=f"{mode:04o}", remedy=remedy)


def find_public_mode(path: Path) -> int | None:
    """Return the mode of a file that every local user can read; None for any other file and for an absent file.

    Other users cannot read a file in a folder that they may not enter.
    """
    try:
        mode = path.stat().st_mode
        folders = [folder.stat().st_mode for folder in path.resolve().parents]
    except OSError:  # log_credential_faults reports files that SBF cannot read
        return None
    is_public = mode & stat.S_IROTH and all(folder & stat.S_IXOTH for folder in folders)
    return stat.S_IMODE(mode) if is_public else None


def _list_secret_files(settings: ServiceSettings, settings_file: Path | None) -> Iterator[tuple[str, Path]]:
    if settings_file is not None and make_url(settings.database).password is not None:
        yield "database", settings_file
    if settings.tls_key is not None:
        yield "tls_key", settings.tls_key
    for name, credential in settings.credentials.items():
        if credential.key_file is not None:
            yield f"credentials.{name}.key_file", credential.key_file
        for key, source in (("password", credential.password), ("enable", credential.enable)):
            if source is not None and source.file is not None:
                yield f"credentials.{name}.{key}.file", source.file
    oidc = settings.console.oidc
    if oidc is not None and oidc.client_secret is not None and oidc.client_secret.file is not None:
        yield "console.oidc.client_secret.file", oidc.client_secret.file
