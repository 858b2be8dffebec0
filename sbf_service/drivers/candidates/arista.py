"""Arista EOS by configuration sessions: the words of its command line, put into a session instead of spoken.

A session holds a copy of the whole configuration and, when it is committed, overwrites what others changed since it was
made (EOS user manual, "Configure Session"): it is made and committed within the same second.
"""

from functools import partial

from sbf_service.drivers.candidate import CandidateWords
from sbf_service.drivers.dialects.arista_eos import DIALECT, ports_seen
from sbf_service.drivers.dialects.dialect import Seen
from sbf_service.drivers.dialects.lines import UNCLOSED, closed_ports, lines, port_seen
from sbf_service.drivers.driver import DriverFacts
from virtcloud.model.values import PortName
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference


def _unclosed(difference: SwitchDifference, closed: tuple[PortName, ...], candidate: str) -> list[str]:
    seen = Seen(VlanSet(), ports_seen(candidate))
    found = {port: port_seen(DIALECT, seen, port) for port in closed}
    wanted = {port: difference.add.get(port, VlanSet()) for port in closed}
    bad = (port for port, one in found.items() if one is None or one.open or one.tagged - wanted[port])
    return [f"port {port}: {UNCLOSED}" for port in bad]


WORDS = CandidateWords(
    title="Arista EOS, configuration sessions over eAPI",
    show=DIALECT.show,
    see=DIALECT.see,
    lines=partial(lines, DIALECT),
    closed_first=partial(closed_ports, DIALECT),
    unclosed=_unclosed,
    told={
        "create a VLAN": DIALECT.create,
        "delete": DIALECT.delete,
        "set an empty list": DIALECT.prepare,
        "make a port a trunk": DIALECT.trunk,
        "allow on a port": DIALECT.allow,
        "remove from a port": DIALECT.remove,
        "remove the last": DIALECT.empty,
        "join an access port": DIALECT.access,
        "vacate an access port": tuple(line for template in DIALECT.vacate for line in template),
    },
    ports=DIALECT.ports,
    unused=DIALECT.unused,
    kept=DIALECT.kept,
    facts=DriverFacts(DIALECT.reserved, atomic=True, confirm_timer=True, access=True),
)
