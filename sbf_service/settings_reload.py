"""The reload of the settings while SBF runs (SIGHUP).

All parts of the service share one :class:`ServiceSettings`, in which a reload replaces values. SBF continues with the
old value of a key that needs a restart, and logs both values. An invalid file changes nothing.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import isclass
from pathlib import Path
from types import FrameType

from sbf_service.database_address import hide_password
from sbf_service.log import get_log
from sbf_service.settings import ServiceSettings, read_settings
from virtcloud.model.document import Document
from virtcloud.model.errors import VirtcloudError

NEEDS_RESTART = frozenset(
    {
        "allow_plaintext",
        "console.enabled",
        "database",
        "device_threads",
        "images.folder",
        "listen",
        "relay.idle",
        "relay.sessions_per_user",
        "replica",
        "socket",
        "telemetry.ca_file",
        "telemetry.endpoint",
        "tls_client_ca",
        "trusted_proxies",
    }
)
TLS_FILES = frozenset({"tls_certificate", "tls_key"})
"""The keys of the certificate files. A reload can change the files, but not turn TLS on or off."""

log = get_log(__name__)


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A key, such as ``timing.drain_deadline``, whose value differs in the new settings.

    SBF uses the value ``former`` now.
    """

    key: str
    former: object
    new: object

    @property
    def needs_restart(self) -> bool:
        """Whether SBF uses the new value only after a restart."""
        is_tls_switched = self.key in TLS_FILES and None in {self.former, self.new}
        return self.key in NEEDS_RESTART or is_tls_switched


class EarlyReloads:
    """Records a SIGHUP that arrives during the start.

    Without this handler, the SIGHUP would end the process. The server reloads the settings when the start is complete.
    """

    def __init__(self) -> None:
        """Install the handler of SIGHUP."""
        self.requested = False
        signal.signal(signal.SIGHUP, self._record)

    def _record(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True


def find_changes(former: ServiceSettings, new: ServiceSettings) -> list[SettingChange]:
    """Return a change for each key whose value differs between ``former`` and ``new``, sorted by key."""
    values, new_values = dict(_list_values(former)), dict(_list_values(new))
    return [
        SettingChange(key, values[key], new_values[key]) for key in sorted(values) if values[key] != new_values[key]
    ]


def _list_values(document: Document, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, field in type(document).model_fields.items():
        value = getattr(document, name)
        if isinstance(value, Document) and isclass(field.annotation):  # an optional document counts as one value
            yield from _list_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def reload_settings(settings: ServiceSettings, file: Path) -> None:
    """Read a settings file again, and replace and log the changed values in ``settings`` that need no restart.

    ``settings`` must share no nested document with another :class:`ServiceSettings` (:func:`copy_settings`).
    """
    try:
        changes = find_changes(settings, read_settings(file))
    except VirtcloudError as error:
        log.warning("settings_not_reloaded", why=error)
        return
    for change in changes:
        former, new = _describe(change.key, change.former), _describe(change.key, change.new)
        if change.needs_restart:
            log.warning("setting_needs_restart", key=change.key, running=former, file=new)
        else:
            _replace(settings, change)
            log.info("setting_changed", key=change.key, former=former, new=new)
    log.info("settings_reloaded", file=file)


def copy_settings(settings: ServiceSettings) -> ServiceSettings:
    """Return a copy that shares no nested document with another :class:`ServiceSettings`.

    Otherwise, all :class:`ServiceSettings` share each nested document that is a default value, such as ``timing``.
    """
    return settings.model_copy(deep=True)


def _replace(settings: ServiceSettings, change: SettingChange) -> None:
    """Replace one value in the frozen document itself, because other modules hold references to the document."""
    *parents, name = change.key.split(".")
    document: Document = settings
    for parent in parents:
        document = getattr(document, parent)
    document.__dict__[name] = change.new


def _describe(key: str, value: object) -> str:
    if key == "database":
        return hide_password(str(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {part}" for name, part in value.items()) or "none"
    return "none" if value is None else str(value)
