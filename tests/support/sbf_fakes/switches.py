"""Switches in memory. A test can disconnect or restart a switch, or plan its faults."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Event

from sbf_service.drivers.contract import DeviceLogin, SwitchCapabilities, SwitchPlatform, SwitchScope
from virtcloud.model.element import Switch
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.port_use import PortUse, is_in_other_use
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


@dataclass
class FakeSwitch:
    """A switch: the VLANs of each port, the planned faults of the switch, and the received calls.

    ``table`` contains the names of the switch's VLANs. A restart does not change ``table``. ``table`` is None for a
    switch without names of VLANs.

    ``uses`` contains the use of each port with a configuration that SBF did not make. ``uses`` is None for a switch
    that does not report the uses of its ports, so that SBF records no original uses.

    The faults:

    - ``cut_off``: calls raise Unreachable. This fault begins after ``cut_off_after`` calls.
    - ``hangs``: each call waits for this event.
    - ``refuses``: changes raise Refused.
    - ``lies``: changes have no effect, and raise no error.
    - ``unsafe``: readings raise Unsafe.
    - ``save_fails``: saves raise Refused with this answer of the switch, unless it is empty.
    """

    name: str
    ports: dict[str, set[int]] = field(default_factory=dict)
    table: dict[int, str] | None = None
    access: set[str] = field(default_factory=set)
    startup: tuple[dict[str, set[int]], set[str]] = field(default_factory=lambda: ({}, set()))
    uses: dict[str, PortUse] | None = None
    startup_uses: dict[str, PortUse] | None = None
    save_fails: str = ""
    cut_off: bool = False
    cut_off_after: int | None = None
    refuses: bool = False
    lies: bool = False
    unsafe: bool = False
    hangs: Event | None = None
    calls: list[str] = field(default_factory=list)
    applied: list[SwitchDifference] = field(default_factory=list)
    sessions: int = 0
    ended_session: bool = False
    before_read: Callable[[], None] = lambda: None
    before_apply: Callable[[], None] = lambda: None
    before_save: Callable[[], None] = lambda: None

    def carried(self) -> dict[str, str]:
        """Return the VLANs of each port, as ranges. Omit ports without VLANs."""
        return {port: str(VlanSet(vlans)) for port, vlans in sorted(self.ports.items()) if vlans}

    @property
    def saves(self) -> int:
        return self.calls.count("save")

    def reboot(self) -> None:
        self.ports, self.access = deepcopy(self.startup)
        self.uses = self.startup_uses if self.startup_uses is None else dict(self.startup_uses)
        self.ended_session = True

    def restart(self) -> None:
        """Restart without a saved configuration: remove all VLANs from the ports, and end the session."""
        self.ports = {}
        self.ended_session = True

    def replace(self, table: dict[int, str]) -> None:
        """Replace the switch by another one without configuration, which has the VLANs in ``table``."""
        self.restart()
        self.access, self.startup, self.table = set(), ({}, set()), table
        self.uses, self.startup_uses = {}, {}

    def occupy(self, port: str, use: PortUse) -> None:
        for uses in (self.uses, self.startup_uses):
            assert uses is not None
            uses[port] = use

    def answer(self, call: str) -> None:
        """Record a call. Wait for the event ``hangs``, if any. Raise Unreachable if the switch is disconnected."""
        self.calls.append(call)
        if self.hangs is not None:
            self.hangs.wait()
        if self.cut_off_after is not None:
            self.cut_off = self.cut_off or len(self.calls) > self.cut_off_after
        if self.cut_off:
            raise Unreachable(f"switch {self.name} (fake) does not answer: cut off; SBF tries again")


@dataclass
class FakeDriver:
    """A session with a fake switch."""

    switch: FakeSwitch

    def read(self, managed: SwitchScope) -> SwitchObserved:
        self.switch.answer("read")
        self.switch.before_read()
        self.switch.ended_session = False
        if self.switch.unsafe:
            raise Unsafe(f"switch {self.switch.name}: expected ranges, got an unreadable answer")
        ports = {port: VlanSet(self.switch.ports.get(port, ())) & managed.vlans for port in managed.ports}
        found = {port for port in managed.access if self.switch.ports.get(port) and port not in self.switch.access}
        found |= managed.taken & (self.switch.uses or {}).keys() & set(managed.ports)
        ports |= dict.fromkeys(found, VlanSet())
        table, names = self.switch.table, None
        exist = VlanSet(vlan for vlans in ports.values() for vlan in vlans)
        if table is not None:
            exist = VlanSet(table) & managed.vlans
            names = {vlan: table[vlan] for vlan in exist}
        others = {PortName(port): VlanSet(vlans) & managed.vlans for port, vlans in self.switch.ports.items()}
        outside = {port: vlans for port, vlans in others.items() if port not in managed.ports and vlans}
        elsewhere = {port: vlans for port, vlans in outside.items() if port not in managed.returned}
        observed = SwitchObserved(vlans=exist, ports=ports, open=tuple(sorted(found)), names=names, elsewhere=elsewhere)
        return observed if self.switch.uses is None else self._add_uses(observed, managed, self.switch.uses)

    def _add_uses(self, observed: SwitchObserved, managed: SwitchScope, uses: dict[str, PortUse]) -> SwitchObserved:
        """Add the uses of unconfigured ports, and of released ports whose original use is not restored."""
        untaken = {port: uses.get(port, PortUse()) for port in managed.ports if port not in managed.taken}
        in_use = (port for port, use in untaken.items() if is_in_other_use(use, managed.vlans, frozenset({""})))
        restored = {port for port, use in managed.returned.items() if uses.get(port, PortUse()) == use}
        astray = {
            port: use for port, use in managed.returned.items() if port not in restored or self.switch.ports.get(port)
        }
        return observed.model_copy(update={"untaken": untaken, "in_use": tuple(in_use), "astray": astray})

    def apply(self, difference: SwitchDifference) -> None:
        self.switch.answer("apply")
        self.switch.before_apply()
        if self.switch.refuses:
            raise Refused(f'switch {self.switch.name}: the switch answered "% Invalid input"')
        self.switch.applied.append(difference)
        if not self.switch.lies:
            self._change(difference)

    def save(self) -> bool:
        self.switch.answer("save")
        self.switch.before_save()
        if self.switch.save_fails:
            raise Refused(f"switch {self.switch.name}: sent 'save', the device answered {self.switch.save_fails!r}")
        self.switch.startup = deepcopy((self.switch.ports, self.switch.access))
        self.switch.startup_uses = None if self.switch.uses is None else dict(self.switch.uses)
        return True

    def is_lost(self) -> bool:
        return self.switch.ended_session

    def close(self) -> None:
        self.switch.calls.append("close")

    def _change(self, difference: SwitchDifference) -> None:
        if self.switch.table is not None:
            self.switch.table |= {vlan: f"vc-{vlan}" for vlan in difference.create}
            self.switch.table = {
                vlan: name for vlan, name in self.switch.table.items() if vlan not in difference.delete
            }
        self.switch.ports |= {port: set() for port in difference.close}
        self.switch.access = self.switch.access - difference.add.keys() | {*difference.access}
        for port, vlans in difference.remove.items():
            self.switch.ports.setdefault(port, set()).difference_update(vlans)
        for port, vlans in difference.add.items():
            self.switch.ports.setdefault(port, set()).update(vlans)
        if self.switch.uses is not None:
            changed = {*difference.close, *difference.add, *difference.put_back}
            uses = {port: use for port, use in self.switch.uses.items() if port not in changed}
            self.switch.uses = uses | {port: use for port, use in difference.put_back.items() if use != PortUse()}
            self.switch.ports |= {port: set() for port in difference.put_back}


@dataclass
class FakeSwitches:
    """All fake switches, each with a platform. A switch is created on first use."""

    found: dict[str, FakeSwitch] = field(default_factory=dict)
    facts: SwitchCapabilities = field(default_factory=SwitchCapabilities)

    def __getitem__(self, name: str) -> FakeSwitch:
        return self.found.setdefault(name, FakeSwitch(name))

    def platform_of(self, switch: Switch) -> SwitchPlatform:
        return SwitchPlatform(self.facts, self._driver)

    def _driver(self, login: DeviceLogin) -> FakeDriver:
        self[login.device.name].sessions += 1
        return FakeDriver(self[login.device.name])
