"""The driver for Linux edges: a VLAN-aware bridge with a device for each service.

The administrator creates the bridge ``br0`` (``vlan_filtering 1 vlan_default_pvid 0``) and adds the customer ports. A
circuit consists of one VLAN on two bridge ports: untagged on a service device, and tagged on the customer port. The
service device removes the tag, so the VLAN ID of a cluster can differ from site to site. In an EVPN fabric, FRR's bgpd
with ``advertise-all-vni`` announces a VNI when the service device of the VNI comes up.

SBF adds the VLAN while the service device is down, and brings the device up last. To remove a circuit, SBF first
removes the VLAN from the customer port. Therefore frames of two clusters are never mixed.
"""

from collections.abc import Iterable, Iterator

from pydantic import TypeAdapter

from sbf_service.drivers.contract import Backbone, EdgeCapabilities, EdgeScope
from sbf_service.drivers.edge.linux_circuits import PREFIXES, LinuxEdgeReading, LinuxLink, ServiceDevices
from sbf_service.drivers.transport.device_session import CommandLine
from sbf_service.drivers.transport.iproute2 import (
    SHOW_LINKS,
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

CAPABILITIES = EdgeCapabilities(kinds=frozenset(PREFIXES), reserved=VlanSet([1]), services_by_kind=True)
ALREADY_DONE = {"link add": "File exists", "link del": "Cannot find device"}
"""The messages that iproute2 prints for a line that was already applied."""

ProgramLines = tuple[str, tuple[str, ...]]

_LINKS = TypeAdapter(list[LinuxLink])


class LinuxEdge:
    """The driver of one Linux edge."""

    def __init__(self, edge: Edge, backbone: Backbone, line: CommandLine) -> None:
        """Create a driver of ``edge``. The driver sends all commands over ``line``."""
        self._edge = edge
        self._services = ServiceDevices(edge, backbone.transports)
        self._shell = Shell(f"edge {edge.name}", line)
        self._circuits: Circuits = ()

    def read(self, scope: EdgeScope) -> EdgeObserved:
        """Read the managed circuits, with two commands for any number of circuits."""
        self._services = ServiceDevices(self._edge, scope.transports)
        self._shell.close_if_lost()
        links = parse_json(self._shell.device, SHOW_LINKS, run_query(self._shell, SHOW_LINKS), _LINKS)
        entries = parse_vlan_entries(self._shell.device, run_query(self._shell, SHOW_VLANS))
        observed = LinuxEdgeReading(self._edge.name, self._services, links, entries).derive_circuits(scope)
        self._circuits = observed.circuits
        return observed

    def apply(self, difference: EdgeDifference) -> None:
        """Apply a difference. A refused line does not stop the following lines.

        If the removal of a circuit or remnant is refused, add only circuits that share no VLAN with the circuits and
        remnants to remove. If the VLAN of a remnant to remove is unknown, add no circuit. Otherwise, two services could
        be connected.

        Raise Refused after the last line, with the messages of all refused lines. Raise Refused before the first line
        if the transport of an added circuit is unknown, or needs a field of the edge that the topology lacks.
        """
        self._check_transports(difference.add)
        failures = self._run(self._render_removals(difference))
        failures += self._run(self._render_additions(_select_separate(difference) if failures else difference.add))
        raise_for_failures(self._shell.device, failures)

    def save(self) -> bool:
        """Do nothing and return False: there is no startup configuration, and no circuit survives a restart."""
        return False

    def list_commands(self, difference: EdgeDifference) -> tuple[str, ...]:
        """Return the commands of a difference, in order."""
        batches = (*self._render_removals(difference), *self._render_additions(difference.add))
        return tuple(f"{program} {line}" for program, lines in batches for line in lines)

    def is_lost(self) -> bool:
        """Return whether the edge ended the session."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()

    def _check_transports(self, circuits: Circuits) -> None:
        for circuit in circuits:
            wanted = f"edge {self._edge.name}: wanted a circuit of transport {circuit.transport}"
            transport = self._services.transports.get(circuit.transport)
            if transport is None:
                raise Refused(f"{wanted}, found only {', '.join(self._services.transports) or 'none'}")
            if missing := self._services.find_missing_setting(transport):
                raise Refused(f"{wanted}, found no {missing} in the topology: add the edge's {missing}")

    def _run(self, batches: Iterable[ProgramLines]) -> list[BatchFailure]:
        failures = (failure for program, lines in batches for failure in run_batch(self._shell, program, lines))
        return [failure for failure in failures if not _is_already_done(failure)]

    def _render_removals(self, difference: EdgeDifference) -> Iterator[ProgramLines]:
        removed = _list_removed(difference)
        on_ports = (part for part in removed if part.port and part.vlan)
        yield "bridge", _deduplicate(f"vlan del dev {part.port} vid {part.vlan}" for part in on_ports)
        remaining = {(item.transport, item.service) for item in self._circuits if item not in difference.remove}
        unused = (part for part in removed if (part.transport, part.service) not in remaining)
        yield "ip", _deduplicate(f"link del {name}" for part in unused if (name := self._find_device_name(part)))

    def _render_additions(self, circuits: Circuits) -> Iterator[ProgramLines]:
        added = [(circuit, self._services.transports[circuit.transport]) for circuit in circuits]
        creations = (self._services.render_creation(transport, circuit.service) for circuit, transport in added)
        yield "ip", _deduplicate(line for lines in creations for line in lines)
        yield "bridge", _deduplicate(line for circuit in circuits for line in self._render_joining(circuit))
        yield "ip", _deduplicate(f"link set {self._find_device_name(circuit)} up" for circuit in circuits)

    def _render_joining(self, circuit: Circuit) -> Iterator[str]:
        yield f"vlan add dev {self._find_device_name(circuit)} vid {circuit.vlan} pvid untagged"
        yield f"vlan add dev {circuit.port} vid {circuit.vlan}"

    def _find_device_name(self, circuit: Circuit | CircuitRemnant) -> str | None:
        transport, service = self._services.transports[circuit.transport], circuit.service
        return self._services.device_name(transport, service) if service in transport.services else None


def _list_removed(difference: EdgeDifference) -> tuple[CircuitRemnant, ...]:
    return (*difference.clear, *(CircuitRemnant(**circuit.model_dump()) for circuit in difference.remove))


def _select_separate(difference: EdgeDifference) -> Circuits:
    """Return the circuits to add that share no VLAN with a circuit or remnant to remove.

    Return no circuit if the VLAN of a remnant is unknown.
    """
    vlans = {part.vlan for part in _list_removed(difference)}
    return () if None in vlans else tuple(circuit for circuit in difference.add if circuit.vlan not in vlans)


def _deduplicate(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lines))


def _is_already_done(failure: BatchFailure) -> bool:
    return any(failure.line.startswith(verb) and words in failure.message for verb, words in ALREADY_DONE.items())
