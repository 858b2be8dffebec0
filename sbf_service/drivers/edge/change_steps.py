"""The steps of a difference on a provider edge, in the order of their application. Pure.

The first steps remove attachments. The next steps remove what joined these attachments to a service. Only then do
steps create anything, the attachment of each circuit last. So two clusters are never in one bridge domain, and a port
is never in an incomplete bridge domain.
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
    """Configuration lines that belong together.

    ``about``: what becomes unusable if the device refuses one of the lines. Each item of ``about`` and ``needs`` is a
    domain, a VLAN or a port. A step is skipped if any item of its ``needs`` is unusable: a VLAN that could not be
    removed from a domain must not be assigned to another cluster.
    """

    about: frozenset[str]
    lines: tuple[str, ...]
    needs: frozenset[str] = frozenset()

    @property
    def vlans(self) -> VlanSet:
        """The VLAN IDs that the step names; empty for a step that names no VLAN."""
        numbers = (one.removeprefix("vlan ") for one in self.about | self.needs if one.startswith("vlan "))
        return VlanSet(int(number) for number in numbers if number.isdecimal())


def plan_steps(templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading) -> list[ChangeStep]:
    """Return the steps that follow those of :func:`plan_preparations`.

    The commands that enter and leave the configuration mode are not included.
    """
    groups = group_pieces(reading)
    going = {id(group): _find_leaving_pieces(templates, group, difference) for group in groups}
    leaving = [(group, going[id(group)]) for group in groups if going[id(group)] is not None]
    return [
        *(_plan_detachment(templates, group, piece) for group, pieces in leaving for piece in pieces or ()),
        *(step for group, pieces in leaving for step in _plan_dissolution(templates, group, pieces or ())),
        *_plan_port_steps(templates, templates.dialect.trunk, find_unready_ports(templates, difference, reading)),
        *_plan_additions(templates, difference, [group for group in groups if _has_remaining(group, going[id(group)])]),
    ]


def _find_leaving_pieces(
    templates: EdgeTemplates, group: PieceGroup, difference: EdgeDifference
) -> tuple[CircuitPiece, ...] | None:
    """Return the pieces that a difference removes from a group with its attachments; None for an unchanged group."""
    gone: tuple[Circuit | CircuitRemnant, ...] = (*difference.clear, *difference.remove)
    concerned = [one for one in gone if _concerns_group(templates, group, one)]
    if not concerned:
        return None
    places = [(templates.dialect.ports.canonical(one.port), one.vlan) for one in concerned if one.port is not None]
    order = list(templates.dialect.unmake)
    leaving = (piece for piece in group.pieces if (piece.port, piece.vlan) in places)
    return tuple(sorted(leaving, key=lambda piece: order.index(piece.kind)))


def _concerns_group(templates: EdgeTemplates, group: PieceGroup, one: Circuit | CircuitRemnant) -> bool:
    if group.service != NO_SERVICE:
        return group.service == one.service
    place = (None if one.port is None else templates.dialect.ports.canonical(one.port), one.vlan)
    return place in {(piece.port, piece.vlan) for piece in group.attachments} or place == (None, group.vlan)


def _has_remaining(group: PieceGroup, leaving: tuple[CircuitPiece, ...] | None) -> bool:
    return leaving is None or bool(set(group.attachments) - set(leaving))


def _plan_detachment(templates: EdgeTemplates, group: PieceGroup, piece: CircuitPiece) -> ChangeStep:
    transport = templates.transport(group.service)
    alone = transport is None or transport.shared is None
    about = {f"vlan {piece.vlan}", f"leaving {group.domain}"} | ({f"domain {group.domain}"} if alone else set())
    return ChangeStep(frozenset(about), tuple(templates.render_removal(piece, group.service)))


def _plan_dissolution(
    templates: EdgeTemplates, group: PieceGroup, leaving: tuple[CircuitPiece, ...]
) -> Iterator[ChangeStep]:
    """Yield the steps that remove what joined a group to its service, if no attachment remains."""
    if _has_remaining(group, leaving):
        return
    about, needs = frozenset({f"domain {group.domain}"}), frozenset({f"leaving {group.domain}"})
    for kind in templates.dialect.unmake:
        for piece in (one for one in group.core if one.kind == kind and one not in leaving):
            yield ChangeStep(about, tuple(templates.render_removal(piece, group.service)), needs)


def plan_preparations(templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading) -> list[ChangeStep]:
    """Return the steps that set empty lists of allowed VLANs; the lists are read back before any other step."""
    return list(
        _plan_port_steps(templates, templates.dialect.prepare, find_unready_ports(templates, difference, reading))
    )


def find_unready_ports(
    templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading
) -> dict[str, PortName]:
    """Return the ports that the difference adds circuits to and that accept no circuit yet, by canonical name."""
    ports = {templates.dialect.ports.canonical(one.port): one.port for one in difference.add}
    has_lists = bool(templates.dialect.prepare)
    return {
        canonical: port for canonical, port in ports.items() if has_lists and not reading.ports.get(canonical, False)
    }


def _plan_port_steps(
    templates: EdgeTemplates, template: Commands, ports: Mapping[str, PortName]
) -> Iterator[ChangeStep]:
    for canonical, port in ports.items() if template else ():
        spelt = templates.dialect.ports.spelt(canonical)
        yield ChangeStep(frozenset({f"port {port}"}), tuple(line.format(port=spelt) for line in template))


def _plan_additions(
    templates: EdgeTemplates, difference: EdgeDifference, staying: list[PieceGroup]
) -> Iterator[ChangeStep]:
    joined = {group.service for group in staying if group.core}
    for circuit in difference.add:
        kinds = templates.kinds(circuit, joined=circuit.service in joined)
        joined.add(circuit.service)
        domain, vlan = f"domain {templates.domain(circuit)}", f"vlan {circuit.vlan}"
        for kind in kinds:
            about = frozenset({vlan if kind in templates.kinds(circuit, joined=True) else domain})
            yield ChangeStep(
                about,
                tuple(templates.render_creation(kind, circuit)),
                frozenset({domain, vlan, f"port {circuit.port}"}),
            )
