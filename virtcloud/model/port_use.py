"""Uses of switch ports. SBF records the use of a port before SBF configures the port, and restores the use later."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import PortName, UnicodeText, VlanId
from virtcloud.model.vlans import VlanSet

DEFAULT_VLAN = VlanSet([1])
"""The VLAN of an unconfigured port."""


AGGREGATED = "aggregated"
"""The mode of a member of a link aggregate. The VLANs are configured on the aggregate's interface."""
ROUTED = "routed"
MODE_DESCRIPTIONS = {AGGREGATED: "a member of a link aggregate", ROUTED: "a routed port"}
"""Descriptions of modes for messages. For these modes, messages do not describe the VLANs."""


class PortUse(Document):
    """The use of a port: its VLAN configuration.

    ``mode`` is the platform's name of the mode, such as ``trunk``, ``access`` or ``routed``. ``tagged`` is the
    allowed-VLAN list of a trunk.
    """

    mode: UnicodeText = ""
    """The platform's name of the mode; empty for a port without configuration."""
    access: VlanId | None = None
    """Untagged VLAN of an access port."""
    native: VlanId | None = None
    """Untagged VLAN of a trunk."""
    tagged: VlanSet = VlanSet()
    every: bool = False
    """Whether the trunk has no allowed-VLAN list and therefore carries every VLAN."""
    down: bool = False
    """Whether the port is administratively down."""
    lines: tuple[UnicodeText, ...] = ()
    """The configuration lines that restore this use."""

    def same_configuration(self, other: "PortUse") -> bool:
        """Return whether both uses are equal. Differences in ``down`` and ``lines`` are ignored."""
        return self.model_copy(update={"down": other.down, "lines": other.lines}) == other

    def __str__(self) -> str:
        """Format the use for messages: ``an access port in VLAN 20``."""
        shut = ", shut down" if self.down else ""
        if self.mode in MODE_DESCRIPTIONS:
            return f"{MODE_DESCRIPTIONS[self.mode]}{shut}"
        if self.mode in ("trunk", "dynamic") or self.every or self.tagged:
            vlans = "every VLAN" if self.every else f"VLAN {self.tagged}" if self.tagged else "no VLAN"
            native = "" if self.native in (None, 1) else f", native VLAN {self.native}"
            kind = "a trunk" if self.mode in ("trunk", "") else f"a port in mode {self.mode}"
            return f"{kind} with {vlans}{native}{shut}"
        if self.mode == "access":
            return f"an access port in VLAN {self.access or 1}{shut}"
        return f"a {self.mode} port{shut}" if self.mode else f"a port without configuration{shut}"


def is_in_other_use(use: PortUse, managed: VlanSet, unused: frozenset[str]) -> bool:
    """Return whether a port serves something other than SBF's ``managed`` VLANs.

    ``unused`` are the modes of a platform's unconfigured ports. A port is in other use in each of these cases:

    - the port has an untagged VLAN other than the default VLAN
    - the port carries every VLAN, and the port's mode is not in ``unused``
    - the port's allowed-VLAN list contains a VLAN that is neither managed nor the default VLAN
    - the port's mode is neither ``trunk`` nor in ``unused``
    """
    if {use.native, use.access} - {None, *DEFAULT_VLAN}:
        return True
    if use.every:
        return use.mode not in unused
    if use.tagged - managed - DEFAULT_VLAN:
        return True
    return use.mode not in unused and use.mode != "trunk"


class PortState(StrEnum):
    """The state of a managed port.

    - ``UNUSED``: the port is not in other use, and SBF has not configured the port.
    - ``IN_USE``: the port has a configuration that SBF did not make, and SBF may not replace this configuration.
    - ``ADOPTED``: the port has a configuration that SBF did not make, but SBF may replace this configuration.
    - ``TAKEN``: SBF has configured the port.
    - ``LEAVING``: SBF is restoring the configuration that SBF replaced.
    """

    UNUSED = "unused"
    IN_USE = "in use"
    ADOPTED = "adopted"
    TAKEN = "taken"
    LEAVING = "being put back"


class PortView(Document):
    """A managed port of a switch, as SBF has just read it."""

    port: PortName
    state: PortState
    """The state of the port."""
    use: PortUse
    """The current use."""
    before: PortUse | None = None
    """The use that SBF restores when SBF releases the port."""
    effect: str = ""
    """The change that SBF will make to the port when a cluster first needs the port."""


class PortAdoption(Document):
    """Ports in other use that SBF may configure, each with the use that the administrator confirmed.

    SBF does not configure a port whose use has changed since the confirmation.
    """

    ports: Annotated[dict[PortName, PortUse], Field(min_length=1)]
    """The ports, each with the use that the administrator confirmed."""


class PortRelease(Document):
    """Ports that SBF releases. SBF restores their original use, unless ``forget`` is true."""

    ports: Annotated[tuple[PortName, ...], Field(min_length=1)]
    """The ports to release."""
    forget: bool = False
    """Whether the original use is deleted from SBF's records instead of restored."""


def describe_effect(use: PortUse, *, access: bool) -> str:
    """Return a description of how SBF's first configuration changes a port with this use."""
    if access:
        return "becomes an access port for one cluster at a time; is shut down while no cluster uses it"
    if use.every:
        return "becomes a trunk with SBF's VLANs only: every other VLAN is removed"
    if use.mode == "trunk":
        return f"stays a trunk with VLAN {use.tagged}; SBF adds its VLANs" if use.tagged else "SBF adds its VLANs"
    removed = f": VLAN {use.access} is removed" if use.access not in (None, *DEFAULT_VLAN) else ""
    return f"becomes a trunk with SBF's VLANs only{removed}"
