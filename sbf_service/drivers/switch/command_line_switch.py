"""The driver for every switch with a command line, whose commands a dialect defines."""

from collections.abc import Iterator, Sequence

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import SwitchScope
from sbf_service.drivers.device_errors import (
    ChangeFault,
    build_parse_error,
    build_refusal,
    join_texts,
    quote_start,
)
from sbf_service.drivers.switch.command_matching import (
    EXIT_COMMANDS,
    find_command_ports,
    find_command_vlans,
    is_enabling,
    split_before_enabling,
    split_command_blocks,
)
from sbf_service.drivers.switch.command_rendering import (
    NOTHING_DONE,
    UNCLOSED,
    drop_ports,
    find_unclosed_ports,
    render_change_commands,
    render_closing_commands,
)
from sbf_service.drivers.switch.dialect import Dialect, PortReading, SwitchReading, find_port
from sbf_service.drivers.switch.lldp import parse_neighbours
from sbf_service.drivers.switch.observed_state import check_reserved_vlans, derive_observed_state
from sbf_service.drivers.transport.conversation import DeviceConversation, RefusedCommand
from sbf_service.drivers.transport.device_session import CommandLine
from virtcloud.model.errors import Refused, Unsafe
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet


class CommandLineSwitch:
    """The driver of one switch with a command line."""

    def __init__(self, name: Name, dialect: Dialect, line: CommandLine) -> None:
        """Create a driver of the switch ``name``. The driver sends all commands over ``line``."""
        self._name = name
        self._dialect = dialect
        self._conversation = DeviceConversation(f"switch {name}", dialect, line)
        self._reading: SwitchReading | None = None

    def read(self, scope: SwitchScope) -> SwitchObserved:
        """Read the switch with a few commands. Their number does not depend on the number of VLANs."""
        self._conversation.close_if_lost()
        self._reading = self.read_all()
        return derive_observed_state(self._name, self._dialect, self._reading, scope)

    def read_all(self) -> SwitchReading:
        """Read the whole switch. Change nothing. Raise Unsafe for answers that cannot be parsed."""
        dialect = self._dialect
        show_any = self._conversation.show_any
        answers = [show_any((command, *dialect.instead.get(command, ()))) for command in dialect.show]
        try:
            return dialect.see(answers)
        except ValueError as error:
            commands = ", ".join(repr(command) for command in dialect.show)
            raise build_parse_error(f"switch {self._name}", f"answers to {commands}", error) from error

    def apply(self, difference: SwitchDifference) -> None:
        """Apply a difference without saving the configuration.

        First empty the lists of allowed VLANs that must be empty: a port becomes a trunk only after its list was read
        as empty. After a refused command, continue with the others, which can concern other clusters, and raise Refused
        with all faults at the end.

        Raise Refused before the first change if the switch reserves a VLAN ID of the difference. Raise Refused without
        further commands if a port still carries every VLAN after the commands that should have emptied its list.
        """
        reading, self._reading = self._reading or self.read_all(), None
        check_reserved_vlans(self._name, difference, reading)
        faults, complete = list[ChangeFault](), difference
        if closing := render_closing_commands(self._dialect, difference, reading):
            faults += self._send(closing, complete)
            difference, unclosed = self._read_back_lists(difference, reading, faults)
            faults += unclosed
        faults += self._send(render_change_commands(self._dialect, difference, reading), complete)
        if faults:
            raise build_refusal(f"switch {self._name}: ", faults)

    def save(self) -> bool:
        """Write the startup configuration and return True.

        Raise Refused if the switch does not print that the configuration was saved.
        """
        self._conversation.save(self._dialect.save, self._dialect.saved)
        return True

    def list_commands(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Return the commands that apply and save a difference; empty for an empty difference."""
        return list_sent_commands(self._dialect, difference, self._reading or self.read_all()) if difference else ()

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:
        """Read all neighbours with one command.

        Raise Refused if the dialect has no command for neighbours, and Unsafe if the answer cannot be parsed.
        """
        form = self._dialect.lldp
        if form is None:
            raise Refused(f"switch {self._name}: SBF cannot read the neighbours of {self._dialect.title}")
        names = self._dialect.ports
        command = form.show.format(ports=",".join(names.spelt(names.canonical(port)) for port in ports))
        self._conversation.close_if_lost()
        try:
            return parse_neighbours(form, self._conversation.show(command))
        except ValueError as error:
            raise Unsafe(
                f"switch {self._name}: cannot parse the answer to {command!r}: {quote_start(str(error))}"
            ) from error

    def is_lost(self) -> bool:
        """Return whether the switch ended the session."""
        return self._conversation.is_lost()

    def close(self) -> None:
        """End the session."""
        self._conversation.close()

    def _read_back_lists(
        self, difference: SwitchDifference, reading: SwitchReading, before: list[ChangeFault]
    ) -> tuple[SwitchDifference, list[ChangeFault]]:
        """Read the switch again. Return the remaining difference, and a fault for each port that is not closed.

        A trunk is closed if its list was read as empty, an access port if it was read as vacated. The remaining
        difference adds no VLANs to other ports.

        Raise Refused, with the faults ``before``, if a port still carries every VLAN: it would also carry every created
        VLAN.
        """
        after = self.read_all()
        unclosed = find_unclosed_ports(self._dialect, difference, reading, after)
        faults = [ChangeFault(f"port {port}: {UNCLOSED}", difference.add.get(port, VlanSet())) for port in unclosed]
        if any((find_port(self._dialect, after, port) or PortReading()).open for port in unclosed):
            texts = join_texts(fault.text for fault in (*before, *faults))
            raise Refused(f"switch {self._name}: {texts}: {NOTHING_DONE}")
        return drop_ports(difference, unclosed), faults

    def _send(self, commands: Sequence[str], difference: SwitchDifference) -> Iterator[ChangeFault]:
        """Send commands block by block, and yield a fault for each refused command.

        Normally, the first command of a block enters a mode, and the last command leaves it. After a refused first
        command, the last command leaves the configuration mode instead. Then enter the configuration mode again:
        otherwise, the next block could end the session. Send no further block if the device refuses the configuration
        mode.
        """
        dialect, refused_ports = self._dialect, set[str]()
        opening = dialect.configure
        for block in split_command_blocks(dialect, commands):
            if refusals := list(self._conversation.send(opening)):
                yield from (ChangeFault(str(refusal)) for refusal in refusals)
                return
            refusals = list(self._send_block(block, refused_ports))
            for refusal in refusals:
                yield ChangeFault(str(refusal), find_command_vlans(dialect, refusal.line, block, difference))
            has_left = block[-1] in EXIT_COMMANDS and any(refusal.line == block[0] for refusal in refusals)
            opening = dialect.configure if has_left else ()
        if not opening:
            yield from (ChangeFault(str(refusal)) for refusal in self._conversation.send(dialect.leave))

    def _send_block(self, block: Sequence[str], refused_ports: set[str]) -> Iterator[RefusedCommand]:
        """Send a block, and yield the refused commands. Add the ports of refused commands to ``refused_ports``.

        Enable no port in ``refused_ports``: such a port could be in the default VLAN, or in another cluster's VLAN.
        """
        for part in split_before_enabling(self._dialect, block):
            ports = find_command_ports(self._dialect, part[0], block)
            must_stay_shut = is_enabling(self._dialect, part[0]) and not refused_ports.isdisjoint(ports)
            for refusal in self._conversation.send(part[1:] if must_stay_shut else part):
                refused_ports |= find_command_ports(self._dialect, refusal.line, block)
                yield refusal


def list_sent_commands(dialect: Dialect, difference: SwitchDifference, reading: SwitchReading) -> tuple[str, ...]:
    """Return the commands that apply a difference to a switch in the state ``reading``, then the commands that save."""
    parts = (
        render_closing_commands(dialect, difference, reading),
        render_change_commands(dialect, difference, reading),
    )
    changes = [line for part in parts if part for line in (*dialect.configure, *part, *dialect.leave)]
    return (*changes, *dialect.save)
