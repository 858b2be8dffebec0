"""Arista EOS with configuration sessions. SBF loads the commands of the dialect ``arista_eos`` into a session.

A session contains a copy of the whole configuration, and its commit overwrites later changes of other users (EOS user
manual, "Configure Session"). SBF therefore commits immediately after loading.
"""

from functools import partial

from sbf_service.drivers.contract import SwitchCapabilities
from sbf_service.drivers.switch.candidate_switch import CandidateDialect
from sbf_service.drivers.switch.command_rendering import UNCLOSED, find_ports_to_close, render_commands
from sbf_service.drivers.switch.dialect import SwitchReading, find_port
from sbf_service.drivers.switch.dialects.arista_eos import DIALECT, LLDP, parse_ports
from sbf_service.drivers.switch.lldp import parse_neighbours
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet


def _find_unclosed(difference: SwitchDifference, closed: tuple[PortName, ...], candidate: str) -> list[str]:
    reading = SwitchReading(VlanSet(), parse_ports(candidate))
    states = {port: find_port(DIALECT, reading, port) for port in closed}
    wanted = {port: difference.add.get(port, VlanSet()) for port in closed}
    unclosed = (port for port, state in states.items() if state is None or state.open or state.tagged - wanted[port])
    return [f"port {port}: {UNCLOSED}" for port in unclosed]


CANDIDATE_DIALECT = CandidateDialect(
    title="Arista EOS, configuration sessions over eAPI",
    show=DIALECT.show,
    see=DIALECT.see,
    lines=partial(render_commands, DIALECT),
    neighbours=partial(parse_neighbours, LLDP),
    closed_first=partial(find_ports_to_close, DIALECT),
    unclosed=_find_unclosed,
    documented_lines={
        "create a VLAN": DIALECT.create,
        "delete": DIALECT.delete,
        "set an empty list of allowed VLANs": DIALECT.prepare,
        "make a port a trunk": DIALECT.trunk,
        "allow on a port": DIALECT.allow,
        "remove from a port": DIALECT.remove,
        "remove from a port, if no VLAN would remain": DIALECT.empty,
        "join an access port": DIALECT.access,
        "vacate an access port": tuple(line for template in DIALECT.vacate for line in template),
    },
    ports=DIALECT.ports,
    unused=DIALECT.unused,
    kept=DIALECT.kept,
    capabilities=SwitchCapabilities(DIALECT.reserved, atomic=True, confirm_timer=True, access=True),
)
