"""Juniper Junos (MX) as a VPLS edge, signalled by LDP (RFC 4762), and as an EVPN edge (VXLAN, RFC 8365).

A circuit is a unit on the port, in a routing instance whose name contains the service ID. A private candidate
configuration is committed completely or not at all. The backbone's administrators must have configured
``flexible-vlan-tagging`` and ``encapsulation flexible-ethernet-services`` on the port.

The instance of a single cluster has ``vlan-id none``, because other vendors' edges send frames without a tag in the
pseudowire. The instance that all clusters share has ``vlan-id all``: tags stay on frames, and addresses are learned for
each VLAN.

Sources: OESS for instances, units, ``no-tunnel-services``, the VNI and deletions; the guides "VLANs within Bridge
Domain and VPLS Environments" (MX) and "Configuring LDP Signaling for VPLS" for ``vlan-id``, ``vpls-id``, ``neighbor``
and ``encapsulation-type``. From memory, not checked on a device: ``vlan-id none`` together with ``vxlan vni``, and the
error messages.
"""

import re
from collections.abc import Sequence

from sbf_service.drivers.edge.edge_dialect import (
    ATTACHMENT,
    CircuitPiece,
    CircuitRecipe,
    EdgeDialect,
    EdgeReading,
    format_service_name,
    parse_service_name,
)
from sbf_service.drivers.switch.dialect import PortNames
from sbf_service.drivers.switch.show_output import parse_vlans, quote_first_line
from virtcloud.model.transport import TransportKind
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({})
INSTANCE, MEMBER = "instance", "member"
UNIT = "set interfaces {port} unit {vlan} "
IN = "set routing-instances {name} "
VPLS_UNIT = ("encapsulation vlan-vpls", "vlan-id {vlan}", "family vpls")
EVPN_UNIT = ("encapsulation vlan-bridge", "vlan-id {vlan}")
VPLS = (
    "protocols vpls no-tunnel-services",
    "protocols vpls encapsulation-type ethernet",
    "protocols vpls vpls-id {service}",
    "protocols vpls neighbor {peer}",
)
OWN_VPLS = ("instance-type vpls", "vlan-id none", *VPLS)
SHARED_VPLS = ("instance-type vpls", "vlan-id all", *VPLS)
EVPN = (
    "instance-type evpn",
    "vlan-id none",
    "vtep-source-interface lo0.0",
    "vxlan vni {service}",
    "route-distinguisher {rd}",
    "vrf-target target:{rt}",
    "protocols evpn encapsulation vxlan",
)
NUMBERED = re.compile(r"(?:protocols vpls vpls-id|vxlan vni) (\d+)")
STATEMENTS = re.compile(r"^(set|deactivate) (interfaces|routing-instances) (\S+)(?: (.+))?$", re.MULTILINE)

Statements = dict[str, set[str]]


def parse_answers(answers: Sequence[str], vlans: VlanSet) -> EdgeReading:
    """Parse the interfaces and the routing instances from ``set`` lines."""
    interfaces, instances = (_parse_statements(answer) for answer in answers)
    if not interfaces:
        raise ValueError(f"no interface in {quote_first_line(answers[0])!r}")
    pieces = [_parse_instance(name, lines) for name, lines in instances.items()]
    members = {unit: name for name, lines in instances.items() for unit in _find_arguments(lines, "interface ")}
    pieces += [_parse_member(unit, name) for unit, name in members.items()]
    for port, lines in interfaces.items():
        pieces += [
            _parse_unit(port, number, statements, vlans, members) for number, statements in _group_units(lines).items()
        ]
    down = frozenset(name for name, lines in interfaces.items() if _is_port_down(lines))
    return EdgeReading(tuple(pieces), dict.fromkeys(interfaces, True), down=down)


def _parse_statements(answer: str) -> Statements:
    """Return the statements of each interface or instance. A deactivated statement ends with ``inactive``."""
    statements = [line for line in answer.splitlines() if line.strip() and not line.startswith(("{", "[edit"))]
    if unknown := [line for line in statements if not STATEMENTS.match(line)]:
        raise ValueError(unknown[0])
    found: Statements = {}
    for verb, _, name, rest in STATEMENTS.findall(answer):
        found.setdefault(name, set()).add(rest if verb == "set" else f"{rest} inactive".strip())
    return found


def _find_arguments(lines: set[str], start: str) -> list[str]:
    return sorted(line.removeprefix(start) for line in lines if line.startswith(start))


def _group_units(lines: set[str]) -> Statements:
    found: Statements = {}
    for number, _, rest in (words.partition(" ") for words in _find_arguments(lines, "unit ")):
        found.setdefault(number, set()).add(rest)
    return found


