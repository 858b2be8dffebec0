"""Foreign VLANs and ports on an emulated switch, and a record of their changes."""

from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from support.emulators.switch_device import EmulatedPort, EmulatedSwitch, SwitchState

All = Literal["all"]


def occupy(  # noqa: PLR0913 - each keyword parameter is a kind of use by other users
    switch: "EmulatedSwitch",
    *,
    vlans: Mapping[int, str] | None = None,
    access: Mapping[str, int] | None = None,
    trunks: Mapping[str, "Collection[int] | All"] | None = None,
    native: Mapping[str, int] | None = None,
    shut: Collection[str] = (),
) -> None:
    """Configure VLANs and ports of other users, in the running and the startup configuration, on any platform.

    ``access`` contains the VLAN of each access port. ``native`` contains the native VLAN of each trunk. ``trunks``
    contains each trunk's list of allowed VLANs. ``"all"`` means a trunk without a list or, where a trunk must have a
    list, a list of all existing VLANs.
    """
    with switch.lock:
        switch.running.vlans.update(vlans or {})
        for name, vlan in (access or {}).items():
            switch.become_access(switch.running.ports[name], vlan)
        for name, allowed in (trunks or {}).items():
            switch.become_trunk(switch.running.ports[name], None if allowed == "all" else set(allowed))
        for name, vlan in (native or {}).items():
            switch.become_native(switch.running.ports[name], vlan)
        for name in shut:
            switch.running.ports[name].down = True
        switch.startup = deepcopy(switch.running)


@dataclass
class ConfigurationRecorder:
    """Records every change of VLANs and ports of other users, with the command line that caused the change.

    Changes of ``ports`` and ``vlans``, which SBF manages, are not recorded. A change that is undone later is recorded
    too.
    """

    switch: "EmulatedSwitch"
    ports: frozenset[str]
    vlans: frozenset[int]
    changes: list[tuple[str, str]] = field(default_factory=list)
    before: "SwitchState" = field(init=False)

    def __post_init__(self) -> None:
        self.before = deepcopy(self.switch.running)

    def compare(self, line: str, mode: str, context: Iterable[str]) -> None:
        now = self.switch.running
        changes = [*self._vlan_changes(now), *self._port_changes(now)]
        self.changes += [(line, change) for change in (*changes, *self._entered(line, mode, context))]
        if changes or now.ports.keys() != self.before.ports.keys():
            self.before = deepcopy(now)

    def _vlan_changes(self, now: "SwitchState") -> list[str]:
        old, new = self.before.vlans, now.vlans
        vlans = sorted((old.keys() | new.keys()) - self.vlans)
        return [
            f"VLAN {vlan} {_describe_change(old.get(vlan), new.get(vlan))}"
            for vlan in vlans
            if old.get(vlan) != new.get(vlan)
        ]

    def _port_changes(self, now: "SwitchState") -> list[str]:
        return [
            f"port {name}: {difference}"
            for name, port in self.before.ports.items()
            if name not in self.ports and port != now.ports[name]
            for difference in _differences(port, now.ports[name])
        ]

    def _entered(self, line: str, mode: str, context: Iterable[str]) -> list[str]:
        """Return the foreign VLANs and ports whose configuration mode the command ``line`` entered.

        An entry is, for example, ``VLAN 150 entered``.
        """
        if line.startswith(("exit", "quit", "end")):
            return []
        if mode == "vlan" and line.startswith(("vlan", "interface vlan")):
            return [f"VLAN {number} entered" for number in context if int(number) not in self.vlans]
        if mode == "interface" and line.startswith("int"):
            return [f"port {name} entered" for name in context if name not in self.ports]
        return []


def _describe_change(old: str | None, new: str | None) -> str:
    if old is None:
        return f"created as {new!r}"
    return f"{old!r} deleted" if new is None else f"{old!r} renamed to {new!r}"


def _differences(old: "EmulatedPort", new: "EmulatedPort") -> list[str]:
    names = [attribute.name for attribute in fields(old)]
    return [
        f"{name} {getattr(old, name)!r} became {getattr(new, name)!r}"
        for name in names
        if getattr(old, name) != getattr(new, name)
    ]
