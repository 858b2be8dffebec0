"""Sessions with devices: kept between converges, dropped on error or when the device is described anew."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from sbf_service.device_credentials import make_login
from sbf_service.drivers.contract import Backbone, DeviceLogin, EdgeDriver, EdgePlatform, SwitchDriver, SwitchPlatform
from sbf_service.drivers.transport.device_session import CancelScope, DetectsSessionLoss
from sbf_service.settings import ServiceSettings
from virtcloud.model.element import Device, Edge, Switch
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

PlatformOf = Callable[[Switch], SwitchPlatform]
EdgePlatformOf = Callable[[Edge], EdgePlatform]
AnyDriver = SwitchDriver | EdgeDriver
NO_DEADLINE = math.inf, ""


@dataclass(frozen=True, slots=True)
class Platforms:
    """Finds the platform of a switch and of a provider edge; both raise BadInput for an unknown one."""

    of_switch: PlatformOf
    of_edge: EdgePlatformOf

    def reserved(self, device: Device) -> VlanSet:
        """Say which numbers a device keeps for itself."""
        facts = (
            self.of_edge(device).capabilities
            if isinstance(device, Edge)
            else self.of_switch(_require_switch(device)).capabilities
        )
        return facts.reserved

    def driver(self, login: DeviceLogin, backbone: Backbone | None) -> AnyDriver:
        """Make a device's driver; nothing is connected."""
        if isinstance(login.device, Edge):
            return self.of_edge(login.device).driver(login, backbone or Backbone((), {}))
        return self.of_switch(_require_switch(login.device)).driver(login)


@dataclass
class DeviceSessions:
    """Gives the driver of a device. One driver is used by one thread at a time: whoever holds the element's lease."""

    settings: ServiceSettings
    platforms: Platforms
    _open: dict[Name, tuple[Device, Backbone | None, AnyDriver, CancelScope]] = field(default_factory=dict)
    _limits: dict[Name, tuple[float, str]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def driver(self, device: Device, backbone: Backbone | None = None) -> Any:  # noqa: ANN401 - of the device's kind
        """Give the kept driver, or make one; nothing is connected here. Raises Refused for a missing credential."""
        kept = self._open.get(device.name)
        if kept is not None and kept[:2] == (device, backbone):
            return kept[2]
        self.drop(device.name)
        login = make_login(device, self.settings)
        driver = self.platforms.driver(login, backbone)
        with self._lock:
            self._open[device.name] = (device, backbone, driver, login.cancel_scope)
            login.cancel_scope.allow(*self._limits.get(device.name, NO_DEADLINE))
        return driver

    def allow(self, name: Name, until: float, why: str) -> None:
        """Permit a device's conversation until a monotonic moment, in seconds; ``why`` is said of it after that."""
        with self._lock:
            self._limits[name] = until, why
            if name in self._open:
                self._open[name][3].allow(until, why)

    def release(self, name: Name) -> None:
        """Take away the limit of a conversation that has ended; its session may be kept unless it was cut."""
        with self._lock:
            self._limits.pop(name, None)
            kept = self._open.get(name)
        if kept is not None:
            kept[3].allow(*NO_DEADLINE)
            if not kept[3].remaining:
                self.drop(name)

    def cut(self, name: Name, why: str) -> None:
        """End a device's connection under the thread that uses it, and each that it makes. Never waits nor raises."""
        with self._lock:
            kept = self._open.get(name)
        if kept is not None:
            kept[3].cancel(why)

    def lost(self) -> frozenset[Name]:
        """Give the devices that ended a kept session by themselves: they may have restarted, and are read at once."""
        with self._lock:
            kept = [(name, driver) for name, (_, _, driver, _) in self._open.items()]
        return frozenset(name for name, driver in kept if isinstance(driver, DetectsSessionLoss) and driver.is_lost())

    def names(self) -> frozenset[Name]:
        """Return the devices with which a session is kept."""
        with self._lock:
            return frozenset(self._open)

    def rest(self, name: Name) -> None:
        """End a session that is not to be kept: the next one may be another replica's."""
        kept = self._open.get(name)
        if kept is not None and not kept[0].keep_session:
            self.drop(name)

    def drop(self, name: Name) -> None:
        """End a session, if there is one."""
        with self._lock:
            kept = self._open.pop(name, None)
        if kept is not None:
            kept[2].close()


def _require_switch(device: Device) -> Switch:
    if not isinstance(device, Switch):
        raise TypeError(f"{device.name} is neither a switch nor an edge")
    return device
