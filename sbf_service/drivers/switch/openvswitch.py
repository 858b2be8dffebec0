"""Switches that are Open vSwitch, driven by ``ovs-vsctl`` (ovs-vsctl(8), ovs-vswitchd.conf.db(5)).

A trunk whose ``trunks`` is empty carries every VLAN, so "none" cannot be said by an empty list. A managed trunk
therefore always lists :data:`STOPPER`, a number that no cluster can have (IEEE 802.1Q reserves it): no order of
changes, of ours or of others, empties the list. A change is one transaction, which the database makes wholly or not at
all, and ``ovs-vsctl`` waits until the switch does as the database says.

A port that an access port is to be in no VLAN becomes such a trunk too: untagged frames are in no list and are dropped.
(An access port in the stopper's VLAN would be in one with all others there.)
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, NoReturn

from sbf_service.domain.cabling import Neighbour
from sbf_service.domain.ownership import find_stated_vlans
from sbf_service.drivers.contract import SwitchCapabilities, SwitchScope
from sbf_service.drivers.switch.lldp import read_lldpd_neighbours
from sbf_service.drivers.transport.device_session import CommandLine
from sbf_service.drivers.transport.shell import Shell, pack_words, quote_end
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.port_use import PortUse, is_in_other_use
from virtcloud.model.values import Name, PortName, VlanId
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved

CAPABILITIES = SwitchCapabilities(reserved=VlanSet([1]), atomic=True, access=True)
UNUSED = frozenset({"", "access"})
PLACEHOLDER_VLAN = 4095
TIMEOUT_S = 8
LIST_PORTS = (
    f"ovs-vsctl --timeout={TIMEOUT_S} --format=json -- --columns=name,vlan_mode,tag,trunks list Port"
    " -- --columns=cur_cfg,next_cfg list Open_vSwitch -- --columns=name,admin_state list Interface"
)
TRANSACT = f"ovs-vsctl --timeout={TIMEOUT_S}"
UNTAGGED_VLAN = 0
"""What frames without a tag are in on a trunk."""


@dataclass(frozen=True, slots=True)
class OvsPort:
    """One port as the database has it; ``mode`` is as it works out when the column ``vlan_mode`` is empty."""

    mode: str
    tag: int | None
    trunks: frozenset[int]
    vlan_mode: str = ""
    down: bool = False

    @property
    def vlans(self) -> VlanSet:
        """The VLANs that it names; a trunk without a list carries every VLAN and names none."""
        listed = self.trunks if self.is_trunk else frozenset()
        return VlanSet(number for number in (*listed, self.tag) if number and 0 < number < PLACEHOLDER_VLAN)

    @property
    def is_trunk(self) -> bool:
        """Whether it takes tagged frames, beside untagged ones or not."""
        return self.mode in {"trunk", "native-tagged", "native-untagged"}

    @property
    def use(self) -> PortUse:
        """Return what the port is used for; ``lines`` are its columns. A port with empty columns is unconfigured."""
        columns = {"vlan_mode": self.vlan_mode or "[]", "tag": "[]" if self.tag is None else self.tag}
        trunks = ",".join(str(number) for number in sorted(self.trunks))
        listed = VlanSet(number for number in self.trunks if 0 < number < PLACEHOLDER_VLAN)
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


class OpenVSwitch:
    """One switch."""

    def __init__(self, name: Name, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._shell = Shell(f"switch {name}", line)
        self._ports: Mapping[str, OvsPort] = {}

    def read(self, managed: SwitchScope) -> SwitchObserved:
        """Read what managed ports carry of managed numbers; one round trip.

        Raises Refused while the switch does not follow its database.
        """
        self._shell.renew()
        code, said = self._shell.run(LIST_PORTS)
        if code:
            raise Refused(f"switch {self._name}: {LIST_PORTS!r} failed: the switch said {quote_end(said)!r}")
        ports, done, asked = parse_tables(self._name, said)
        if done < asked:
            raise Refused(
                f"switch {self._name}: its database is at configuration {asked}, what it does at {done}: "
                "look whether ovs-vswitchd runs"
            )
        self._ports = ports
        return derive_ovs_state(self._name, ports, managed)

    def apply(self, difference: SwitchDifference) -> None:
        """Make the change, in one transaction."""
        told = render_transaction(difference, self._ports)
        if not told:
            return
        lines = " \\\n".join(" ".join(part) for part in pack_words(quote(word) for word in (*TRANSACT.split(), *told)))
        code, said = self._shell.run(f"{lines} 2>&1")
        if code:
            raise Refused(f"switch {self._name}: told {TRANSACT!r} and more, the switch said {quote_end(said)!r}")

    def save(self) -> bool:
        """Write the database to the disk: a transaction is in its file, and may still be in memory only."""
        code, said = self._shell.run("sync 2>&1")
        if code:
            words = f"'sync' failed, its database may not be on the disk: the switch said {quote_end(said)!r}"
            raise Refused(f"switch {self._name}: {words}")
        return True

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the one command that makes the change."""
        told = render_transaction(difference, self._ports)
        return (" ".join(quote(word) for word in (*TRANSACT.split(), *told)),) if told else ()

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - lldpd tells all
        """Ask the switch's lldpd."""
        return read_lldpd_neighbours(self._shell, self._name)

    def is_lost(self) -> bool:
        """Return whether the device ended the session by itself."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()


def parse_tables(name: Name, said: str) -> tuple[dict[str, OvsPort], int, int]:
    """Understand the answer to :data:`SHOW`: the ports, what the switch does, and what its database wants."""
    try:
        ports, numbers, interfaces = (_parse_rows(json.loads(line)) for line in said.splitlines())
        down = {str(row["name"]) for row in interfaces if row["admin_state"] == "down"}
        found = {str(row["name"]): _parse_port(row, down) for row in ports}
        return found, int(numbers[0]["cur_cfg"]), int(numbers[0]["next_cfg"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Unsafe(
            f"switch {name}: expected three tables in JSON from {LIST_PORTS!r}, got {quote_end(said)!r}"
        ) from error


def derive_ovs_state(name: Name, ports: Mapping[str, OvsPort], managed: SwitchScope) -> SwitchObserved:
    """Keep of what was seen what we manage; raises Unsafe for what may not be touched."""
    carried, opened = {}, []
    for port in managed.ports:
        if port not in ports:
            there = ", ".join(sorted(ports)) or "none"
            raise Unsafe(f"switch {name}: expected a port {port}, found {quote_end(there)}: correct the topology")
        found = _observe_port(name, port, ports[port], managed)
        carried[port] = found or VlanSet()
        opened += [port] if found is None else []
    exist = VlanSet(number for vlans in carried.values() for number in vlans)
    others = {
        PortName(name): port
        for name, port in ports.items()
        if name not in {*managed.ports, *managed.members, *managed.returned}
    }
    used = {name: vlans for name, port in others.items() if (vlans := find_stated_vlans(port.vlans, managed.vlans))}
    untaken = {port: ports[port].use for port in managed.ports if port not in managed.taken}
    returned = {port: ports[port].use for port in managed.returned if port in ports}
    return SwitchObserved(
        vlans=exist,
        ports=carried,
        open=tuple(opened),
        elsewhere=used,
        untaken=untaken,
        in_use=tuple(port for port, use in untaken.items() if is_in_other_use(use, managed.vlans, UNUSED)),
        down=tuple(port for port in managed.ports if ports[port].down),
        astray={
            port: managed.returned[port] for port, use in returned.items() if use.lines != managed.returned[port].lines
        },
    )


def render_transaction(difference: SwitchDifference, ports: Mapping[str, OvsPort]) -> list[str]:
    """Return the words of one transaction, each command after ``--``; ``ports`` are as they were read."""
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


def _observe_port(name: Name, port: PortName, seen: OvsPort, managed: SwitchScope) -> VlanSet | None:
    if port not in managed.access:
        return _observe_trunk(name, port, seen, managed.vlans)
    agreed = port in managed.adopted or port in managed.taken
    return _observe_access_port(name, port, seen, managed.vlans, agreed=agreed)


def _observe_trunk(name: Name, port: PortName, seen: OvsPort, managed: VlanSet) -> VlanSet | None:
    """Return a trunk's numbers, none for a port that is no trunk; None for a trunk that carries all."""
    if seen.mode != "trunk" and seen.tag in managed:
        _raise_unsafe(name, f"port {port}: expected VLAN {seen.tag} tagged or absent", seen)
    if not seen.is_trunk:
        return VlanSet()
    return VlanSet(seen.trunks & managed) if seen.trunks else None


