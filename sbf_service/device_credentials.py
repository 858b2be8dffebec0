"""How the service logs in to a device: the credential of its settings, its files and its secrets.

The files are checked when the service starts, on SIGHUP, and before each login. A fault is an error of this machine:
no message blames the device for it.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sbf_service.drivers.contract import DeviceLogin
from sbf_service.log import get_log
from sbf_service.secret_source import SecretSource, fetch_secret
from sbf_service.settings import Credential, ServiceSettings
from virtcloud.model.element import Device, kind_of
from virtcloud.model.errors import Refused
from virtcloud.model.values import Name

log = get_log(__name__)
REMEDY = "put the file there, readable by the service's user, or correct the service's settings"


def make_login(device: Device, settings: ServiceSettings) -> DeviceLogin:
    """Return how to log in to ``device``, with its secrets. Raise Refused for a credential that cannot be used."""
    timing, named = settings.timing, f"{kind_of(device)} {device.name}"
    plain = DeviceLogin(device, connect_timeout=timing.connect_timeout, read_timeout=timing.read_timeout)
    if device.credential is None:
        return plain
    credential = settings.credentials.get(device.credential)
    if credential is None:
        raise Refused(f"{named}: its credential {device.credential} is not in the service's settings")
    for fault in _find_file_faults(credential):
        raise Refused(f"{named}: credential {device.credential}: {fault}")
    try:
        password, enable = (
            None if source is None else fetch_secret(source, timing.secret_timeout)
            for source in (credential.password, credential.enable)
        )
    except Refused as error:
        raise Refused(f"{named}: a secret of credential {device.credential}: {error}") from error
    return replace(
        plain,
        username=credential.username,
        key_file=credential.key_file,
        password=password,
        enable=enable,
        known_hosts=credential.known_hosts,
        ca_file=credential.ca_file,
    )


def log_credential_faults(settings: ServiceSettings) -> None:
    """Log each credential that cannot be used. The service runs on: the devices of other credentials work."""
    for name, fault in find_credential_faults(settings):
        log.warning("credential_unusable", credential=name, why=fault)


def find_credential_faults(settings: ServiceSettings) -> Iterator[tuple[Name, str]]:
    """Yield the faults of all credentials that show without a device; no secret is fetched and no command run."""
    for name, credential in settings.credentials.items():
        for fault in (*_find_file_faults(credential), *_find_secret_faults(credential)):
            yield name, fault


def _find_file_faults(credential: Credential) -> Iterator[str]:
    for key in ("key_file", "known_hosts", "ca_file"):
        yield from _find_unreadable(key, getattr(credential, key))


def _find_secret_faults(credential: Credential) -> Iterator[str]:
    for key in ("password", "enable"):
        source: SecretSource | None = getattr(credential, key)
        if source is None:
            continue
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
