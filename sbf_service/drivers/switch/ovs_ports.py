"""A parser of the ports in the database of Open vSwitch, and the commands that change the ports. Pure.

Sources: ovs-vsctl(8), ovs-vswitchd.conf.db(5).
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.device_errors import quote_end
from sbf_service.drivers.switch.dialect import PortReading
from sbf_service.drivers.switch.observed_state import (
    PortObservation,
    build_observed_state,
    find_changed_uses,
    is_outside_scope,
)
from virtcloud.model.errors import Unsafe
from virtcloud.model.port_use import PortUse
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet

TIMEOUT_S = 8
LIST_PORTS = (
    f"ovs-vsctl --timeout={TIMEOUT_S} --format=json -- --columns=name,vlan_mode,tag,trunks list Port"
    " -- --columns=cur_cfg,next_cfg list Open_vSwitch -- --columns=name,admin_state list Interface"
)
UNUSED = frozenset({"", "access"})
PLACEHOLDER_VLAN = 4095
UNTAGGED_VLAN = 0


@dataclass(frozen=True, slots=True)
class OvsPort:
    """A port of the database, with its effective mode, even if the column ``vlan_mode`` is empty."""

    mode: str
    tag: int | None
    trunks: frozenset[int]
    vlan_mode: str = ""
    down: bool = False

    @property
    def vlans(self) -> VlanSet:
        """The VLANs in the port's columns.

        A trunk without a list carries every VLAN, but has at most the native VLAN here.
        """
        listed = self.trunks if self.is_trunk else frozenset()
        return VlanSet(vlan for vlan in (*listed, self.tag) if vlan and 0 < vlan < PLACEHOLDER_VLAN)

    @property
    def is_trunk(self) -> bool:
        """Whether the port accepts tagged frames (and possibly untagged frames)."""
        return self.mode in {"trunk", "native-tagged", "native-untagged"}

    @property
    def use(self) -> PortUse:
        """The port's use, with the port's columns as ``lines``. A port with empty columns is unconfigured."""
        columns = {"vlan_mode": self.vlan_mode or "[]", "tag": "[]" if self.tag is None else self.tag}
        trunks = ",".join(str(vlan) for vlan in sorted(self.trunks))
        listed = VlanSet(vlan for vlan in self.trunks if 0 < vlan < PLACEHOLDER_VLAN)
        untagged = VlanId(self.tag) if self.tag and self.tag < PLACEHOLDER_VLAN else None
        mode = "" if not (self.vlan_mode or self.tag is not None or self.trunks) else self.mode
        return PortUse(
            mode="trunk" if mode.startswith("native") else mode,
            access=untagged if self.mode == "access" else None,
            native=untagged if self.mode != "access" else None,
            tagged=listed,
            every=self.is_trunk and not self.trunks,
            down=self.down,
            lines=(*(f"{name}={value}" for name, value in columns.items()), f"trunks=[{trunks}]"),
        )


def parse_tables(name: Name, output: str) -> tuple[dict[str, OvsPort], int, int]:
    """Parse the output of :data:`LIST_PORTS`. Raise Unsafe for any other output.

    Return the ports by name, the number of the applied configuration, and the number of the wanted configuration.
    """
    try:
        ports, numbers, interfaces = (_parse_rows(json.loads(line)) for line in output.splitlines())
        down = {str(row["name"]) for row in interfaces if row["admin_state"] == "down"}
        found = {str(row["name"]): _parse_port(row, down) for row in ports}
        return found, int(numbers[0]["cur_cfg"]), int(numbers[0]["next_cfg"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        expected = f"expected three tables in JSON from {LIST_PORTS!r}"
        raise Unsafe(f"switch {name}: {expected}, got {quote_end(output)!r}") from error


def read_ovs_port(port: OvsPort) -> PortReading:
    """Return a port's configuration as a :class:`PortReading`."""
    use = port.use
    untagged = VlanSet(vlan for vlan in (use.access, use.native) if vlan)
    return PortReading(
        tagged=use.tagged,
        ready=port.is_trunk,
        open=use.every,
        untagged=untagged,
        access=use.access,
        off=port.down,
        mode=use.mode,
        native=use.native,
        lines=use.lines,
    )


def derive_ovs_state(name: Name, ports: Mapping[str, OvsPort], scope: SwitchScope) -> SwitchObserved:
    """Return the observed state within the scope. Raise Unsafe for configuration that SBF must not change."""
    observations = {port: _observe_port(name, port, ports, scope) for port in scope.ports}
    uses = {port: ports[port].use for port in (*scope.ports, *scope.returned) if port in ports}
    elsewhere = {
        PortName(port): find_stated_vlans(found.vlans, scope.vlans)
        for port, found in ports.items()
        if is_outside_scope(port, scope)
    }
    return build_observed_state(
        scope,
        observations,
        uses,
        UNUSED,
        elsewhere=elsewhere,
        down=tuple(port for port in scope.ports if ports[port].down),
        unrestored=find_changed_uses(scope, uses),
    )


