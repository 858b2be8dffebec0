"""Reads lab files, and checks whether the described lab can be built.

A lab file is a YAML document that contains a topology and the pools of its sites.
"""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from virtcloud.lab import openvswitch
from virtcloud.lab.addressing import RESERVED_NODES, RESERVED_PORTS
from virtcloud.lab.network import CoreWire, core_wires, is_fabric
from virtcloud.model.element import Edge, Element, Hypervisor, Switch
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Topology
from virtcloud.model.transport import TransportKind
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet
from virtcloud.model.yaml_document import read_document

INTERFACE_LENGTH = 15
IPV4 = 4
DEFAULT_LAB = "metacenter"
PLATFORMS = ("linux_bridge", openvswitch.PLATFORM)


class LabFile(Topology):
    """The description of a lab.

    The names of ports must also be valid names of Linux interfaces. The lab reserves some names of ports, elements and
    transports.
    """

    pools: dict[Name, VlanSet] = Field(default_factory=dict)
    lldp: bool = False
    """Whether elements announce themselves to their neighbours (LLDP). LLDP needs two more processes (lldpd) on each
    element."""

    images: tuple[Literal["debian", "debian-cloud"], ...] = ()
    """Images that the lab creates besides its busybox images. The first lab on a machine builds these images from
    Debian's packages."""

    @property
    def topology(self) -> Topology:
        """The topology without the other settings of the lab file."""
        return Topology.model_validate(self.model_dump(mode="json", exclude={"pools", "lldp", "images"}))

    @property
    def hypervisors(self) -> frozenset[Hypervisor]:
        """Every hypervisor that a host of the lab uses."""
        return frozenset(kind for site in self.sites for host in site.hosts for kind in host.hypervisors)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        for error in _find_errors(self):
            raise error
        return self


def _find_errors(lab: LabFile) -> Iterator[BadInput]:
    sites = {site.name for site in lab.sites}
    for name in lab.pools:
        if name not in sites:
            message = f"pools: expected sites of this topology ({', '.join(sorted(sites))}), got {name}"
            yield BadInput(message, ("pools", name))
    yield from _name_errors(lab)
    yield from _port_errors(lab)
    yield from _core_wire_errors(lab)


def _name_errors(lab: LabFile) -> Iterator[BadInput]:
    names = [(path, element.name) for path, element in _elements(lab)]
    names += [(("transports", index), transport.name) for index, transport in enumerate(lab.transports)]
    for path, name in names:
        if name in RESERVED_NODES:
            message = f"{name}: expected another name, because the lab uses this name for another node"
            yield BadInput(message, (*path, "name"))


def _port_errors(lab: LabFile) -> Iterator[BadInput]:
    for path, element in _elements(lab):
        ports = [(port, (*path, "ports", index)) for index, port in enumerate(element.ports)]
        ports += [
            (member, (*path, "aggregates", port)) for port, members in element.aggregates.items() for member in members
        ]
        for port, port_path in ports:
            for error in _describe_interface_errors(port):
                yield BadInput(f"port {element.name}:{port}: {error}", port_path)
        if isinstance(element, Switch) and element.platform not in PLATFORMS:
            expected = f"expected a platform that the lab builds ({', '.join(PLATFORMS)}), got {element.platform}"
            yield BadInput(f"switch {element.name}: {expected}", (*path, "platform"))


def _core_wire_errors(lab: LabFile) -> Iterator[BadInput]:
    used: set[tuple[str, str]] = set()
    paths = [("sites", s, "attachments", a) for s, site in enumerate(lab.sites) for a in range(len(site.attachments))]
    for path, wire in zip(paths, core_wires(lab), strict=True):
        if len(lab.element(wire.node).members(wire.attachment.port.port)) > 1:
            yield BadInput(f"port {wire.attachment.port}: expected one cable to the lab's core, got an aggregate", path)
        for error in _describe_interface_errors(wire.core_port):
            expected = f"the lab names a port of the core of {wire.transport.name} after the site, {wire.core_port}"
            yield BadInput(f"site {wire.site.name}: {expected}: {error}", path)
        if (wire.transport.name, wire.core_port) in used:
            reason = f"transport {wire.transport.name} already has a port {wire.core_port}"
            yield BadInput(f"site {wire.site.name}: expected another name, because {reason}", path)
        used.add((wire.transport.name, wire.core_port))
        edge = lab.elements.get(wire.attachment.port.element)
        if isinstance(edge, Edge):
            yield from (
                BadInput(f"edge {edge.name}: {error}", path) for error in _describe_edge_errors(edge, wire, used)
            )
            used.add((edge.name, wire.port))


def _describe_edge_errors(edge: Edge, wire: CoreWire, used: set[tuple[str, str]]) -> Iterator[str]:
    name = wire.transport.name
    if wire.transport.kind is TransportKind.VPLS:
        yield f"expected a transport of kind direct, qinq or evpn, got {name}: the lab's edges have no MPLS"
    elif is_fabric(wire.transport):
        if edge.loopback is None or edge.loopback.version != IPV4:
            yield f"expected an IPv4 loopback, to which the other edges of {name} connect, got {edge.loopback}"
    elif edge.core_port is None or edge.core_port in edge.ports:
        ports = ", ".join(edge.ports)
        yield f"expected a core_port for {name} that is not one of the ports {ports}, got {edge.core_port}"
    for error in _describe_interface_errors(wire.port):
        yield f"port {wire.port}: {error}"
    if (edge.name, wire.port) in used:
        yield f"port {wire.port}: expected one transport, got {name} as a second transport"


def _describe_interface_errors(port: str) -> Iterator[str]:
    if len(port) > INTERFACE_LENGTH or "/" in port or ":" in port:
        yield (
            f"expected a name of a Linux interface, with at most {INTERFACE_LENGTH} characters and neither '/' nor ':'"
        )
    if port in RESERVED_PORTS:
        yield f"expected another name, because the lab uses the interface {port}"


def _elements(lab: LabFile) -> Iterator[tuple[tuple[str | int, ...], Element]]:
    for site_index, site in enumerate(lab.sites):
        for kind in ("switches", "edges", "hosts", "gateways"):
            for index, element in enumerate(getattr(site, kind)):
                yield ("sites", site_index, kind, index), element


def read_lab_file(path: Path | None = None) -> LabFile:
    """Read a lab file.

    If the file ``path`` does not exist, ``path`` can be the name of a lab file that virtcloud contains. The default is
    ``metacenter``. Raise BadInput if there is no such file. Raise BadDocument with line and key if the file is
    malformed.
    """
    path = path or Path(DEFAULT_LAB)
    if str(path) in shipped_labs() and not path.is_file():
        return read_document(shipped_text(str(path)), f"{path}.yaml", LabFile)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(shipped_labs())
        message = f"lab file {path}: expected a readable file, got: {error}; virtcloud contains the lab files {known}"
        raise BadInput(message) from error
    return read_document(text, str(path), LabFile)


def shipped_labs() -> list[str]:
    """Return the names of the lab files that virtcloud contains."""
    folder = resources.files("virtcloud.lab").joinpath("topologies")
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir())


def shipped_text(name: str) -> str:
    """Return the text of a lab file that virtcloud contains."""
    return resources.files("virtcloud.lab").joinpath("topologies", f"{name}.yaml").read_text(encoding="utf-8")
