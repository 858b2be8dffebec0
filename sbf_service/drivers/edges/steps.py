"""From a difference to what an edge is told, in steps. Pure; written out for each platform in the tests.

Attachments leave first, then what joined them to a service; only then is anything made, the attachment last. So at no
instant are two clusters in one bridge domain, and a port is in no domain that has not all of its lines.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbf_service.drivers.dialects.dialect import Lines
from sbf_service.drivers.edges.circuits import Group, groups_of
from sbf_service.drivers.edges.dialect import Piece, Seen
from sbf_service.drivers.edges.filling import Filling
from virtcloud.model.edge import NO_SERVICE, Circuit, EdgeDifference, Part
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


@dataclass(frozen=True, slots=True)
class Step:
    """Lines that belong together. ``about`` is what is spoilt when one of them is refused: a domain, a VLAN, a port.

    No later step that ``needs`` any of these is taken: a VLAN that could not be taken out of a domain must not be given
    to another cluster.
    """

    about: frozenset[str]
    lines: tuple[str, ...]
    needs: frozenset[str] = frozenset()

    @property
    def vlans(self) -> VlanSet:
        """The VLAN IDs that it is about, as far as it is about single ones."""
        numbers = (one.removeprefix("vlan ") for one in self.about | self.needs if one.startswith("vlan "))
        return VlanSet(int(number) for number in numbers if number.isdecimal())


def steps(filling: Filling, difference: EdgeDifference, seen: Seen) -> list[Step]:
    """Return the steps after :func:`preparations`, without entering and leaving the configuration."""
    groups = groups_of(seen)
    going = {id(group): _leaving(filling, group, difference) for group in groups}
    leaving = [(group, going[id(group)]) for group in groups if going[id(group)] is not None]
    return [
        *(_detached(filling, group, piece) for group, pieces in leaving for piece in pieces or ()),
        *(step for group, pieces in leaving for step in _dissolved(filling, group, pieces or ())),
        *_on_ports(filling, filling.dialect.trunk, unready_ports(filling, difference, seen)),
        *_additions(filling, difference, [group for group in groups if _stays(group, going[id(group)])]),
    ]


def _leaving(filling: Filling, group: Group, difference: EdgeDifference) -> tuple[Piece, ...] | None:
    """Give what leaves a group with its attachments; None when it is left alone, nothing when it has none."""
    gone: tuple[Circuit | Part, ...] = (*difference.clear, *difference.remove)
    asked = [one for one in gone if _is_about(filling, group, one)]
    if not asked:
        return None
    places = [(filling.dialect.ports.canonical(one.port), one.vlan) for one in asked if one.port is not None]
    order = list(filling.dialect.unmake)
    leaving = (piece for piece in group.pieces if (piece.port, piece.vlan) in places)
    return tuple(sorted(leaving, key=lambda piece: order.index(piece.kind)))


def _is_about(filling: Filling, group: Group, one: Circuit | Part) -> bool:
    if group.service != NO_SERVICE:
        return group.service == one.service
    place = (None if one.port is None else filling.dialect.ports.canonical(one.port), one.vlan)
    return place in {(piece.port, piece.vlan) for piece in group.attachments} or place == (None, group.vlan)


def _stays(group: Group, leaving: tuple[Piece, ...] | None) -> bool:
    return leaving is None or bool(set(group.attachments) - set(leaving))


def _detached(filling: Filling, group: Group, piece: Piece) -> Step:
    transport = filling.transport(group.service)
    alone = transport is None or transport.shared is None
    about = {f"vlan {piece.vlan}", f"leaving {group.domain}"} | ({f"domain {group.domain}"} if alone else set())
    return Step(frozenset(about), tuple(filling.unmade(piece, group.service)))


def _dissolved(filling: Filling, group: Group, leaving: tuple[Piece, ...]) -> Iterator[Step]:
    """Take away what joined a group to its service, once no attachment is in it any more."""
    if _stays(group, leaving):
        return
    about, needs = frozenset({f"domain {group.domain}"}), frozenset({f"leaving {group.domain}"})
    for kind in filling.dialect.unmake:
        for piece in (one for one in group.core if one.kind == kind and one not in leaving):
            yield Step(about, tuple(filling.unmade(piece, group.service)), needs)


def preparations(filling: Filling, difference: EdgeDifference, seen: Seen) -> list[Step]:
    """Return the steps that set empty lists of allowed VLANs; they are read back before any other step."""
    return list(_on_ports(filling, filling.dialect.prepare, unready_ports(filling, difference, seen)))


def unready_ports(filling: Filling, difference: EdgeDifference, seen: Seen) -> dict[str, PortName]:
    """Return the ports that are to get circuits and take none as they are, by the device's names for them."""
    ports = {filling.dialect.ports.canonical(one.port): one.port for one in difference.add}
    has_lists = bool(filling.dialect.prepare)
    return {canonical: port for canonical, port in ports.items() if has_lists and not seen.ports.get(canonical, False)}


def _on_ports(filling: Filling, template: Lines, ports: Mapping[str, PortName]) -> Iterator[Step]:
    for canonical, port in ports.items() if template else ():
        spelt = filling.dialect.ports.spelt(canonical)
        yield Step(frozenset({f"port {port}"}), tuple(line.format(port=spelt) for line in template))


def _additions(filling: Filling, difference: EdgeDifference, staying: list[Group]) -> Iterator[Step]:
    joined = {group.service for group in staying if group.core}
    for circuit in difference.add:
        kinds = filling.kinds(circuit, joined=circuit.service in joined)
        joined.add(circuit.service)
        domain, vlan = f"domain {filling.domain(circuit)}", f"vlan {circuit.vlan}"
        for kind in kinds:
            about = frozenset({vlan if kind in filling.kinds(circuit, joined=True) else domain})
            yield Step(about, tuple(filling.made(kind, circuit)), frozenset({domain, vlan, f"port {circuit.port}"}))
