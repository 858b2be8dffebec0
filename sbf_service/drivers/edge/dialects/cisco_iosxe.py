"""Cisco IOS-XE with Ethernet virtual connections (ASR 900, ASR 920, ASR 1000, ME 3600X).

A circuit consists of a service instance on the port, a bridge domain, and a connection to the backbone. With ``vpls``,
the connection is a VFI, signalled by LDP (RFC 4762). With ``qinq``, the connection is a service instance with the S-tag
on the core port. The number of the bridge domain is the VLAN ID, which belongs to one cluster at the site. All ports of
the edge share the numbers of bridge domains. VLAN 112 is in other use if bridge domain 112 contains a service instance,
VFI or ``BDI112`` that SBF did not create.

A *shared* VFI (``vpn_id``) carries all clusters of a transport. Its bridge domain has the VPN ID as number. The VPN ID
must therefore be at most 4094, and outside the site's pool.

In a shared VFI, the tag stays on the frames, and a service instance sends only frames with a tag that it also accepts
("Egress Filtering", ASR 920 Ethernet guide). So VLANs are separated, although they share a bridge domain and a MAC
table.

Sources: public configurations and a STIG check for ``l2 vfi … manual``; the ASR 920 and ME 3600X guides for service
instances, ``rewrite`` and the egress filter. From memory, not checked on a device: patterns in ``section``, service
instances up to 4000 on all models, ``no service instance`` with and without ``ethernet``, and the ethertype on the core
port (``dot1q tunneling ethertype``).
"""

from collections.abc import Iterator, Sequence

from sbf_service.drivers.edge.configuration_tree import (
    ROUTED,
    ConfigurationBlock,
    find_blocks,
    find_shut_ports,
    parse_outer_tags,
    parse_ports,
    parse_tree,
)
from sbf_service.drivers.edge.edge_dialect import (
    ATTACHMENT,
    CORE,
    CircuitPiece,
    CircuitRecipe,
    EdgeDialect,
    EdgeReading,
    parse_service_name,
)
from sbf_service.drivers.switch.dialect import PortNames
from sbf_service.drivers.switch.dialects.cisco_ios import ANSWERS, ERRORS, SAVED
from sbf_service.drivers.switch.dialects.cisco_ios import PORTS as IOS_PORTS
from virtcloud.model.edge import Circuit
from virtcloud.model.errors import Refused
from virtcloud.model.transport import Transport, TransportKind
from virtcloud.model.vlans import VlanSet

PORTS = PortNames({**IOS_PORTS.kinds, "BDI": (), "pseudowire": (), "Loopback": ()})
VFI = "vfi"
VFI_LINES = ("vpn id {service}", "bridge-domain {domain}", "neighbor {peer} encapsulation mpls")
MAKE_VFI = ("l2 vfi {name} manual", *VFI_LINES, "exit")
OWN = ("encapsulation dot1q {vlan}", "rewrite ingress tag pop 1 symmetric", "bridge-domain {domain}")
SHARED = ("encapsulation dot1q {vlan}", "bridge-domain {domain}")
S_TAG = ("encapsulation dot1q {service}", "rewrite ingress tag pop 1 symmetric", "bridge-domain {domain}")
ON_PORT = ("interface {port}", "service instance {vlan} ethernet", "description {name}")
ON_CORE = ("interface {core}", "service instance {service} ethernet", "description {name}")
DONE = ("exit", "exit")


def parse_answers(answers: Sequence[str], vlans: VlanSet) -> EdgeReading:
    """Parse the VFIs, and the interfaces with their service instances."""
    (text,) = answers
    blocks = parse_tree(text)
    ports = parse_ports(blocks, PORTS, text)
    pieces = [_parse_vfi(words, block) for words, block in find_blocks(blocks, "l2 vfi ")]
    for port, block in ports.items():
        if port.startswith("BDI"):
            domain_number = port.removeprefix("BDI")
            pieces.append(CircuitPiece(kind=ROUTED, domain=domain_number, port=port, body=block.lines, by_sbf=False))
        pieces += _parse_service_instances(port, block, vlans)
    return EdgeReading(tuple(pieces), dict.fromkeys(ports, True), down=find_shut_ports(ports))