def _parse_instance(name: str, lines: set[str]) -> CircuitPiece:
    number = next((int(found[1]) for line in sorted(lines) if (found := NUMBERED.match(line))), None)
    service = parse_service_name(name) if number is None else number
    by_sbf = service is not None and name == format_service_name(service) and not _is_deactivated(lines)
    return CircuitPiece(kind=INSTANCE, domain=name, service=service, body=frozenset(lines - {""}), by_sbf=by_sbf)


def _parse_member(unit: str, name: str) -> CircuitPiece:
    port, _, number = unit.rpartition(".")
    body = frozenset({f"interface {unit}"})
    return CircuitPiece(kind=MEMBER, domain=name, port=port, vlan=int(number) if number.isdigit() else None, body=body)


def _parse_unit(port: str, number: str, lines: set[str], vlans: VlanSet, members: dict[str, str]) -> CircuitPiece:
    service = parse_service_name(next(iter(_find_arguments(lines, "description ")), None))
    tags = _parse_tags(number, lines)
    single = list(tags) == [int(number)]
    domain = members.get(f"{port}.{number}")
    is_new = domain is None and not lines - {"", *(line.format(vlan=number) for line in (*VPLS_UNIT, *EVPN_UNIT))}
    return CircuitPiece(
        kind=ATTACHMENT,
        domain=domain or f"{port}.{number}",
        service=service,
        port=port,
        vlan=int(number) if single else next(iter(tags & vlans), None),
        body=frozenset(lines - {""}),
        by_sbf=single and (service is not None or is_new) and not _is_deactivated(lines),
    )


def _parse_tags(number: str, lines: set[str]) -> VlanSet:
    """Return the outer tags that a unit accepts.

    A unit without tags and address family is new: return its ``number``, if this is a VLAN ID.
    """
    single = [
        *_find_arguments(lines, "vlan-id "),
        *_find_arguments(lines, "vlan-id-range "),
        *_find_arguments(lines, "vlan-tags outer "),
    ]
    lists = [words.strip("[] ").replace(" ", ",") for words in _find_arguments(lines, "vlan-id-list ")]
    tags = [words.split()[0] for words in single if words[0].isdigit()] + lists
    if not tags:
        bare = (
            not _find_arguments(lines, "family ")
            and not _find_arguments(lines, "vlan-tags ")
            and int(number) in range(1, 4095)
        )
        return VlanSet([int(number)]) if bare else VlanSet()
    return VlanSet(vlan for words in tags for vlan in parse_vlans(words))


def _is_port_down(lines: set[str]) -> bool:
    """Return whether a port is disabled or deactivated. A deactivated ``disable`` has no effect."""
    return "inactive" in lines or ("disable" in lines and "disable inactive" not in lines)


def _is_deactivated(lines: set[str]) -> bool:
    return any(line.endswith("inactive") for line in lines)


def _build_recipe(instance: Sequence[str], unit: Sequence[str]) -> CircuitRecipe:
    make = {
        INSTANCE: tuple(IN + line for line in instance),
        ATTACHMENT: tuple(UNIT + line for line in ("description {name}", *unit)),
        MEMBER: (IN + "interface {port}.{vlan}",),
    }
    return CircuitRecipe(make, {INSTANCE: tuple(instance), ATTACHMENT: tuple(unit)})


DIALECT = EdgeDialect(
    title="Juniper Junos",
    netmiko="juniper_junos",
    recipes={
        (TransportKind.VPLS, False): _build_recipe(OWN_VPLS, VPLS_UNIT),
        (TransportKind.VPLS, True): _build_recipe(SHARED_VPLS, VPLS_UNIT),
        (TransportKind.EVPN, False): _build_recipe(EVPN, EVPN_UNIT),
    },
    show=("show configuration interfaces | display set", "show configuration routing-instances | display set"),
    see=parse_answers,
    domain=lambda circuit, _: format_service_name(circuit.service),
    unmake={
        MEMBER: ("delete routing-instances {domain} interface {port}.{vlan}",),
        ATTACHMENT: ("delete interfaces {port} unit {vlan}",),
        INSTANCE: ("delete routing-instances {domain}",),
    },
    configure=("configure private",),
    leave=("commit and-quit",),
    give_up=("rollback 0", "exit configuration-mode"),
    errors=re.compile(r"^(?:error|syntax error|unknown command|missing argument|invalid ).*", re.MULTILINE),
    busy=re.compile(r"configuration database locked"),
    answers={r"\[yes,no\] \((?:yes|no)\) *": "yes"},
    ports=PORTS,
)
