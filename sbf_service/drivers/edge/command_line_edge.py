"""The driver for every provider edge with a command line; what it says is in the dialect."""

from collections.abc import Sequence
from dataclasses import replace

from sbf_service.drivers.contract import Backbone, EdgeScope
from sbf_service.drivers.edge.change_steps import ChangeStep, find_unready_ports, plan_preparations, plan_steps
from sbf_service.drivers.edge.edge_dialect import EdgeDialect, EdgeReading, EdgeTemplates
from sbf_service.drivers.edge.observed_circuits import derive_circuits
from sbf_service.drivers.switch.dialect import Commands
from sbf_service.drivers.transport.conversation import ChangeFault, DeviceConversation, build_refusal, quote_start
from sbf_service.drivers.transport.device_session import CommandLine
from virtcloud.model.edge import EdgeDifference, EdgeObserved
from virtcloud.model.element import Edge
from virtcloud.model.errors import Refused, Unreachable, Unsafe
from virtcloud.model.vlans import VlanSet

COMMIT_PATIENCE = 6
"""A device that activates a candidate may be silent for so many times as long as otherwise."""
UNCLOSED = "wanted an empty list of allowed VLANs before the port becomes a trunk, read back another list"
NOTHING_DONE = "no VLAN was created and no port was made a trunk; look at the edge's configuration"
EVERY = VlanSet(range(1, 4095))


class CommandLineEdge:
    """One provider edge that is driven by its command line."""

    def __init__(self, edge: Edge, dialect: EdgeDialect, backbone: Backbone, line: CommandLine) -> None:
        """Drive ``edge`` over ``line``."""
        self._whom = f"edge {edge.name}"
        self._dialect = dialect
        self._filling = EdgeTemplates(edge, dialect, backbone)
        self._device = DeviceConversation(self._whom, dialect, line)
        self._seen: EdgeReading | None = None

    def read(self, managed: EdgeScope) -> EdgeObserved:
        """Read which managed circuits there are; a few questions, however many there are."""
        backbone = replace(self._filling.backbone, transports=managed.transports)
        self._device.renew()
        seen = self._look(managed.vlans)
        self._seen = seen
        return derive_circuits(replace(self._filled(seen), backbone=backbone), seen, managed)

    def apply(self, difference: EdgeDifference) -> None:
        """Make the change; :meth:`save` is a step of its own.

        Where the device has a candidate, a refused line throws all of it away. Elsewhere it keeps only what
        is about the same service, VLAN or port from being done.
        """
        if not difference:
            return
        seen, self._seen = self._seen or self._look(EVERY), None
        asked = plan_steps(self._filled(seen), difference, seen)
        self._prepare(difference, seen)
        self._take(asked)

    def save(self) -> bool:
        """Write the startup configuration, where a commit did not. Raise Refused unless the edge prints that it did."""
        self._device.save(self._dialect.save, self._dialect.saved)
        return bool(self._dialect.save)

    def lines(self, difference: EdgeDifference) -> tuple[str, ...]:
        """Give the lines of this change, saving included; nothing for no change."""
        if not difference:
            return ()
        seen = self._seen or self._look(EVERY)
        asked = plan_steps(self._filled(seen), difference, seen)
        parts = plan_preparations(self._filled(seen), difference, seen), asked
        dialect = self._dialect
        told = [
            line
            for part in parts
            if part
            for line in (*dialect.configure, *(one for step in part for one in step.lines), *dialect.leave)
        ]
        return (*told, *dialect.save)

    def is_lost(self) -> bool:
        """Return whether the device ended the session by itself."""
        return self._device.is_lost()

    def close(self) -> None:
        """End the session."""
        self._device.close()

    def _prepare(self, difference: EdgeDifference, seen: EdgeReading) -> None:
        """Set empty lists of allowed VLANs, and read them back before anything else is changed (DESIGN.md §7.4).

        Raise Unsafe for a port in other use, Refused when a list is not empty then.
        """
        asked, ports = (
            plan_preparations(self._filled(seen), difference, seen),
            find_unready_ports(self._filling, difference, seen),
        )
        for canonical, port in ports.items():
            if canonical in seen.uses:
                cure = "it was left alone; make it a trunk with a list of its own, or take it out of the topology"
                found = f"expected an unused port or a trunk with a list of VLANs, found {seen.uses[canonical]}"
                raise Unsafe(f"{self._whom}, port {port}: {found}: {cure}")
        if asked:
            self._take(asked)
            after = self._look(EVERY)
            if full := [port for canonical, port in ports.items() if canonical not in after.empty]:
                raise Refused(f"{self._whom}, port {', '.join(full)}: {UNCLOSED}: {NOTHING_DONE}")

    def _take(self, asked: list[ChangeStep]) -> None:
        """Take steps in one configuration. Raise Refused."""
        faults: list[ChangeFault] = []
        self._move(self._dialect.configure, faults)
        self._send(asked, faults)
        has_failed = bool(faults and self._dialect.give_up)
        self._move(self._dialect.give_up if has_failed else self._dialect.leave, faults)
        if faults:
            raise build_refusal(f"{self._whom}: ", faults)

    def _filled(self, seen: EdgeReading) -> EdgeTemplates:
        return replace(self._filling, known=seen.known)

    def _send(self, asked: list[ChangeStep], faults: list[ChangeFault]) -> None:
        """Take steps; add what is refused to ``faults``. With a candidate the first refusal ends it."""
        spoilt = frozenset[str]()
        for step in asked:
            fault = None if spoilt & step.needs else self._refusal(step)
            if fault is None:
                continue
            faults.append(fault)
            if self._dialect.give_up:
                return
            spoilt |= step.about
            self._move((*self._dialect.leave, *self._dialect.configure), faults)

    def _refusal(self, step: ChangeStep) -> ChangeFault | None:
        """Send a step's lines up to the first that is refused, so that none is obeyed where it was not meant to be.

        With a candidate nothing at all is done then, which concerns every cluster.
        """
        vlans = VlanSet() if self._dialect.give_up else step.vlans
        return next((ChangeFault(str(one), vlans) for line in step.lines for one in self._device.tell([line])), None)

    def _move(self, lines: Commands, faults: Sequence[ChangeFault]) -> None:
        """Enter or leave the configuration; with a candidate, activate it or throw it away.

        Raise Refused, with the ``faults`` before, when that is refused: nobody knows then in which mode the session is,
        so it is closed and nothing more is sent.
        """
        for line in lines:
            if refusals := [ChangeFault(str(one)) for one in self._device.tell([line], COMMIT_PATIENCE)]:
                self._device.close()
                self._raise_if_busy(refusals)
                raise build_refusal(f"{self._whom}: ", [*faults, *refusals])

    def _raise_if_busy(self, faults: list[ChangeFault]) -> None:
        busy = self._dialect.busy
        if busy is not None and any(busy.search(fault.text) for fault in faults):
            raise Unreachable(f"{self._whom} is being configured by somebody else: {faults[0]}; it is tried again")

    def _look(self, vlans: VlanSet) -> EdgeReading:
        asked: Commands = self._dialect.show
        answers = [self._device.show_any((one, *self._dialect.instead.get(one, ()))) for one in asked]
        try:
            return self._filling.placed(self._dialect.see(answers, vlans))
        except ValueError as error:
            shown = ", ".join(repr(command) for command in asked)
            words = f"the answers to {shown} are not understood: {quote_start(str(error))}; it was left alone"
            raise Unsafe(f"{self._whom}: {words}") from error
