"""Device credentials: logins, and secrets from files, environment variables and commands.

SBF checks the files of credentials when SBF starts, on SIGHUP, and before each login.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr

from sbf_service.credential_settings import Credential, SecretSource
from sbf_service.drivers.contract import DeviceLogin
from sbf_service.log import get_log
from sbf_service.settings import ServiceSettings
from virtcloud.model.element import Device, kind_of
from virtcloud.model.errors import Refused
from virtcloud.model.values import Name

log = get_log(__name__)
ENCODING = "utf-8"
REMEDY = "put the file there, readable by the service's user, or correct the service's settings"


def make_login(device: Device, settings: ServiceSettings) -> DeviceLogin:
    """Return the login for ``device`` with its secrets. Raise Refused for an unusable credential."""
    timing, label = settings.timing, f"{kind_of(device)} {device.name}"
    login = DeviceLogin(device, connect_timeout=timing.connect_timeout, read_timeout=timing.read_timeout)
    if device.credential is None:
        return login
    credential = settings.credentials.get(device.credential)
    if credential is None:
        raise Refused(f"{label}: its credential {device.credential} is not in the service's settings")
    for fault in _find_file_faults(credential):
        raise Refused(f"{label}: credential {device.credential}: {fault}")
    try:
        password, enable = (
            None if source is None else fetch_secret(source, timing.secret_timeout)
            for source in (credential.password, credential.enable)
        )
    except Refused as error:
        raise Refused(f"{label}: a secret of credential {device.credential}: {error}") from error
    return replace(
        login,
        username=credential.username,
        key_file=credential.key_file,
        password=password,
        enable=enable,
        known_hosts=credential.known_hosts,
        ca_file=credential.ca_file,
    )


def fetch_secret(source: SecretSource, timeout_s: float) -> SecretStr:
    """Fetch a secret. Raise Refused if the source yields none. The message never contains the secret."""
    if source.file is not None:
        text = _read_file(source.file)
    elif source.env is not None:
        text = _read_environment(source.env)
    else:
        text = _run_command(source.command or (), timeout_s)
    return SecretStr(text)


def log_credential_faults(settings: ServiceSettings) -> None:
    """Log each unusable credential. SBF continues to run, because devices with other credentials work."""
    for name, fault in find_credential_faults(settings):
        log.warning("credential_unusable", credential=name, why=fault)


def find_credential_faults(settings: ServiceSettings) -> Iterator[tuple[Name, str]]:
    """Yield the name and the fault of each unusable credential. Fetch no secret and run no command."""
    for name, credential in settings.credentials.items():
        secrets = {"password": credential.password, "enable": credential.enable}
        secret_faults = (fault for key, source in secrets.items() for fault in find_secret_faults(key, source))
        for fault in (*_find_file_faults(credential), *secret_faults):
            yield name, fault


def _find_file_faults(credential: Credential) -> Iterator[str]:
    for key in ("key_file", "known_hosts", "ca_file"):
        yield from _find_unreadable(key, getattr(credential, key))


def find_secret_faults(key: str, source: SecretSource | None) -> Iterator[str]:
    """Yield each fault of a secret's source. Fetch no secret and run no command. ``key`` is the key in the settings."""
    if source is None:
        return
    yield from _find_unreadable(f"{key}.file", source.file)
    if source.env is not None and not os.environ.get(source.env):
        yield f"{key}.env {source.env}: expected a secret in this environment variable, found none"
    if source.command and shutil.which(source.command[0]) is None:
        yield f"{key}.command {source.command[0]}: expected a program, found none"


def _find_unreadable(key: str, path: Path | None) -> Iterator[str]:
    try:
        if path is not None:
            path.open("rb").close()
    except OSError as error:
        yield f"{key} {path} cannot be read: {error.strerror}; {REMEDY}"


def _read_file(path: Path) -> str:
    try:
        return _check_not_empty(path.read_text(encoding=ENCODING), f"file {path}")
    except OSError as error:
        raise Refused(f"file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Refused(f"file {path}: expected text in {ENCODING}") from None  # the error contains the secret


def _read_environment(name: str) -> str:
    return _check_not_empty(os.environ.get(name, ""), f"the service's environment variable {name}")


def _run_command(argv: tuple[str, ...], timeout_s: float) -> str:
    """Return a command's output. Log neither stdout nor stderr, which can contain the secret."""
    label = f"command {argv[0]}"
    try:
        ended = subprocess.run(  # noqa: S603 - the command is from the service's own settings
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
        text = ended.stdout.decode(ENCODING)
    except subprocess.TimeoutExpired:
        raise Refused(f"{label} took longer than {timeout_s:g} s (timing.secret_timeout)") from None
    except OSError as error:
        raise Refused(f"{label} cannot be run: {error.strerror}") from error
    except UnicodeDecodeError:
        raise Refused(f"{label}: expected output in {ENCODING}") from None
    if ended.returncode:
        raise Refused(f"{label}: exit code {ended.returncode}; run the command as the service's user to see its error")
    return _check_not_empty(text, label)


def _check_not_empty(text: str, label: str) -> str:
    secret = text.rstrip("\r\n")
    if not secret:
        raise Refused(f"{label}: expected a secret, got an empty text")
    return secret
