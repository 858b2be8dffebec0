"""A lab file: a topology and the pools of its sites, as one YAML document."""

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from virtcloud.lab.names import RESERVED_NODES, RESERVED_PORTS
from virtcloud.model.documents import read_document
from virtcloud.model.errors import BadInput
from virtcloud.model.topology import Hypervisor, Topology
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
            raise BadInput(fault)
        return self


def _faults(lab: LabFile) -> Iterator[str]:
    sites = {site.name for site in lab.sites}
    for name in lab.pools:
        if name not in sites:
            yield f"pools: expected sites of this topology ({', '.join(sorted(sites))}), got {name}"
    for node in (*lab.elements, *(transport.name for transport in lab.transports)):
        if node in RESERVED_NODES:
            yield f"{node}: expected another name, since the lab has a node of this name itself"
    for element in lab.elements.values():
        for port in element.ports:
            yield from _port_faults(f"{element.name}:{port}", port)
    for site in lab.sites:
        if site.attachments:
            yield from _port_faults(f"site {site.name} as a port of its provider core", site.name)


def _port_faults(where: str, port: str) -> Iterator[str]:
    if len(port) > INTERFACE_LENGTH or "/" in port or ":" in port:
        yield f"{where}: expected a Linux interface's name of at most {INTERFACE_LENGTH} characters without / and :"
    if port in RESERVED_PORTS:
        yield f"{where}: expected another port name, since the lab uses {port} itself"


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
