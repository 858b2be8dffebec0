"""Cisco IOS-XR (ASR 9000, NCS) as a VPLS edge, signalled by LDP (RFC 4762).

A circuit consists of an ``l2transport`` subinterface, a bridge domain in a separate bridge group, and a VFI in the
bridge domain. A commit applies all lines or no line, and survives a restart.

In a VFI that all clusters of a transport share (``vpn_id``), frames keep their VLAN tags. Each subinterface filters the
frames that it sends: otherwise a frame of one VLAN would leave through all subinterfaces.

Sources: the ASR 9000 command reference for ``ethernet egress-filter strict``; published configurations for
subinterfaces, bridge domains, VFIs with ``neighbor … pw-id``, and ``root``. From memory, not checked on a device: the
command ``no l2vpn bridge group``, the message of a failed commit, and the device's question if another user has
committed during SBF's change.
"""

import re
from collections.abc import Iterator, Sequence

from sbf_service.drivers.edge.configuration_tree import (
    ConfigurationBlock,
    find_blocks,
    find_shut_ports,
    parse_outer_tags,
    parse_ports,
    parse_tree,
)
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
from virtcloud.model.transport import TransportKind
from virtcloud.model.vlans import VlanSet

PORTS = PortNames(
    {
        "GigabitEthernet": (),
        "TenGigE": ("TenGigabitEthernet",),
        "TwentyFiveGigE": (),
        "FortyGigE": (),
        "HundredGigE": (),
        "FourHundredGigE": (),
        "Bundle-Ether": ("BE",),
        "MgmtEth": (),
        "Loopback": (),
        "BVI": (),
    }
)
DOMAIN, MEMBER = "bridge domain", "member"
IN_DOMAIN = "l2vpn bridge group {domain} bridge-domain {domain}"
POP = "rewrite ingress tag pop 1 symmetric"
FILTER = "ethernet egress-filter strict"
TAG = "encapsulation dot1q {vlan}"
SUBINTERFACE = ("interface {port}.{vlan} l2transport", "description {name}", TAG)
VFI = ("vfi {name}", "vpn-id {service}", "neighbor {peer} pw-id {service}")
MAKE_DOMAIN = (
    f"{IN_DOMAIN} vfi {{name}} vpn-id {{service}}",
    f"{IN_DOMAIN} vfi {{name}} neighbor {{peer}} pw-id {{service}}",
    "root",
)
JOIN = (f"{IN_DOMAIN} interface {{port}}.{{vlan}}", "root")
OTHER_USE = ("routed ", "evi ", "neighbor ", "vni ")


def parse_answers(answers: Sequence[str], vlans: VlanSet) -> EdgeReading:
    """Parse the interfaces and the members of bridge domains."""
    interfaces, l2vpn = answers
    found = parse_ports(parse_tree(interfaces), PORTS, interfaces)
    domains = list(_find_domains(parse_tree(l2vpn)))
    members = {piece.port: piece for domain, block in domains for piece in _parse_members(domain, block)}
    pieces = [_parse_domain(domain, block) for domain, block in domains]
    pieces += [_split_member(piece) for piece in members.values()]
    for name, block in found.items():
        if "." in name:
            pieces.append(_parse_subinterface(name, block, vlans, members.get(name)))
    return EdgeReading(tuple(pieces), {name: True for name in found if "." not in name}, down=find_shut_ports(found))


def _find_domains(blocks: list[ConfigurationBlock]) -> Iterator[tuple[str, ConfigurationBlock]]:
    """Yield the bridge domains, each with its name. A bridge domain of SBF has the name of its bridge group."""
    for _, l2vpn in find_blocks(blocks, "l2vpn"):
        for group, inner in l2vpn.below("bridge group "):
            for name, block in inner.below("bridge-domain "):
                yield name if name == group else f"{group}/{name}", block


def _parse_domain(domain: str, block: ConfigurationBlock) -> CircuitPiece:
    vfis = list(block.below("vfi "))
    lines = block.lines | {line for _, vfi in vfis for line in vfi.lines}
    number = next((vfi.after("vpn-id ") for _, vfi in vfis), None)
    service = int(number) if number else parse_service_name(domain)
    by_sbf = service is not None and domain == format_service_name(service) and all(name == domain for name, _ in vfis)
    by_sbf = by_sbf and not any(line.startswith(OTHER_USE) for line in block.lines)
    return CircuitPiece(kind=DOMAIN, domain=domain, service=service, body=lines, by_sbf=by_sbf)


def _parse_members(domain: str, block: ConfigurationBlock) -> Iterator[CircuitPiece]:
    for words, _ in block.below("interface "):
        name = PORTS.canonical(words.split()[0])
        yield CircuitPiece(kind=MEMBER, domain=domain, port=name, body=frozenset({f"interface {name}"}))


def _split_member(piece: CircuitPiece) -> CircuitPiece:
    """Return a bridge domain's member with its subinterface split into port and VLAN.

    SBF creates only subinterfaces, so any other member is an attachment with ``by_sbf=False``.
    """
    port, _, number = (piece.port or "").rpartition(".")
    is_subinterface = bool(port) and number.isdigit()
    return CircuitPiece(
        kind=MEMBER if is_subinterface else ATTACHMENT,
        domain=piece.domain,
        port=port if is_subinterface else piece.port,
        vlan=int(number) if is_subinterface else None,
        body=piece.body,
        by_sbf=is_subinterface,
    )


def _parse_subinterface(
    name: str, block: ConfigurationBlock, vlans: VlanSet, member: CircuitPiece | None
) -> CircuitPiece:
    port, _, number = name.rpartition(".")
    service = parse_service_name(block.after("description "))
    tags = parse_outer_tags(block, number)
    single = list(tags) == [int(number)] and block.after("ipv4 ") is None
    alone = member is None and service is None and not block.lines - {TAG.format(vlan=number)}
    return CircuitPiece(
        kind=ATTACHMENT,
        domain=name if member is None else member.domain,
        service=service,
        port=port,
        vlan=int(number) if single else next(iter(tags & vlans), None),
        body=frozenset({block.head, *block.lines}),
        by_sbf=single and (service is not None or alone) and block.head.endswith("l2transport"),
    )


DIALECT = EdgeDialect(
    title="Cisco IOS-XR",
    netmiko="cisco_xr",
    recipes={
        (TransportKind.VPLS, False): CircuitRecipe(
            {DOMAIN: MAKE_DOMAIN, ATTACHMENT: (*SUBINTERFACE, POP, "root"), MEMBER: JOIN},
            {DOMAIN: VFI, ATTACHMENT: (TAG, POP)},
        ),
        (TransportKind.VPLS, True): CircuitRecipe(
            {DOMAIN: MAKE_DOMAIN, ATTACHMENT: (*SUBINTERFACE, FILTER, "root"), MEMBER: JOIN},
            {DOMAIN: VFI, ATTACHMENT: (TAG, FILTER)},
        ),
    },
    show=("show running-config interface", "show running-config l2vpn"),
    see=parse_answers,
    domain=lambda circuit, _: format_service_name(circuit.service),
    unmake={
        MEMBER: (f"no {IN_DOMAIN} interface {{port}}.{{vlan}}",),
        ATTACHMENT: ("no interface {port}.{vlan}",),
        DOMAIN: ("no l2vpn bridge group {domain}",),
    },
    leave=("commit", "end"),
    give_up=("abort",),
    errors=re.compile(r"^\s*%(?! ?No such configuration).*", re.MULTILINE),
    answers={r"anyway\? \[no\]: *": "yes", r"\(yes/no/cancel\)\? \[cancel\]: *": "no"},
    ports=PORTS,
)
