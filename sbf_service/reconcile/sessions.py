"""Sessions with devices.

A session stays open until an error occurs or the device's description changes. If the device's ``keep_session`` is
false, the session ends after each use. A *conversation* consists of commands and answers in one session, under one
deadline.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple

from sbf_service.device_credentials import make_login
from sbf_service.drivers.contract import Backbone, DeviceLogin, EdgeDriver, EdgePlatform, SwitchDriver, SwitchPlatform
from sbf_service.drivers.transport.device_session import CancelScope, DetectsSessionLoss
from sbf_service.settings import ServiceSettings
from virtcloud.model.element import Device, Edge, Switch
from virtcloud.model.errors import BadInput, Refused
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

PlatformOf = Callable[[Switch], SwitchPlatform]
EdgePlatformOf = Callable[[Edge], EdgePlatform]
AnyDriver = SwitchDriver | EdgeDriver
NO_DEADLINE = math.inf, ""


@dataclass(frozen=True, slots=True)
class Platforms:
    """Finds the platform of a device. ``of_switch`` and ``of_edge`` raise BadInput for an unknown platform."""

    of_switch: PlatformOf
    of_edge: EdgePlatformOf

    def reserved(self, device: Device) -> VlanSet:
        """Return the VLAN IDs that a device's platform reserves."""
        if isinstance(device, Edge):
            return self.of_edge(device).capabilities.reserved
        return self.of_switch(_require_switch(device)).capabilities.reserved

    def needs_address(self, device: Device) -> bool:
        """Return whether the driver of a device's platform connects to the device's address."""
        if isinstance(device, Edge):
            return self.of_edge(device).needs_address
        return self.of_switch(_require_switch(device)).needs_address

    def driver(self, login: DeviceLogin, backbone: Backbone | None) -> AnyDriver:
        """Create a device's driver without connecting to the device."""
        if isinstance(login.device, Edge):
            return self.of_edge(login.device).driver(login, backbone or Backbone((), {}))
        return self.of_switch(_require_switch(login.device)).driver(login)


class OpenSession(NamedTuple):
    """A driver with its session, created for this device and backbone.

    ``is_lost`` returns whether the device ended the session, as far as the driver can detect this.
    """

    device: Device
    backbone: Backbone | None
    driver: AnyDriver
    cancel_scope: CancelScope
    is_lost: Callable[[], bool]


@dataclass
class DeviceSessions:
    """The open sessions of this replica. A thread may use a session only while it holds the device's lease."""

    settings: ServiceSettings
    platforms: Platforms
    _open: dict[Name, OpenSession] = field(default_factory=dict)
    _limits: dict[Name, tuple[float, str]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def driver(self, device: Device, backbone: Backbone | None = None) -> Any:  # noqa: ANN401 - a type of the device's kind
        """Return the driver with a device's open session, or create a driver that connects on first use.

        Raise Refused for a missing or unusable credential, and for an unknown platform.
        """
        session = self._open.get(device.name)
        if session is not None and (session.device, session.backbone) == (device, backbone):
            return session.driver
        self.end(device.name)
        login = make_login(device, self.settings)
        try:
            driver = self.platforms.driver(login, backbone)
        except BadInput as error:
            raise Refused(str(error)) from error
        is_lost = driver.is_lost if isinstance(driver, DetectsSessionLoss) else lambda: False
        with self._lock:
            self._open[device.name] = OpenSession(device, backbone, driver, login.cancel_scope, is_lost)
            login.cancel_scope.allow(*self._limits.get(device.name, NO_DEADLINE))
        return driver

    def set_deadline(self, name: Name, until: float, why: str) -> None:
        """Set the deadline of a conversation: a monotonic time in seconds.

        ``why`` is the error message of a conversation that does not end before its deadline.
        """
        with self._lock:
            self._limits[name] = until, why
            if name in self._open:
                self._open[name].cancel_scope.allow(until, why)

    def clear_deadline(self, name: Name) -> None:
        """Clear the deadline of a conversation that has ended, and end the session after ``disconnect``."""
        with self._lock:
            self._limits.pop(name, None)
            session = self._open.get(name)
        if session is not None:
            session.cancel_scope.allow(*NO_DEADLINE)
            if not session.cancel_scope.remaining:
                self.end(name)

    def disconnect(self, name: Name, why: str) -> None:
        """Disconnect a device, even while a thread uses the session, and prevent new connections.

        ``why`` is the error message for the thread. Do not wait; never raise.
        """
        with self._lock:
            session = self._open.get(name)
        if session is not None:
            session.cancel_scope.cancel(why)

    def find_lost(self) -> frozenset[Name]:
        """Return the devices that ended their session, for example by a restart: they must be read again."""
        with self._lock:
            sessions = list(self._open.values())
        return frozenset(session.device.name for session in sessions if session.is_lost())

    def names(self) -> frozenset[Name]:
        """Return the devices with an open session."""
        with self._lock:
            return frozenset(self._open)

    def end_unless_kept(self, name: Name) -> None:
        """End the device's session, unless the device's ``keep_session`` is true.

        Some devices allow few sessions, and another replica could be unable to connect.
        """
        session = self._open.get(name)
        if session is not None and not session.device.keep_session:
            self.end(name)

    def end(self, name: Name) -> None:
        """End a device's session. Idempotent."""
        with self._lock:
            session = self._open.pop(name, None)
        if session is not None:
            session.driver.close()


def _require_switch(device: Device) -> Switch:
    if not isinstance(device, Switch):
        raise TypeError(f"{device.name} is neither a switch nor an edge")
    return device
