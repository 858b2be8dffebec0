"""The driver for every switch with a command line; what it says is in the dialect."""

from collections.abc import Iterator, Sequence

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.switch.command_rendering import (
    NOTHING_DONE,
    UNCLOSED,
    drop_ports,
    find_command_vlans,
    find_port,
    find_unclosed_ports,
    render_change_commands,
    render_closing_commands,
)
from sbf_service.drivers.switch.dialect import Dialect, PortReading, SwitchReading
from sbf_service.drivers.switch.lldp import parse_neighbours
from sbf_service.drivers.switch.observed_state import derive_observed_state
from sbf_service.drivers.transport.conversation import (
    ChangeFault,
    DeviceConversation,
    build_refusal,
    join_texts,
    quote_start,
)
from sbf_service.drivers.transport.device_session import CommandLine
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference, SwitchObserved

EXIT_COMMANDS = frozenset({"exit", "quit"})


class CommandLineSwitch:
    """One switch that is driven by its command line."""

    def __init__(self, name: Name, dialect: Dialect, line: CommandLine) -> None:
        """Drive the switch called ``name`` over ``line``."""
        self._name = name
        self._dialect = dialect
        self._device = DeviceConversation(f"switch {name}", dialect, line)
        self._seen: SwitchReading | None = None

    def read(self, managed: SwitchScope) -> SwitchObserved:
        """Read what managed ports carry of managed numbers; a few questions, however many VLANs there are."""
        self._device.renew()
        self._seen = self.look()
        return derive_observed_state(self._name, self._dialect, self._seen, managed)

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
        faults, whole = list[ChangeFault](), difference
        if closing := render_closing_commands(self._dialect, difference, seen):
            faults += self._tell(closing, whole)
            difference, unclosed = self._closed(difference, seen, faults)
            faults += unclosed
        faults += self._tell(render_change_commands(self._dialect, difference, seen), whole)
        if faults:
            raise build_refusal(f"switch {self._name}: ", faults)

    def save(self) -> bool:
        """Write the startup configuration. Raise Refused unless the switch prints that it did."""
        self._device.save(self._dialect.save, self._dialect.saved)
        return True

    def lines(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Give the lines of this change, saving included; nothing for no change."""
        return list_sent_commands(self._dialect, difference, self._seen or self.look()) if difference else ()

    def neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:
        """Ask for all neighbours; one question."""
        words = self._dialect.lldp
        if words is None:
            raise Refused(f"switch {self._name}: SBF does not know how {self._dialect.title} shows its neighbours")
        spelt = ",".join(self._dialect.ports.spelt(self._dialect.ports.canonical(port)) for port in ports)
        command = words.show.format(ports=spelt)
        self._device.renew()
        try:
            return parse_neighbours(words, self._device.show(command))
        except ValueError as error:
            raise Unsafe(
                f"switch {self._name}: the answer to {command!r} is not understood: {quote_start(str(error))}"
            ) from error

    def look(self) -> SwitchReading:
        """Read the whole switch. Raise Unsafe for answers that are not understood, and change nothing."""
        dialect = self._dialect
        answers = [self._device.show_any((command, *dialect.instead.get(command, ()))) for command in dialect.show]
        try:
            return self._dialect.see(answers)
        except ValueError as error:
            asked = ", ".join(repr(command) for command in self._dialect.show)
            words = f"the answers to {asked} are not understood: {quote_start(str(error))}; it was left alone"
            raise Unsafe(f"switch {self._name}: {words}") from error

    def is_lost(self) -> bool:
        """Say whether the switch ended the session by itself."""
        return self._device.is_lost()

    def close(self) -> None:
        """End the session."""
        self._device.close()

    def _closed(
        self, difference: SwitchDifference, seen: SwitchReading, before: list[ChangeFault]
    ) -> tuple[SwitchDifference, list[ChangeFault]]:
        """Read lists back; return what may be done then, and a fault for each port whose list is not empty.

        Raise Refused while a port is open: whatever was created would be carried there.
        """
        after = self.look()
        unclosed = find_unclosed_ports(self._dialect, difference, seen, after)
        faults = [ChangeFault(f"port {port}: {UNCLOSED}", difference.add.get(port, VlanSet())) for port in unclosed]
        if any((find_port(self._dialect, after, port) or PortReading()).open for port in unclosed):
            raise Refused(f"switch {self._name}: {join_texts(one.text for one in (*before, *faults))}: {NOTHING_DONE}")
        return drop_ports(difference, unclosed), faults

    def _tell(self, told: Sequence[str], difference: SwitchDifference) -> Iterator[ChangeFault]:
        """Send lines block by block; yield those that were refused.

        Where a block was not entered its last line left the configuration instead: that is entered again, or the last
        line of the next such block would end the session.
        """
        opening = self._dialect.configure
        for block in split_command_blocks(told):
            faults = list(self._device.tell([*opening, *block]))
            yield from (
                ChangeFault(str(one), find_command_vlans(self._dialect, one.line, block, difference)) for one in faults
            )
            has_left = block[-1] in EXIT_COMMANDS and any(one.line == block[0] for one in faults)
            opening = self._dialect.configure if has_left else ()
        if not opening:
            yield from (ChangeFault(str(one)) for one in self._device.tell(self._dialect.leave))


def list_sent_commands(dialect: Dialect, difference: SwitchDifference, seen: SwitchReading) -> tuple[str, ...]:
    """Return all lines of a change of a switch that was read as ``seen``, in order, saving included."""
    parts = render_closing_commands(dialect, difference, seen), render_change_commands(dialect, difference, seen)
    changes = [line for part in parts if part for line in (*dialect.configure, *part, *dialect.leave)]
    return (*changes, *dialect.save)


def split_command_blocks(told: Sequence[str]) -> Iterator[list[str]]:
    """Split lines after each that leaves what was entered."""
    block: list[str] = []
    for line in told:
        block.append(line)
        if line in EXIT_COMMANDS:
            yield block
            block = []
    if block:
        yield block
