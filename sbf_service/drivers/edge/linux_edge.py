"""The driver for Linux edges: a VLAN-aware bridge with a device for each service.

The bridge ``br0`` exists beforehand (``vlan_filtering 1 vlan_default_pvid 0``), with the customer ports in it. A
circuit consists of a service device in the bridge with one untagged VLAN, and of that VLAN tagged on the customer port.
The service device removes the tag, so the VLAN ID of a cluster may differ from site to site. In an EVPN fabric, FRR's
bgpd with ``advertise-all-vni`` announces a VNI when its device comes up; bgpd's configuration contains no clusters.

Frames never leak: a new device is in no VLAN, is joined to its VLAN while it is down, and comes up last. When a circuit
is removed, the VLAN is removed from the customer port first.
"""

from collections.abc import Iterable, Iterator

from pydantic import TypeAdapter

from sbf_service.drivers.contract import Backbone, EdgeCapabilities, EdgeScope
from sbf_service.drivers.edge.linux_circuits import PREFIXES, LinuxEdgeReading, LinuxLink, ServiceDevices
from sbf_service.drivers.transport.device_session import CommandLine
from sbf_service.drivers.transport.iproute2 import (
    SHOW_VLANS,
    BatchFailure,
    parse_json,
    parse_vlan_entries,
    raise_for_failures,
    run_batch,
    run_query,
)
from sbf_service.drivers.transport.shell import Shell
from virtcloud.model.edge import Circuit, CircuitRemnant, Circuits, EdgeDifference, EdgeObserved
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused
from virtcloud.model.vlans import VlanSet

CAPABILITIES = EdgeCapabilities(kinds=frozenset(PREFIXES), reserved=VlanSet([1]))
SHOW_LINKS = "ip -details -json link show"
ALREADY_DONE = {"link add": "File exists", "link del": "Cannot find device"}
"""The messages of iproute2 for a line that was applied before."""

ProgramLines = tuple[str, tuple[str, ...]]
"""A program, and the lines of its batch."""

_LINKS = TypeAdapter(list[LinuxLink])


class LinuxEdge:
    """The driver of one Linux edge."""

    def __init__(self, edge: Edge, backbone: Backbone, line: CommandLine) -> None:
        """Control ``edge`` over ``line``."""
        self._edge = edge
        self._services = ServiceDevices(edge, backbone.transports)
        self._shell = Shell(f"edge {edge.name}", line)
        self._circuits: Circuits = ()

    def read(self, scope: EdgeScope) -> EdgeObserved:
        """Read the managed circuits with two commands.

        The number of commands does not depend on the number of circuits.
        """
        self._services = ServiceDevices(self._edge, scope.transports)
        self._shell.close_if_lost()
        links = parse_json(self._shell.device, SHOW_LINKS, run_query(self._shell, SHOW_LINKS), _LINKS)
        entries = parse_vlan_entries(self._shell.device, run_query(self._shell, SHOW_VLANS))
        observed = LinuxEdgeReading(self._edge.name, self._services, links, entries).derive_circuits(scope)
        self._circuits = observed.circuits
        return observed

    def apply(self, difference: EdgeDifference) -> None:
        """Apply a difference. A refused line does not stop the other lines."""
        self._check(difference.add)
        failures = [one for program, lines in self._steps(difference) for one in run_batch(self._shell, program, lines)]
        raise_for_failures(self._shell.device, [one for one in failures if not _is_already_done(one)])

    def save(self) -> bool:
        """Return False: no circuit survives a restart, and the next reading shows the service devices as missing."""
        return False

    def list_commands(self, difference: EdgeDifference) -> tuple[str, ...]:
        """Return the commands of a difference, in order."""
        return tuple(f"{program} {line}" for program, lines in self._steps(difference) for line in lines)

    def is_lost(self) -> bool:
        """Return whether the edge ended the session."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()

    def _check(self, circuits: Circuits) -> None:
        for one in circuits:
            transport = self._services.transports.get(one.transport)
            if transport is None:
                known = ", ".join(self._services.transports) or "none"
                raise Refused(f"edge {self._edge.name}: wanted a circuit of transport {one.transport}, knows {known}")
            if missing := self._services.find_missing_setting(transport):
                what = f"wanted a circuit of transport {one.transport}, found no {missing} in the topology: add it"
                raise Refused(f"edge {self._edge.name}: {what}")

    def _steps(self, difference: EdgeDifference) -> Iterator[ProgramLines]:
        leaving = (*difference.clear, *(CircuitRemnant(**one.model_dump()) for one in difference.remove))
        yield (
            "bridge",
            _deduplicate(f"vlan del dev {one.port} vid {one.vlan}" for one in leaving if one.port and one.vlan),
        )
        kept = {(one.transport, one.service) for one in self._circuits if one not in difference.remove}
        gone = (one for one in leaving if (one.transport, one.service) not in kept)
        yield "ip", _deduplicate(f"link del {name}" for one in gone if (name := self._device(one)))
        added = [(one, self._services.transports[one.transport]) for one in difference.add]
        yield (
            "ip",
            _deduplicate(
                line for one, transport in added for line in self._services.render_creation(transport, one.service)
            ),
        )
        yield "bridge", _deduplicate(line for one in difference.add for line in self._joined(one))
        yield "ip", _deduplicate(f"link set {self._device(one)} up" for one in difference.add)

    def _joined(self, one: Circuit) -> Iterator[str]:
        yield f"vlan add dev {self._device(one)} vid {one.vlan} pvid untagged"
        yield f"vlan add dev {one.port} vid {one.vlan}"

    def _device(self, one: Circuit | CircuitRemnant) -> str | None:
        """Return the name of the service device; None for a remnant without a known service."""
        transport = self._services.transports[one.transport]
        return self._services.device_name(transport, one.service) if one.service in transport.services else None


def _deduplicate(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))


def _is_already_done(failure: BatchFailure) -> bool:
    return any(failure.line.startswith(verb) and words in failure.message for verb, words in ALREADY_DONE.items())
