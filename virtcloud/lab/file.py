"""A lab file: a topology and the pools of its sites, as one YAML document."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from virtcloud.lab.names import RESERVED_NODES, RESERVED_PORTS
from virtcloud.lab.network import attachments
from virtcloud.model.documents import read_document
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Element, Hypervisor, Topology
from virtcloud.model.values import Name
from virtcloud.model.vlans import VlanSet

INTERFACE_LENGTH = 15
DEFAULT = "metacenter.yaml"


class LabFile(Topology):
    """What ``virtcloud lab up`` builds. Beside what a topology asks for, names must suit Linux interfaces."""

    pools: dict[Name, VlanSet] = Field(default_factory=dict)

    @property
    def topology(self) -> Topology:
        """The topology without the pools."""
        return Topology.model_validate(self.model_dump(mode="json", exclude={"pools"}))

    @property
    def hypervisors(self) -> frozenset[Hypervisor]:
        """Every kind of hypervisor that any host runs."""
        return frozenset(kind for site in self.sites for host in site.hosts for kind in host.hypervisors)

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        for fault in _faults(self):
            raise fault
        return self


def _faults(lab: LabFile) -> Iterator[BadInput]:
    """Give what keeps this lab from being built, each with where it stands."""
    sites = {site.name for site in lab.sites}
    for name in lab.pools:
        if name not in sites:
            message = f"pools: expected sites of this topology ({', '.join(sorted(sites))}), got {name}"
            yield BadInput(message, ("pools", name))
    yield from _name_faults(lab)
    yield from _port_faults(lab)
    yield from _core_port_faults(lab)


def _name_faults(lab: LabFile) -> Iterator[BadInput]:
    named = [(path, element.name) for path, element in _elements(lab)]
    named += [(("transports", index), one.name) for index, one in enumerate(lab.transports)]
    for path, name in named:
        if name in RESERVED_NODES:
            message = f"{name}: expected another name, since the lab has a node of this name itself"
            yield BadInput(message, (*path, "name"))


def _port_faults(lab: LabFile) -> Iterator[BadInput]:
    for path, element in _elements(lab):
        for index, port in enumerate(element.ports):
            for fault in _interface_faults(port):
                yield BadInput(f"port {element.name}:{port}: {fault}", (*path, "ports", index))


def _core_port_faults(lab: LabFile) -> Iterator[BadInput]:
    """Check the cores' ports: interfaces that bear the names of their sites."""
    used: set[tuple[str, str]] = set()
    places = [(s, a) for s, site in enumerate(lab.sites) for a in range(len(site.attachments))]
    for (s, a), (port, attachment) in zip(places, attachments(lab), strict=True):
        path = ("sites", s, "attachments", a)
        for fault in _interface_faults(port):
            yield BadInput(f"site {lab.sites[s].name} as port {port} of {attachment.transport}: {fault}", path)
        if (attachment.transport, port) in used:
            message = (
                f"expected another name of site {lab.sites[s].name}: {attachment.transport} has a port {port} already"
            )
            yield BadInput(message, path)
        used.add((attachment.transport, port))


def _interface_faults(port: str) -> Iterator[str]:
    if len(port) > INTERFACE_LENGTH or "/" in port or ":" in port:
        yield f"expected a Linux interface's name of at most {INTERFACE_LENGTH} characters without / and :"
    if port in RESERVED_PORTS:
        yield f"expected another name, since the lab uses {port} itself"


def _elements(lab: LabFile) -> Iterator[tuple[tuple[str | int, ...], Element]]:
    for s, site in enumerate(lab.sites):
        for kind in ("switches", "hosts", "gateways"):
            for index, element in enumerate(getattr(site, kind)):
                yield ("sites", s, kind, index), element


def read_lab_file(path: Path | None = None) -> LabFile:
    """Read a lab file, or the one that comes with virtcloud.

    Raises :class:`BadInput` when there is no such file, ``BadDocument`` with line and key when it is malformed.
    """
    if path is None:
        return read_document(default_lab_text(), DEFAULT, LabFile)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"lab file {path}: expected a readable file, got: {error}") from error
    return read_document(text, str(path), LabFile)


def default_lab_text() -> str:
    """Give the text of the lab file that comes with virtcloud."""
    return resources.files("virtcloud.lab").joinpath("topologies", DEFAULT).read_text(encoding="utf-8")
