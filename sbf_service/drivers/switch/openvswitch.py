"""The driver for Open vSwitch, configured with ``ovs-vsctl`` (ovs-vsctl(8), ovs-vswitchd.conf.db(5)).

A trunk with an empty ``trunks`` column carries every VLAN. A managed trunk therefore always lists
:data:`PLACEHOLDER_VLAN`, which no cluster can have (IEEE 802.1Q reserves it), even if another program removes the
clusters' VLANs. ``ovs-vsctl`` waits until the switch has applied a change.

A vacated access port also becomes a trunk that lists only the placeholder VLAN, and so drops untagged frames. Access
ports of the placeholder VLAN would be connected to each other.
"""

from collections.abc import Mapping
from shlex import quote

from sbf_service.domain.cabling import Neighbour
from sbf_service.drivers.contract import SwitchCapabilities, SwitchScope
from sbf_service.drivers.device_errors import quote_end
from sbf_service.drivers.switch.dialect import SwitchReading
from sbf_service.drivers.switch.lldp import read_lldpd_neighbours
from sbf_service.drivers.switch.ovs_ports import (
    LIST_PORTS,
    TIMEOUT_S,
    OvsPort,
    derive_ovs_state,
    parse_tables,
    read_ovs_port,
    render_transaction,
)
from sbf_service.drivers.transport.device_session import CommandLine
from sbf_service.drivers.transport.shell import Shell, pack_words
from virtcloud.model.errors import Refused
from virtcloud.model.switch_state import SwitchDifference, SwitchObserved
from virtcloud.model.values import Name, PortName
from virtcloud.model.vlans import VlanSet

CAPABILITIES = SwitchCapabilities(reserved=VlanSet([1]), atomic=True, access=True)
TRANSACT = f"ovs-vsctl --timeout={TIMEOUT_S}"


class OpenVSwitch:
    """The driver of one switch."""

    def __init__(self, name: Name, line: CommandLine) -> None:
        """Create a driver of the switch ``name``. The driver sends all commands over ``line``."""
        self._name = name
        self._shell = Shell(f"switch {name}", line)
        self._ports: Mapping[str, OvsPort] = {}

    def read(self, scope: SwitchScope) -> SwitchObserved:
        """Read the ports in one round trip. Raise Refused if the switch has not applied its database yet."""
        self._ports = self._query()
        return derive_ovs_state(self._name, self._ports, scope)

    def read_all(self) -> SwitchReading:
        """Read all ports of all bridges, managed or not. Change nothing."""
        ports = {name: read_ovs_port(port) for name, port in self._query().items()}
        return SwitchReading(VlanSet(vlan for port in ports.values() for vlan in port.tagged | port.untagged), ports)

    def _query(self) -> dict[str, OvsPort]:
        self._shell.close_if_lost()
        code, output = self._shell.run(LIST_PORTS)
        if code:
            raise Refused(f"switch {self._name}: {LIST_PORTS!r} failed: the switch printed {quote_end(output)!r}")
        ports, current, wanted = parse_tables(self._name, output)
        if current < wanted:
            raise Refused(
                f"switch {self._name}: expected ovs-vswitchd to have applied configuration {wanted} of the database, "
                f"found only configuration {current} applied: check that ovs-vswitchd runs"
            )
        return ports

    def apply(self, difference: SwitchDifference) -> None:
        """Apply a difference in one transaction."""
        words = render_transaction(difference, self._ports)
        if not words:
            return
        groups = pack_words(quote(word) for word in (*TRANSACT.split(), *words))
        lines = " \\\n".join(" ".join(group) for group in groups)
        code, output = self._shell.run(f"{lines} 2>&1")
        if code:
            raise Refused(f"switch {self._name}: '{TRANSACT} …' failed: the switch printed {quote_end(output)!r}")

    def save(self) -> bool:
        """Write the database to disk, because a committed transaction may be only in memory."""
        code, output = self._shell.run("sync 2>&1")
        if code:
            failure = f"'sync' failed, the database may not be on the disk: the switch printed {quote_end(output)!r}"
            raise Refused(f"switch {self._name}: {failure}")
        return True

    def list_commands(self, difference: SwitchDifference) -> tuple[str, ...]:
        """Return the single command of the transaction."""
        words = render_transaction(difference, self._ports)
        return (" ".join(quote(word) for word in (*TRANSACT.split(), *words)),) if words else ()

    def read_neighbours(self, ports: tuple[PortName, ...]) -> tuple[Neighbour, ...]:  # noqa: ARG002 - lldpd lists all ports
        """Read the neighbours from the switch's lldpd."""
        return read_lldpd_neighbours(self._shell, self._name)

    def is_lost(self) -> bool:
        """Return whether the switch ended the session."""
        return self._shell.is_lost()

    def close(self) -> None:
        """End the session."""
        self._shell.close()
