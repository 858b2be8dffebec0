"""The contract of drivers for switches and provider edges.

A driver raises only Unreachable, Refused and Unsafe. At most one thread uses a driver at a time. A driver connects to
its device on first use.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from pydantic import SecretStr

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import ALL_VLAN_IDS
from sbf_service.drivers.transport.device_session import CancelScope
from virtcloud.model.edge import EdgeDifference, EdgeObserved
from virtcloud.model.element import Device
from virtcloud.model.port_use import PortUse
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet

D_contra = TypeVar("D_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """A device with its address, the credential, and the timeouts of its connections in seconds.

    ``enable`` is the password of the privileged mode, or None if ``password`` is this password, too. If ``known_hosts``
    is set, only the host keys in this file are accepted. If ``ca_file`` is set, only certificates in this file, or of a
    CA in this file, are accepted. ``cancel_scope`` limits how long the connection is used.
    """

    device: Device
    username: str = ""
    key_file: Path | None = None
    password: SecretStr | None = None
    connect_timeout: float = 5
    read_timeout: float = 10
    enable: SecretStr | None = None
    known_hosts: Path | None = None
    ca_file: Path | None = None
    cancel_scope: CancelScope = field(default_factory=CancelScope, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SwitchScope:
    """The ports and VLAN IDs that SBF may change on a switch; SBF changes nothing else.

    - ``access``: the ports that carry a VLAN untagged.
    - ``members``: the member ports of the aggregates in ``ports``.
    - ``created``: the VLAN IDs that SBF recorded as created on this switch.
    - ``known``: the VLAN IDs for which a VLAN with SBF's name counts as created by SBF (``domain/ownership.py``).
    - ``taken``: the ports that SBF has configured at least once.
    - ``adopted``: the ports that an administrator assigned to SBF, each with its port use at that time.
    - ``returned``: the ports that SBF no longer manages, each with the port use to restore.
    - ``shut``: the ports that SBF has shut down, or may have shut down.
    """

    ports: tuple[PortName, ...]
    vlans: VlanSet
    access: tuple[PortName, ...] = ()
    members: tuple[PortName, ...] = ()
    created: VlanSet = field(default_factory=VlanSet)
    known: VlanSet = ALL_VLAN_IDS
    taken: frozenset[PortName] = frozenset()
    adopted: Mapping[PortName, PortUse] = field(default_factory=dict)
    returned: Mapping[PortName, PortUse] = field(default_factory=dict)
    shut: frozenset[PortName] = frozenset()


@dataclass(frozen=True, slots=True)
class SwitchCapabilities:
    """The capabilities of a platform of switches, and the VLAN IDs that the platform reserves.

    ``atomic``: a difference is applied completely or not at all. ``confirm_timer``: the device reverts a change that is
    not confirmed. ``translation``: the VLAN ID of a cluster can differ from port to port. ``access``: a port can carry
    a cluster's VLAN untagged.
    """

    reserved: VlanSet = field(default_factory=VlanSet)
    atomic: bool = False
    confirm_timer: bool = False
    translation: bool = False
    access: bool = False


class SwitchDriver(Protocol):
    """The driver of one switch."""

    def read(self, scope: SwitchScope) -> SwitchObserved:
        """Read the state of the managed ports, and the managed VLAN IDs that other ports carry. Change nothing.

        Raise Unsafe when an answer cannot be parsed, a managed port does not exist, or a managed port carries an
        untagged VLAN that SBF must not change.
        """

    def apply(self, difference: SwitchDifference) -> None:
        """Apply a difference to the running configuration. Idempotent. :meth:`read` shows the result.

        Raise Refused when the device refuses a command. The device may have accepted other commands.
        """

    def save(self) -> bool:
        """Copy the running configuration to the startup configuration. Idempotent.

        Return True after a save, and False on a platform without a separate save step. Such a platform keeps either all
        changes or no changes after a restart. Raise Refused, with the device's answer, unless the device prints that
        the configuration was saved.
        """

    def close(self) -> None:
        """End the session. Idempotent. Never raises."""


@runtime_checkable
class ListsCommands(Protocol[D_contra]):
    """A driver that can list the commands of a difference without sending them, for dry runs."""

    def list_commands(self, difference: D_contra) -> tuple[str, ...]:
        """Return the commands that apply a difference, in the order of sending.

        The commands can depend on the state of the device at the last reading. Some drivers append the save commands.
        """


@runtime_checkable
class ReadsNeighbours(Protocol):
    """A driver that can read the neighbours of its switch (LLDP)."""

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:
        """Read the neighbours on ``ports``. The result can also contain neighbours on other ports. Change nothing.

        Raise the errors of :meth:`SwitchDriver.read`.
        """


@dataclass(frozen=True, slots=True)
class SwitchPlatform:
    """A platform of switches: its capabilities, and the function that creates a driver.

    ``port`` returns the canonical form of a port's name. ``needs_address``: the driver connects to the switch's
    address.
    """

    capabilities: SwitchCapabilities
    driver: Callable[[DeviceLogin], SwitchDriver]
    port: Callable[[str], str] = str.strip
    needs_address: bool = False


@dataclass(frozen=True, slots=True)
class EdgeScope:
    """The configuration that SBF may change on a provider edge: ``vlans`` on ``ports``, and services of ``transports``.

    SBF changes neither services of other transports nor services that contain unmanaged ports. ``created``: the VLAN
    IDs that SBF recorded as created on this edge. ``known``: the VLAN IDs that SBF has managed on this edge before, or
    all VLAN IDs after an administrator has declared the edge clean.
    """

    ports: tuple[PortName, ...]
    vlans: VlanSet
    transports: tuple[Transport, ...]
    created: VlanSet = field(default_factory=VlanSet)
    known: VlanSet = ALL_VLAN_IDS


@dataclass(frozen=True, slots=True)
class EdgeCapabilities:
    """The kinds of transport that a platform of provider edges supports, and the VLAN IDs that the platform reserves.

    ``atomic`` and ``confirm_timer``: see :class:`SwitchCapabilities`. ``services_by_kind``: services of transports of
    different kinds may have the same service ID.
    """

    kinds: frozenset[TransportKind]
    reserved: VlanSet = field(default_factory=VlanSet)
    atomic: bool = False
    confirm_timer: bool = False
    services_by_kind: bool = False


class EdgeDriver(Protocol):
    """The driver of one provider edge."""

    def read(self, scope: EdgeScope) -> EdgeObserved:
        """Read the managed circuits, and the remnants of incomplete circuits. Change nothing.

        Raise Unsafe when an answer cannot be parsed, or when a managed port or service has configuration that SBF must
        not change.
        """

    def apply(self, difference: EdgeDifference) -> None:
        """Apply a difference. Idempotent. :meth:`read` shows the result.

        Raise Refused when the device refuses a command. The device may have accepted other commands.
        """

    def save(self) -> bool:
        """Copy the running configuration to the startup configuration. Idempotent. See :meth:`SwitchDriver.save`."""

    def close(self) -> None:
        """End the session. Idempotent. Never raises."""


@dataclass(frozen=True, slots=True)
class Backbone:
    """The transports of an edge. ``peers`` maps a transport's name to the loopbacks of the transport's other edges."""

    transports: tuple[Transport, ...]
    peers: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EdgePlatform:
    """A platform of provider edges: its capabilities, and the function that creates a driver.

    ``needs_address``: the driver connects to the edge's address.
    """

    capabilities: EdgeCapabilities
    driver: Callable[[DeviceLogin, Backbone], EdgeDriver]
    needs_address: bool = False
