"""From a difference to what an edge is told, in steps. Pure; written out for each platform in the tests.

Attachments leave first, then what joined them to a service; only then is anything made, the attachment last. So at no
instant are two clusters in one bridge domain, and a port is in no domain that has not all of its lines.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbf_service.drivers.edge.edge_dialect import CircuitPiece, EdgeReading, EdgeTemplates
from sbf_service.drivers.edge.observed_circuits import PieceGroup, group_pieces
from sbf_service.drivers.switch.dialect import Commands
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeDifference
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


@dataclass(frozen=True, slots=True)
class ChangeStep:
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


def plan_steps(filling: EdgeTemplates, difference: EdgeDifference, seen: EdgeReading) -> list[ChangeStep]:
    """Return the steps after :func:`preparations`, without entering and leaving the configuration."""
    groups = group_pieces(seen)
    going = {id(group): _find_leaving_pieces(filling, group, difference) for group in groups}
    leaving = [(group, going[id(group)]) for group in groups if going[id(group)] is not None]
    return [
        *(_plan_detachment(filling, group, piece) for group, pieces in leaving for piece in pieces or ()),
        *(step for group, pieces in leaving for step in _plan_dissolution(filling, group, pieces or ())),
        *_plan_port_steps(filling, filling.dialect.trunk, find_unready_ports(filling, difference, seen)),
        *_plan_additions(filling, difference, [group for group in groups if _has_remaining(group, going[id(group)])]),
    ]


def _find_leaving_pieces(
    filling: EdgeTemplates, group: PieceGroup, difference: EdgeDifference
) -> tuple[CircuitPiece, ...] | None:
    """Give what leaves a group with its attachments; None when it is left alone, nothing when it has none."""
    gone: tuple[Circuit | CircuitRemnant, ...] = (*difference.clear, *difference.remove)
    asked = [one for one in gone if _concerns_group(filling, group, one)]
    if not asked:
        return None
    places = [(filling.dialect.ports.canonical(one.port), one.vlan) for one in asked if one.port is not None]
    order = list(filling.dialect.unmake)
    leaving = (piece for piece in group.pieces if (piece.port, piece.vlan) in places)
    return tuple(sorted(leaving, key=lambda piece: order.index(piece.kind)))


def _concerns_group(filling: EdgeTemplates, group: PieceGroup, one: Circuit | CircuitRemnant) -> bool:
    if group.service != NO_SERVICE:
        return group.service == one.service
    place = (None if one.port is None else filling.dialect.ports.canonical(one.port), one.vlan)
    return place in {(piece.port, piece.vlan) for piece in group.attachments} or place == (None, group.vlan)


def _has_remaining(group: PieceGroup, leaving: tuple[CircuitPiece, ...] | None) -> bool:
    return leaving is None or bool(set(group.attachments) - set(leaving))


def _plan_detachment(filling: EdgeTemplates, group: PieceGroup, piece: CircuitPiece) -> ChangeStep:
    transport = filling.transport(group.service)
    alone = transport is None or transport.shared is None
    about = {f"vlan {piece.vlan}", f"leaving {group.domain}"} | ({f"domain {group.domain}"} if alone else set())
    return ChangeStep(frozenset(about), tuple(filling.unmade(piece, group.service)))


def _plan_dissolution(
    filling: EdgeTemplates, group: PieceGroup, leaving: tuple[CircuitPiece, ...]
) -> Iterator[ChangeStep]:
    """Take away what joined a group to its service, once no attachment is in it any more."""
    if _has_remaining(group, leaving):
        return
    about, needs = frozenset({f"domain {group.domain}"}), frozenset({f"leaving {group.domain}"})
    for kind in filling.dialect.unmake:
        for piece in (one for one in group.core if one.kind == kind and one not in leaving):
            yield ChangeStep(about, tuple(filling.unmade(piece, group.service)), needs)


def plan_preparations(filling: EdgeTemplates, difference: EdgeDifference, seen: EdgeReading) -> list[ChangeStep]:
    """Return the steps that set empty lists of allowed VLANs; they are read back before any other step."""
    return list(_plan_port_steps(filling, filling.dialect.prepare, find_unready_ports(filling, difference, seen)))


def find_unready_ports(filling: EdgeTemplates, difference: EdgeDifference, seen: EdgeReading) -> dict[str, PortName]:
    """Return the ports that are to get circuits and take none as they are, by the device's names for them."""
    ports = {filling.dialect.ports.canonical(one.port): one.port for one in difference.add}
    has_lists = bool(filling.dialect.prepare)
    return {canonical: port for canonical, port in ports.items() if has_lists and not seen.ports.get(canonical, False)}


def _plan_port_steps(filling: EdgeTemplates, template: Commands, ports: Mapping[str, PortName]) -> Iterator[ChangeStep]:
    for canonical, port in ports.items() if template else ():
        spelt = filling.dialect.ports.spelt(canonical)
        yield ChangeStep(frozenset({f"port {port}"}), tuple(line.format(port=spelt) for line in template))


def _plan_additions(
    filling: EdgeTemplates, difference: EdgeDifference, staying: list[PieceGroup]
) -> Iterator[ChangeStep]:
    joined = {group.service for group in staying if group.core}
    for circuit in difference.add:
        kinds = filling.kinds(circuit, joined=circuit.service in joined)
        joined.add(circuit.service)
        domain, vlan = f"domain {filling.domain(circuit)}", f"vlan {circuit.vlan}"
        for kind in kinds:
            about = frozenset({vlan if kind in filling.kinds(circuit, joined=True) else domain})
            yield ChangeStep(
                about, tuple(filling.made(kind, circuit)), frozenset({domain, vlan, f"port {circuit.port}"})
            )