def domain(circuit: Circuit, transport: Transport) -> str:
    """Return the number of the bridge domain: the VLAN ID, or the VPN ID of a shared VFI.

    Raise Refused if the VPN ID of a shared VFI is higher than 4094.
    """
    if transport.shared is None:
        return str(circuit.vlan)
    if transport.shared > circuit.vlan.highest:
        raise Refused(f"transport {transport.name}: expected a vpn_id up to 4094 for IOS-XE, got {transport.shared}")
    return str(transport.shared)


def _parse_vfi(words: str, block: ConfigurationBlock) -> CircuitPiece:
    name, _, how = words.partition(" ")
    number = int(block.after("vpn id ") or 0) or parse_service_name(name)
    by_sbf = how == "manual" and number is not None and parse_service_name(name) == number
    body = frozenset({block.head, *block.lines})
    return CircuitPiece(
        kind=VFI, domain=block.after("bridge-domain ") or name, service=number, body=body, by_sbf=by_sbf
    )


def _parse_service_instances(port: str, block: ConfigurationBlock, vlans: VlanSet) -> Iterator[CircuitPiece]:
    for words, instance in block.below("service instance "):
        number = words.partition(" ")[0]
        service = parse_service_name(instance.after("description "))
        tags = parse_outer_tags(instance, number)
        single = len(tags) == 1 and str(*tags) == number
        yield CircuitPiece(
            kind=ATTACHMENT,
            domain=next(iter((instance.after("bridge-domain ") or "").split()), f"{port} {number}"),
            service=service,
            port=port,
            vlan=next(iter(tags & vlans), None) if not single else int(number),
            body=instance.lines,
            by_sbf=single and (service is not None or _is_empty(instance)),
        )


def _is_empty(instance: ConfigurationBlock) -> bool:
    """Return whether an interrupted creation left a service instance without bridge domain and cross-connect."""
    return instance.after("bridge-domain") is None and instance.after("xconnect") is None


DIALECT = EdgeDialect(
    title="Cisco IOS-XE",
    netmiko="cisco_xe",
    recipes={
        (TransportKind.VPLS, False): CircuitRecipe(
            {VFI: MAKE_VFI, ATTACHMENT: (*ON_PORT, *OWN, *DONE)}, {VFI: VFI_LINES, ATTACHMENT: OWN}
        ),
        (TransportKind.VPLS, True): CircuitRecipe(
            {VFI: MAKE_VFI, ATTACHMENT: (*ON_PORT, *SHARED, *DONE)}, {VFI: VFI_LINES, ATTACHMENT: SHARED}
        ),
        (TransportKind.QINQ, False): CircuitRecipe(
            {CORE: (*ON_CORE, *S_TAG, *DONE), ATTACHMENT: (*ON_PORT, *OWN, *DONE)}, {CORE: S_TAG, ATTACHMENT: OWN}
        ),
    },
    show=("show running-config | section ^l2 vfi|^interface",),
    instead={"show running-config | section ^l2 vfi|^interface": ("show running-config",)},
    see=parse_answers,
    domain=domain,
    unmake={
        ATTACHMENT: ("interface {port}", "no service instance {vlan} ethernet", "exit"),
        CORE: ("interface {core}", "no service instance {service} ethernet", "exit"),
        VFI: ("no l2 vfi {name} manual",),
    },
    save=("write memory",),
    saved=SAVED,
    errors=ERRORS,
    answers=ANSWERS,
    ports=PORTS,
    numbered_domains=True,
    reserved=VlanSet([1, *range(4001, 4095)]),
    privileged=True,
)
