"""The driver for every switch with a command line; what it says is in the dialect."""

from collections.abc import Iterator, Sequence

from sbf_service.drivers.conversation import Conversation, quoted
from sbf_service.drivers.dialects.dialect import Dialect, PortSeen, Seen
from sbf_service.drivers.dialects.lines import (
    NOTHING_DONE,
    UNCLOSED,
    changing_lines,
    closing_lines,
    port_seen,
    unclosed_ports,
    without_ports,
)
from sbf_service.drivers.dialects.lldp import neighbours
from sbf_service.drivers.dialects.subjects import subjects
from sbf_service.drivers.dialects.uses import carried_from
from sbf_service.drivers.driver import Managed
from sbf_service.drivers.faults import Fault, listed, refused
from sbf_service.drivers.line import CommandLine
from sbf_service.neighbour import Neighbour
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchCarried, SwitchDifference

LEAVES = frozenset({"exit", "quit"})


class CommandLineSwitch:
    """One switch that is driven by its command line."""

    def __init__(self, name: Name, dialect: Dialect, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._dialect = dialect
        self._device = Conversation(f"switch {name}", dialect, line)
        self._seen: Seen | None = None

    def read(self, managed: Managed) -> SwitchCarried:
        """Read what managed ports carry of managed numbers; a few questions, however many VLANs there are."""
        self._device.renew()
        self._seen = self.look()
        return carried_from(self._name, self._dialect, self._seen, managed)

    def apply(self, difference: SwitchDifference) -> None:
        """Make the change; :meth:`save` is a step of its own.

        Lists of allowed VLANs are emptied first and read back: no VLAN is created, and no port made a trunk, before
        its list was read as empty (DESIGN.md §7.4). That reading is the only one, and there is none when no port needs
        preparing. A line that is refused keeps none of the others from being done: they may be another cluster's.
        """
        seen, self._seen = self._seen or self.look(), None
        taken = difference.create & seen.reserved
        if taken:
            use = "which the switch uses itself: take it out of the site's pool"
            raise Refused(f"switch {self._name}: wanted VLAN {taken}, {use}")
        faults, whole = list[Fault](), difference
        if closing := closing_lines(self._dialect, difference, seen):
            faults += self._tell(closing, whole)
            difference, unclosed = self._closed(difference, seen, faults)
            faults += unclosed
        faults += self._tell(changing_lines(self._dialect, difference, seen), whole)
        if faults:
            raise refused(f"switch {self._name}: ", faults)

    def save(self) -> bool:
        """Write the startup configuration. Raise Refused unless the switch prints that it did."""
        self._device.save(self._dialect.save, self._dialect.saved)
        return True

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the lines of this change, saving included; nothing for no change."""
        return sent_lines(self._dialect, difference, self._seen or self.look()) if difference else ()

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:
        """Ask for all neighbours; one question."""
        words = self._dialect.lldp
        if words is None:
            raise Refused(f"switch {self._name}: SBF does not know how {self._dialect.title} shows its neighbours")
        spelt = ",".join(self._dialect.ports.spelt(self._dialect.ports.canonical(port)) for port in ports)
        command = words.show.format(ports=spelt)
        self._device.renew()
        try:
            return neighbours(words, self._device.show(command))
        except ValueError as error:
            raise Unsafe(
                f"switch {self._name}: the answer to {command!r} is not understood: {quoted(str(error))}"
            ) from error

    def look(self) -> Seen:
        """Read the whole switch. Raise Unsafe for answers that are not understood, and change nothing."""
        dialect = self._dialect
        answers = [self._device.show_any((command, *dialect.instead.get(command, ()))) for command in dialect.show]
        try:
            return self._dialect.see(answers)
        except ValueError as error:
            asked = ", ".join(repr(command) for command in self._dialect.show)
            words = f"the answers to {asked} are not understood: {quoted(str(error))}; it was left alone"
            raise Unsafe(f"switch {self._name}: {words}") from error

    def is_lost(self) -> bool:
        """Say whether the switch ended the session by itself."""
        return self._device.is_lost()

    def close(self) -> None:
        """End the session."""
        self._device.close()

    def _closed(
        self, difference: SwitchDifference, seen: Seen, before: list[Fault]
    ) -> tuple[SwitchDifference, list[Fault]]:
        """Read lists back; return what may be done then, and a fault for each port whose list is not empty.

        Raise Refused while a port is open: whatever was created would be carried there.
        """
        after = self.look()
        unclosed = unclosed_ports(self._dialect, difference, seen, after)
        faults = [Fault(f"port {port}: {UNCLOSED}", difference.add.get(port, VlanSet())) for port in unclosed]
        if any((port_seen(self._dialect, after, port) or PortSeen()).open for port in unclosed):
            raise Refused(f"switch {self._name}: {listed(one.text for one in (*before, *faults))}: {NOTHING_DONE}")
        return without_ports(difference, unclosed), faults

    def _tell(self, told: Sequence[str], difference: SwitchDifference) -> Iterator[Fault]:
        """Send lines block by block; yield those that were refused.

        Where a block was not entered its last line left the configuration instead: that is entered again, or the last
        line of the next such block would end the session.
        """
        opening = self._dialect.configure
        for block in blocks(told):
            faults = list(self._device.tell([*opening, *block]))
            yield from (Fault(str(one), subjects(self._dialect, one.line, block, difference)) for one in faults)
            has_left = block[-1] in LEAVES and any(one.line == block[0] for one in faults)
            opening = self._dialect.configure if has_left else ()
        if not opening:
            yield from (Fault(str(one)) for one in self._device.tell(self._dialect.leave))


def sent_lines(dialect: Dialect, difference: SwitchDifference, seen: Seen) -> tuple[str, ...]:
    """Return all lines of a change of a switch that was read as ``seen``, in order, saving included."""
    parts = closing_lines(dialect, difference, seen), changing_lines(dialect, difference, seen)
    changes = [line for part in parts if part for line in (*dialect.configure, *part, *dialect.leave)]
    return (*changes, *dialect.save)


def blocks(told: Sequence[str]) -> Iterator[list[str]]:
    """Split lines after each that leaves what was entered."""
    block: list[str] = []
    for line in told:
        block.append(line)
        if line in LEAVES:
            yield block
            block = []
    if block:
        yield block