def render_transaction(difference: SwitchDifference, ports: Mapping[str, OvsPort]) -> list[str]:
    """Return the arguments of ``ovs-vsctl`` for one transaction. ``ports`` are the ports as last read."""
    access = set(difference.access)
    converted = [port for port in difference.add if port not in access and port in ports and not ports[port].is_trunk]
    leaving = {*difference.close, *difference.remove} & access - difference.add.keys()
    return [
        *(word for port in sorted(leaving) for word in _render_set(port, "trunk", "[]", str(PLACEHOLDER_VLAN))),
        *(word for port in converted for word in _render_set(port, "trunk", "[]", str(PLACEHOLDER_VLAN))),
        *(word for port in difference.close if port not in access for word in _render_trunks("add", port, VlanSet())),
        *(
            word
            for port, vlans in difference.remove.items()
            if port not in access
            for word in _render_removal(port, vlans)
        ),
        *(
            word
            for port, vlans in difference.add.items()
            for word in (
                _render_set(port, "access", str(vlans), "[]") if port in access else _render_trunks("add", port, vlans)
            )
        ),
        *(word for port, use in difference.put_back.items() for word in ("--", "set", "port", port, *use.lines)),
    ]


def _render_set(port: PortName, mode: str, tag: str, trunks: str) -> tuple[str, ...]:
    return "--", "set", "port", port, f"vlan_mode={mode}", f"tag={tag}", f"trunks={trunks}"


def _render_removal(port: PortName, vlans: VlanSet) -> tuple[str, ...]:
    ranges = str(vlans).split(",")
    return (*_render_trunks("add", port, VlanSet()), "--", "remove", "port", port, "trunks", *ranges)


def _render_trunks(verb: str, port: PortName, vlans: VlanSet) -> tuple[str, ...]:
    ranges = str(vlans).split(",") if vlans else ()
    return "--", verb, "port", port, "trunks", str(PLACEHOLDER_VLAN), *ranges


def _observe_port(name: Name, port: PortName, ports: Mapping[str, OvsPort], scope: SwitchScope) -> PortObservation:
    if port not in ports:
        existing = ", ".join(sorted(ports)) or "none"
        raise Unsafe(f"switch {name}: expected a port {port}, found {quote_end(existing)}: correct the topology")
    if port not in scope.access:
        return _observe_trunk(name, port, ports[port], scope.vlans)
    is_assigned = port in scope.adopted or port in scope.taken
    return _observe_access_port(name, port, ports[port], scope.vlans, is_assigned=is_assigned)


def _observe_trunk(name: Name, port: PortName, found: OvsPort, managed: VlanSet) -> PortObservation:
    if found.mode != "trunk" and found.tag in managed:
        _raise_unsafe(name, f"port {port}: expected VLAN {found.tag} tagged or absent", found, adoption_helps=False)
    if not found.is_trunk:
        return PortObservation(VlanSet())
    return PortObservation(VlanSet(found.trunks & managed), is_open=not found.trunks)


def _observe_access_port(
    name: Name, port: PortName, found: OvsPort, managed: VlanSet, *, is_assigned: bool
) -> PortObservation:
    """Return the managed VLAN of an access port, if the port has one, and whether the port is open.

    The port is *open* if its mode is not ``access`` or its access VLAN is not managed, except for a trunk that lists
    only ``PLACEHOLDER_VLAN``: SBF must close an open port. ``is_assigned`` permits SBF to change all configuration of
    the port. Raise Unsafe for configuration that SBF must not change.
    """
    if found.mode == "access" and found.tag in managed:
        return PortObservation(VlanSet([found.tag]) if found.tag is not None else VlanSet())
    others = found.trunks - managed - {PLACEHOLDER_VLAN, UNTAGGED_VLAN}
    has_other_vlan = found.mode == "access" and found.tag not in {None, PLACEHOLDER_VLAN, UNTAGGED_VLAN}
    is_other_trunk = found.mode == "trunk" and others
    if not is_assigned and (found.mode not in {"access", "trunk"} or has_other_vlan or is_other_trunk):
        expected = f"access port {port}: expected at most one managed VLAN, untagged"
        _raise_unsafe(name, expected, found, adoption_helps=True)
    return PortObservation(VlanSet(), is_open=found.mode != "trunk" or found.trunks != {PLACEHOLDER_VLAN})


def _raise_unsafe(name: Name, expected: str, found: OvsPort, *, adoption_helps: bool) -> NoReturn:
    listed = VlanSet(vlan for vlan in found.trunks if 0 < vlan < PLACEHOLDER_VLAN)
    columns = f"vlan_mode {found.mode}, tag {found.tag or 'none'}, trunks {listed or 'none'}"
    adopt = "adopt the port, or " if adoption_helps else ""
    raise Unsafe(
        f"switch {name}, {expected}, found {columns}: move the other use to another port or to VLANs outside the pool, "
        f"or {adopt}remove the port from the topology"
    )


def _parse_rows(table: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - JSON
    return [dict(zip(table["headings"], row, strict=True)) for row in table["data"]]


def _parse_port(row: Mapping[str, Any], down: Collection[str]) -> OvsPort:
    (mode,) = _parse_set(row["vlan_mode"]) or [""]
    (tag,) = _parse_set(row["tag"]) or [None]
    implied = "trunk" if tag is None else "access"
    return OvsPort(
        mode=str(mode) or implied,
        tag=None if tag is None else int(tag),
        trunks=frozenset(map(int, _parse_set(row["trunks"]))),
        vlan_mode=str(mode),
        down=str(row["name"]) in down,
    )


def _parse_set(value: Any) -> list[Any]:  # noqa: ANN401 - JSON
    """Return the members of a set. A set with one member has the form of this member (RFC 7047, section 5.1)."""
    if not isinstance(value, list):
        return [value]
    kind, members = value
    if kind != "set":
        raise ValueError(f"expected a set, got {kind}")
    return list(members)
