"""Sessions with devices.

A session stays open between reconciliations until an error or a new description of the device.
"""

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
    """Finds the platform of a switch or a provider edge. Both callables raise BadInput for an unknown platform."""

    of_switch: PlatformOf
    of_edge: EdgePlatformOf

    def reserved(self, device: Device) -> VlanSet:
        """Return the VLAN IDs that a device's platform reserves."""
        facts = (
            self.of_edge(device).capabilities
            if isinstance(device, Edge)
            else self.of_switch(_require_switch(device)).capabilities
        )
        return facts.reserved

    def driver(self, login: DeviceLogin, backbone: Backbone | None) -> AnyDriver:
        """Create a device's driver without connecting."""
        if isinstance(login.device, Edge):
            return self.of_edge(login.device).driver(login, backbone or Backbone((), {}))
        return self.of_switch(_require_switch(login.device)).driver(login)


@dataclass
class DeviceSessions:
    """The open sessions: the drivers of devices. Only the holder of an element's lease uses its driver."""

    settings: ServiceSettings
    platforms: Platforms
    _open: dict[Name, tuple[Device, Backbone | None, AnyDriver, CancelScope]] = field(default_factory=dict)
    _limits: dict[Name, tuple[float, str]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def driver(self, device: Device, backbone: Backbone | None = None) -> Any:  # noqa: ANN401 - a type of the device's kind
        """Return the driver with a device's open session, or create a driver without connecting.

        Raise Refused for a missing credential.
        """
        kept = self._open.get(device.name)
        if kept is not None and kept[:2] == (device, backbone):
            return kept[2]
        self.end(device.name)
        login = make_login(device, self.settings)
        driver = self.platforms.driver(login, backbone)
        with self._lock:
            self._open[device.name] = (device, backbone, driver, login.cancel_scope)
            login.cancel_scope.allow(*self._limits.get(device.name, NO_DEADLINE))
        return driver

    def set_deadline(self, name: Name, until: float, why: str) -> None:
        """Set the deadline of a conversation (monotonic, in seconds). ``why`` is reported when the deadline passes."""
        with self._lock:
            self._limits[name] = until, why
            if name in self._open:
                self._open[name][3].allow(until, why)

    def clear_deadline(self, name: Name) -> None:
        """Clear the deadline of a conversation that has ended. End the session if it was disconnected."""
        with self._lock:
            self._limits.pop(name, None)
            kept = self._open.get(name)
        if kept is not None:
            kept[3].allow(*NO_DEADLINE)
            if not kept[3].remaining:
                self.end(name)

    def disconnect(self, name: Name, why: str) -> None:
        """Disconnect a device although a thread uses it, and prevent new connections.

        Never wait, never raise an error.
        """
        with self._lock:
            kept = self._open.get(name)
        if kept is not None:
            kept[3].cancel(why)

    def find_lost(self) -> frozenset[Name]:
        """Return the devices that ended their session. They may have restarted and have to be read immediately."""
        with self._lock:
            kept = [(name, driver) for name, (_, _, driver, _) in self._open.items()]
        return frozenset(name for name, driver in kept if isinstance(driver, DetectsSessionLoss) and driver.is_lost())

    def names(self) -> frozenset[Name]:
        """Return the devices with an open session."""
        with self._lock:
            return frozenset(self._open)

    def end_unless_kept(self, name: Name) -> None:
        """End the session of a device that allows few sessions, so that another replica can connect."""
        kept = self._open.get(name)
        if kept is not None and not kept[0].keep_session:
            self.end(name)

    def end(self, name: Name) -> None:
        """End a device's session, if it is open."""
        with self._lock:
            kept = self._open.pop(name, None)
        if kept is not None:
            kept[2].close()


def _require_switch(device: Device) -> Switch:
    if not isinstance(device, Switch):
        raise TypeError(f"{device.name} is neither a switch nor an edge")
    return device
