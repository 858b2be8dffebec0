"""Lab files: a topology and the pools of its sites as one YAML document, and checks whether the lab can build it."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from virtcloud.lab import openvswitch
from virtcloud.lab.addressing import RESERVED_NODES, RESERVED_PORTS
from virtcloud.lab.network import CoreWire, core_wires, is_fabric
from virtcloud.model.document import read_document
from virtcloud.model.element import Edge, Element, Hypervisor, Switch
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

INTERFACE_LENGTH = 15
IPV4 = 4
DEFAULT_LAB = "metacenter"
PLATFORMS = ("linux_bridge", openvswitch.PLATFORM)


class LabFile(Topology):
    """The description of a lab. Its names must also be valid names of Linux interfaces."""

    pools: dict[Name, VlanSet] = Field(default_factory=dict)
    lldp: bool = False
    """If true, elements announce themselves to their neighbours (LLDP). This needs two more processes (lldpd) on each
    element.
    """

    @property
    def topology(self) -> Topology:
        """The topology alone, without the settings of the lab."""
        return Topology.model_validate(self.model_dump(mode="json", exclude={"pools", "lldp"}))

    @property
    def hypervisors(self) -> frozenset[Hypervisor]:
        """Every hypervisor that a host of the lab uses."""
        return frozenset(kind for site in self.sites for host in site.hosts for kind in host.hypervisors)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        for fault in _find_lab_faults(self):
            raise fault
        return self


def _find_lab_faults(lab: LabFile) -> Iterator[BadInput]:
    """Yield the reasons why the lab cannot be built, each with its path in the document."""
    sites = {site.name for site in lab.sites}
    for name in lab.pools:
        if name not in sites:
            message = f"pools: expected sites of this topology ({', '.join(sorted(sites))}), got {name}"
            yield BadInput(message, ("pools", name))
    yield from _name_faults(lab)
    yield from _port_faults(lab)
    yield from _core_wire_faults(lab)


def _name_faults(lab: LabFile) -> Iterator[BadInput]:
    named = [(path, element.name) for path, element in _elements(lab)]
    named += [(("transports", index), one.name) for index, one in enumerate(lab.transports)]
    for path, name in named:
        if name in RESERVED_NODES:
            message = f"{name}: expected another name, because the lab itself has a node of this name"
            yield BadInput(message, (*path, "name"))


def _port_faults(lab: LabFile) -> Iterator[BadInput]:
    for path, element in _elements(lab):
        named = [(port, (*path, "ports", index)) for index, port in enumerate(element.ports)]
        named += [(one, (*path, "aggregates", port)) for port, ones in element.aggregates.items() for one in ones]
        for port, where in named:
            for fault in _interface_faults(port):
                yield BadInput(f"port {element.name}:{port}: {fault}", where)
        if isinstance(element, Switch) and element.platform not in PLATFORMS:
            expected = f"expected a platform that the lab builds ({', '.join(PLATFORMS)}), got {element.platform}"
            yield BadInput(f"switch {element.name}: {expected}", (*path, "platform"))


def _core_wire_faults(lab: LabFile) -> Iterator[BadInput]:
    """Yield faults of the links to the cores: invalid interface names, and edges that cannot be connected to a core."""
    used: set[tuple[str, str]] = set()
    places = [("sites", s, "attachments", a) for s, site in enumerate(lab.sites) for a in range(len(site.attachments))]
    for path, one in zip(places, core_wires(lab), strict=True):
        if len(lab.element(one.node).members(one.attachment.port.port)) > 1:
            yield BadInput(f"port {one.attachment.port}: expected one cable to the lab's core, got an aggregate", path)
        for fault in _interface_faults(one.core_port):
            yield BadInput(f"site {one.site.name} as port {one.core_port} of {one.transport.name}: {fault}", path)
        if (one.transport.name, one.core_port) in used:
            has = f"{one.transport.name} has a port {one.core_port} already"
            yield BadInput(f"expected another name of site {one.site.name}: {has}", path)
        used.add((one.transport.name, one.core_port))
        edge = lab.elements.get(one.attachment.port.element)
        if isinstance(edge, Edge):
            yield from (BadInput(f"edge {edge.name}: {fault}", path) for fault in _edge_faults(edge, one, used))
            used.add((edge.name, one.port))


def _edge_faults(edge: Edge, one: CoreWire, used: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the reasons why an edge cannot be connected to a core."""
    name = one.transport.name
    if one.transport.kind is TransportKind.VPLS:
        yield f"expected a transport of kind direct, qinq or evpn, got {name}: the lab's edges have no MPLS"
    elif is_fabric(one.transport):
        if edge.loopback is None or edge.loopback.version != IPV4:
            yield f"expected an IPv4 loopback, by which the other edges of {name} reach it, got {edge.loopback}"
    elif edge.core_port is None or edge.core_port in edge.ports:
        ports = ", ".join(edge.ports)
        yield f"expected a core_port beside {ports}, on which {name} is configured, got {edge.core_port}"
    for fault in _interface_faults(one.port):
        yield f"port {one.port}: {fault}"
    if (edge.name, one.port) in used:
        yield f"port {one.port}: expected one transport on it, got {name} as well"


def _interface_faults(port: str) -> Iterator[str]:
    if len(port) > INTERFACE_LENGTH or "/" in port or ":" in port:
        yield f"expected a Linux interface's name of at most {INTERFACE_LENGTH} characters without / and :"
    if port in RESERVED_PORTS:
        yield f"expected another name, because the lab itself uses {port}"


def _elements(lab: LabFile) -> Iterator[tuple[tuple[str | int, ...], Element]]:
    for s, site in enumerate(lab.sites):
        for kind in ("switches", "edges", "hosts", "gateways"):
            for index, element in enumerate(getattr(site, kind)):
                yield ("sites", s, kind, index), element


def read_lab_file(path: Path | None = None) -> LabFile:
    """Read a lab file by its path, or a lab file that virtcloud contains by its name.

    Without ``path``, read the default.

    Raise BadInput if there is no such file, and BadDocument with line and key if it is malformed.
    """
    path = path or Path(DEFAULT_LAB)
    if str(path) in shipped_labs() and not path.exists():
        return read_document(shipped_text(str(path)), f"{path}.yaml", LabFile)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(shipped_labs())
        message = f"lab file {path}: expected a readable file, got: {error}; virtcloud comes with: {known}"
        raise BadInput(message) from error
    return read_document(text, str(path), LabFile)


def shipped_labs() -> list[str]:
    """Return the names of the lab files that virtcloud contains."""
    folder = resources.files("virtcloud.lab").joinpath("topologies")
    return sorted(one.name.removesuffix(".yaml") for one in folder.iterdir())


def shipped_text(name: str) -> str:
    """Return the text of a lab file that virtcloud contains."""
    return resources.files("virtcloud.lab").joinpath("topologies", f"{name}.yaml").read_text(encoding="utf-8")
