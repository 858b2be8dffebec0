"""Sessions with devices: kept between converges, dropped on error or when the device is described anew."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from sbf_service.drivers.driver import Driver, Login, Platform
from sbf_service.secret import Secret
from sbf_service.settings import Settings
from virtcloud.model.errors import Refused
from virtcloud.model.topology import Switch
from virtcloud.model.values import Name

PlatformOf = Callable[[Switch], Platform]


@dataclass
class Sessions:
    """Gives the driver of a switch. One driver is used by one thread at a time: whoever holds the element's lease."""

    settings: Settings
    platform_of: PlatformOf
    _open: dict[Name, tuple[Login, Driver]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def driver(self, switch: Switch) -> Driver:
        """Give the kept driver, or make one; nothing is connected here. Raises Refused for a missing credential."""
        login = login_for(switch, self.settings)
        kept = self._open.get(switch.name)
        if kept is not None and kept[0] == login:
            return kept[1]
        self.drop(switch.name)
        driver = self.platform_of(switch).driver(login)
        with self._lock:
            self._open[switch.name] = (login, driver)
        return driver

    def drop(self, name: Name) -> None:
        """End a session, if there is one."""
        with self._lock:
            kept = self._open.pop(name, None)
        if kept is not None:
            kept[1].close()


def login_for(switch: Switch, settings: Settings) -> Login:
    """Say how to reach a switch; reads its secrets' files. Raises Refused when that cannot be done."""
    timing = settings.timing
    plain = Login(switch, connect_timeout=timing.connect_timeout, read_timeout=timing.read_timeout)
    if switch.credential is None:
        return plain
    credential = settings.credentials.get(switch.credential)
    if credential is None:
        raise Refused(f"switch {switch.name}: its credential {switch.credential} is not in the service's settings")
    try:
        password, enable = _secret(credential.password_file), _secret(credential.enable_file)
    except OSError as error:
        raise Refused(f"switch {switch.name}: a secret of credential {switch.credential}: {error}") from error
    return replace(
        plain,
        username=credential.username,
        key_file=credential.key_file,
        password=password,
        enable=enable,
        known_hosts=credential.known_hosts,
    )


def _secret(path: Path | None) -> Secret | None:
    return None if path is None else Secret(path.read_text(encoding="utf-8").strip())