def _observe_access_port(
    name: Name, port: PortName, seen: OvsPort, managed: VlanSet, *, agreed: bool
) -> VlanSet | None:
    """Give an access port's number, or none for one in no VLAN; None for anything else that we may change."""
    if seen.mode == "access" and seen.tag in managed:
        return VlanSet([seen.tag]) if seen.tag is not None else None
    others = seen.trunks - managed - {PLACEHOLDER_VLAN, UNTAGGED_VLAN}
    somebodys = seen.mode == "access" and seen.tag not in {None, PLACEHOLDER_VLAN, UNTAGGED_VLAN}
    if not agreed and (seen.mode not in {"access", "trunk"} or somebodys or (seen.mode == "trunk" and others)):
        _raise_unsafe(name, f"access port {port}: expected one VLAN of ours untagged or none", seen)
    return VlanSet() if seen.mode == "trunk" and seen.trunks == {PLACEHOLDER_VLAN} else None


def _raise_unsafe(name: Name, expected: str, seen: OvsPort) -> NoReturn:
    listed = VlanSet(number for number in seen.trunks if 0 < number < PLACEHOLDER_VLAN)
    found = f"vlan_mode {seen.mode}, tag {seen.tag or 'none'}, trunks {listed or 'none'}"
    cure = (
        "move what uses it off this port or the pool's numbers, adopt the port, or take it or them out of the topology"
    )
    raise Unsafe(f"switch {name}, {expected}, found {found}: {cure}")


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
    """Give the members of a set, which is written as an atom when it has one (RFC 7047, section 5.1)."""
    if not isinstance(value, list):
        return [value]
    kind, members = value
    if kind != "set":
        raise ValueError(f"expected a set, got {kind}")
    return list(members)
