"""The steps that apply a difference to a provider edge, in order. Pure.

A circuit consists of pieces, such as its attachment (the VLAN on the port); see ``edge_dialect.py``. The first steps
remove the pieces of one VLAN on one port, such as attachments. The next steps remove the other pieces of bridge domains
without an attachment. Later steps create pieces, and connect each port to its bridge domain last. Therefore, a port is
never in an incomplete bridge domain, and two clusters are never in one bridge domain, unless all clusters of the
transport share it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sbf_service.drivers.device_errors import FOREIGN_SERVICE_REMEDY, ChangeFault, quote_start
from sbf_service.drivers.edge.edge_dialect import CircuitPiece, EdgeReading
from sbf_service.drivers.edge.edge_templates import EdgeTemplates
from sbf_service.drivers.edge.observed_circuits import PieceGroup, find_foreign_domains, group_pieces
from sbf_service.drivers.switch.dialect import Commands
from virtcloud.model.edge import NO_SERVICE, Circuit, CircuitRemnant, EdgeDifference
from virtcloud.model.errors import Refused
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


@dataclass(frozen=True, slots=True)
class ChangeStep:
    """Configuration lines that belong together.

    ``about`` and ``needs`` name objects, such as ``"vlan 112"`` or ``"domain vc-112"``. If the device refuses a line,
    the objects in ``about`` become unusable, and the driver skips every later step whose ``needs`` contains an unusable
    object.
    """

    about: frozenset[str]
    lines: tuple[str, ...]
    needs: frozenset[str] = frozenset()

    @property
    def vlans(self) -> VlanSet:
        """The VLAN IDs that the step names."""
        vlans = (item.removeprefix("vlan ") for item in self.about | self.needs if item.startswith("vlan "))
        return VlanSet(int(vlan) for vlan in vlans if vlan.isdecimal())


def separate_refused(
    templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading
) -> tuple[EdgeDifference, tuple[ChangeFault, ...]]:
    """Return the difference without the new circuits that SBF cannot create, and a fault for each of these circuits.

    The platform may not support a circuit, or the circuit's bridge domain may be in other use.
    """
    possible, faults = list[Circuit](), list[ChangeFault]()
    foreign = find_foreign_domains(templates, reading)
    for circuit in difference.add:
        try:
            _check_creation(templates, circuit, foreign)
        except Refused as error:
            text = str(error).removeprefix(f"edge {templates.edge.name}: ")
            faults.append(ChangeFault(text, VlanSet([circuit.vlan])))
        else:
            possible.append(circuit)
    return difference.model_copy(update={"add": tuple(possible)}), tuple(faults)


def _check_creation(templates: EdgeTemplates, circuit: Circuit, foreign: Mapping[str, PieceGroup]) -> None:
    if group := foreign.get(templates.domain(circuit)):
        expected = f"expected no other use of bridge domain {group.domain}"
        raise Refused(f"{expected}, found {quote_start(str(group.pieces[0]))}: {FOREIGN_SERVICE_REMEDY}")
    for kind in templates.kinds(circuit):
        templates.render_creation(kind, circuit)


def plan_steps(templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading) -> list[ChangeStep]:
    """Return the steps that apply a difference.

    The steps follow the steps of :func:`plan_preparations`, and do not change the configuration mode. Raise Refused for
    a circuit that the platform cannot create (:func:`separate_refused`).
    """
    groups = [(group, _find_removed_pieces(templates, group, difference)) for group in group_pieces(reading)]
    changed = [(group, pieces) for group, pieces in groups if pieces is not None]
    return [
        *(_plan_detachment(templates, group, piece) for group, pieces in changed for piece in pieces),
        *(step for group, pieces in changed for step in _plan_dissolution(templates, group, pieces)),
        *_plan_port_steps(templates, templates.dialect.trunk, find_unready_ports(templates, difference, reading)),
        *_plan_additions(templates, difference, [group for group, pieces in groups if _has_remaining(group, pieces)]),
    ]


def _find_removed_pieces(
    templates: EdgeTemplates, group: PieceGroup, difference: EdgeDifference
) -> tuple[CircuitPiece, ...] | None:
    """Return the pieces that a difference removes from a group.

    Return None if the difference removes no circuit of the group.
    """
    circuits: tuple[Circuit | CircuitRemnant, ...] = (*difference.clear, *difference.remove)
    in_group = [circuit for circuit in circuits if _is_in_group(templates, group, circuit)]
    if not in_group:
        return None
    canonical = templates.dialect.ports.canonical
    places = [(canonical(circuit.port), circuit.vlan) for circuit in in_group if circuit.port is not None]
    order = list(templates.dialect.unmake)
    removed = (piece for piece in group.pieces if (piece.port, piece.vlan) in places)
    return tuple(sorted(removed, key=lambda piece: order.index(piece.kind)))


def _is_in_group(templates: EdgeTemplates, group: PieceGroup, circuit: Circuit | CircuitRemnant) -> bool:
    if group.service != NO_SERVICE:
        return group.service == circuit.service
    place = (None if circuit.port is None else templates.dialect.ports.canonical(circuit.port), circuit.vlan)
    return place in {(piece.port, piece.vlan) for piece in group.attachments} or place == (None, group.vlan)


def _has_remaining(group: PieceGroup, removed: tuple[CircuitPiece, ...] | None) -> bool:
    return removed is None or bool(set(group.attachments) - set(removed))


def _plan_detachment(templates: EdgeTemplates, group: PieceGroup, piece: CircuitPiece) -> ChangeStep:
    transport = templates.transport(group.service)
    is_exclusive = transport is None or transport.shared is None
    about = {f"vlan {piece.vlan}", f"leaving {group.domain}"} | ({f"domain {group.domain}"} if is_exclusive else set())
    return ChangeStep(frozenset(about), tuple(templates.render_removal(piece, group.service)))


def _plan_dissolution(
    templates: EdgeTemplates, group: PieceGroup, removed: tuple[CircuitPiece, ...]
) -> Iterator[ChangeStep]:
    """Yield the steps that remove a group's pieces, except attachments and the pieces in ``removed``.

    Yield no step while an attachment of the group remains.
    """
    if _has_remaining(group, removed):
        return
    about, needs = frozenset({f"domain {group.domain}"}), frozenset({f"leaving {group.domain}"})
    for kind in templates.dialect.unmake:
        for piece in (item for item in group.core if item.kind == kind and item not in removed):
            yield ChangeStep(about, tuple(templates.render_removal(piece, group.service)), needs)


def plan_preparations(templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading) -> list[ChangeStep]:
    """Return the steps that set an empty list of allowed VLANs on each port of :func:`find_unready_ports`.

    The driver reads these lists back before the steps of :func:`plan_steps`.
    """
    return list(
        _plan_port_steps(templates, templates.dialect.prepare, find_unready_ports(templates, difference, reading))
    )


def find_unready_ports(
    templates: EdgeTemplates, difference: EdgeDifference, reading: EdgeReading
) -> dict[str, PortName]:
    """Return each port of a new circuit, if the port does not accept circuits yet.

    The keys are canonical names. The result is empty if the dialect has no ``prepare``.
    """
    ports = {templates.dialect.ports.canonical(circuit.port): circuit.port for circuit in difference.add}
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
    templates: EdgeTemplates, difference: EdgeDifference, remaining: list[PieceGroup]
) -> Iterator[ChangeStep]:
    joined = {group.service for group in remaining if group.core}
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
