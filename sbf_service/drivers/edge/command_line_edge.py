"""The driver for every provider edge with a command line, whose commands a dialect defines."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sbf_service.drivers.contract import Backbone, EdgeScope
from sbf_service.drivers.device_errors import ChangeFault, build_parse_error, build_refusal
from sbf_service.drivers.edge.change_steps import (
    ChangeStep,
    find_unready_ports,
    plan_preparations,
    plan_steps,
    separate_refused,
)
from sbf_service.drivers.edge.edge_dialect import EdgeDialect, EdgeReading
from sbf_service.drivers.edge.edge_templates import EdgeTemplates
from sbf_service.drivers.edge.observed_circuits import derive_circuits
from sbf_service.drivers.switch.command_rendering import UNCLOSED
from sbf_service.drivers.switch.dialect import ALL_VLANS, Commands
from sbf_service.drivers.transport.conversation import DeviceConversation
from sbf_service.drivers.transport.device_session import CommandLine
from virtcloud.model.edge import EdgeDifference, EdgeObserved
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.vlans import VlanSet

COMMIT_PATIENCE = 6
"""The timeout of commands that can activate a candidate configuration, as a multiple of the usual timeout."""
NOTHING_DONE = "no VLAN was created and no port became a trunk; check the edge's configuration"


class CommandLineEdge:
    """The driver of one provider edge with a command line."""

    def __init__(self, edge: Edge, dialect: EdgeDialect, backbone: Backbone, line: CommandLine) -> None:
        """Create a driver of ``edge``. The driver sends all commands over ``line``."""
        self._edge = f"edge {edge.name}"
        self._dialect = dialect
        self._templates = EdgeTemplates(edge, dialect, backbone)
        self._conversation = DeviceConversation(self._edge, dialect, line)
        self._reading: EdgeReading | None = None

    def read(self, scope: EdgeScope) -> EdgeObserved:
        """Read the managed circuits. The number of commands does not depend on the number of circuits."""
        backbone = replace(self._templates.backbone, transports=scope.transports)
        self._conversation.close_if_lost()
        reading = self._read_all(scope.vlans)
        self._reading = reading
        return derive_circuits(replace(self._templates_for(reading), backbone=backbone), reading, scope)

    def apply(self, difference: EdgeDifference) -> None:
        """Apply a difference without saving the configuration.

        On a device with a candidate configuration, a refused line discards the whole change. On other devices, a
        refused line stops only the steps about the same service, VLAN or port. A circuit that the platform cannot
        create does not prevent the change of other circuits.
        """
        if not difference:
            return
        reading, self._reading = self._reading or self._read_all(ALL_VLANS), None
        templates = self._templates_for(reading)
        possible, faults = separate_refused(templates, difference, reading)
        if possible:
            steps = plan_steps(templates, possible, reading)
            self._prepare(possible, reading)
            self._apply_steps(steps, faults)
        elif faults:
            raise build_refusal(f"{self._edge}: ", faults)

    def save(self) -> bool:
        """Write the startup configuration, if commits do not write it.

        Raise Refused if the edge does not print that the configuration was saved.
        """
        self._conversation.save(self._dialect.save, self._dialect.saved)
        return bool(self._dialect.save)

    def list_commands(self, difference: EdgeDifference) -> tuple[str, ...]:
        """Return the commands that apply and save a difference; empty for an empty difference.

        Raise Refused for a circuit that SBF cannot create.
        """
        if not difference:
            return ()
        reading, dialect = self._reading or self._read_all(ALL_VLANS), self._dialect
        templates = self._templates_for(reading)
        if faults := separate_refused(templates, difference, reading)[1]:
            raise build_refusal(f"{self._edge}: ", faults)
        parts = plan_preparations(templates, difference, reading), plan_steps(templates, difference, reading)
        changes = [
            line
            for steps in parts
            if steps
            for line in (*dialect.configure, *(line for step in steps for line in step.lines), *dialect.leave)
        ]
        return (*changes, *dialect.save)

    def is_lost(self) -> bool:
        """Return whether the edge ended the session."""
        return self._conversation.is_lost()

    def close(self) -> None:
        """End the session."""
        self._conversation.close()

    def _read_all(self, vlans: VlanSet) -> EdgeReading:
        dialect, show_any = self._dialect, self._conversation.show_any
        answers = [show_any((command, *dialect.instead.get(command, ()))) for command in dialect.show]
        try:
            return self._templates.mark_core_pieces(dialect.see(answers, vlans))
        except ValueError as error:
            commands = ", ".join(repr(command) for command in dialect.show)
            raise build_parse_error(self._edge, f"answers to {commands}", error) from error

    def _templates_for(self, reading: EdgeReading) -> EdgeTemplates:
        return replace(self._templates, known=reading.known)

    def _prepare(self, difference: EdgeDifference, reading: EdgeReading) -> None:
        """Set empty lists of allowed VLANs on ports that accept no circuits yet, and read the lists back.

        Raise Unsafe for a port in other use, and Refused for a list that is not empty afterwards.
        """
        steps = plan_preparations(self._templates_for(reading), difference, reading)
        ports = find_unready_ports(self._templates, difference, reading)
        for canonical, port in ports.items():
            if canonical in reading.uses:
                found = f"expected an unused port or a trunk with a list of VLANs, found {reading.uses[canonical]}"
                remedy = "make the port a trunk with a list of allowed VLANs, or remove it from the topology"
                raise Unsafe(f"{self._edge}, port {port}: {found}: the port was left unchanged; {remedy}")
        if steps:
            self._apply_steps(steps)
            after = self._read_all(ALL_VLANS)
            if unclosed := [port for canonical, port in ports.items() if canonical not in after.empty]:
                raise Refused(f"{self._edge}, port {', '.join(unclosed)}: {UNCLOSED}: {NOTHING_DONE}")

    def _apply_steps(self, steps: Iterable[ChangeStep], before: Sequence[ChangeFault] = ()) -> None:
        faults = [*before]
        self._change_mode(self._dialect.configure, faults)
        self._send_steps(steps, faults)
        is_discarded = bool(len(faults) > len(before) and self._dialect.give_up)
        self._change_mode(self._dialect.give_up if is_discarded else self._dialect.leave, faults)
        if faults:
            raise build_refusal(f"{self._edge}: ", faults)

    def _send_steps(self, steps: Iterable[ChangeStep], faults: list[ChangeFault]) -> None:
        unusable = frozenset[str]()
        for step in steps:
            fault = None if unusable & step.needs else self._send_step(step)
            if fault is None:
                continue
            faults.append(fault)
            if self._dialect.give_up:
                return
            unusable |= step.about
            self._change_mode((*self._dialect.leave, *self._dialect.configure), faults)

    def _send_step(self, step: ChangeStep) -> ChangeFault | None:
        """Send the lines of a step until the device refuses one, and return its fault, or None.

        A later line could take effect in the wrong mode. With a candidate configuration, the fault concerns every
        cluster.
        """
        vlans = VlanSet() if self._dialect.give_up else step.vlans
        refusals = (refusal for line in step.lines for refusal in self._conversation.send([line]))
        return next((ChangeFault(str(refusal), vlans) for refusal in refusals), None)

    def _change_mode(self, lines: Commands, faults: Sequence[ChangeFault]) -> None:
        """Change the configuration mode, or activate or discard a candidate configuration.

        After a refused line, close the session, because its mode is unknown. Then raise Unreachable if another user is
        configuring the device, otherwise Refused with all ``faults``.
        """
        for line in lines:
            if refusals := [ChangeFault(str(refusal)) for refusal in self._conversation.send([line], COMMIT_PATIENCE)]:
                self._conversation.close()
                self._raise_if_busy(refusals)
                raise build_refusal(f"{self._edge}: ", [*faults, *refusals])

    def _raise_if_busy(self, faults: list[ChangeFault]) -> None:
        busy = self._dialect.busy
        if busy is not None and any(busy.search(fault.text) for fault in faults):
            raise Unreachable(f"{self._edge} is being configured by another user: {faults[0]}; SBF tries again")
