"""Arista EOS by configuration sessions: the words of its command line, put into a session instead of spoken.

A session holds a copy of the whole configuration and, when it is committed, overwrites what others changed since it was
made (EOS user manual, "Configure Session"): it is made and committed within the same second.
"""

from functools import partial

from sbf_service.drivers.candidate import CandidateWords
from sbf_service.drivers.dialects.arista_eos import DIALECT
from sbf_service.drivers.dialects.dialect import Seen
from sbf_service.drivers.dialects.lines import UNCLOSED, changing_lines, closing_lines, unclosed_ports
from sbf_service.drivers.driver import DriverFacts
from virtcloud.model.wanted import SwitchDifference


def _unclosed(difference: SwitchDifference, before: Seen, after: Seen) -> list[str]:
    ports = unclosed_ports(DIALECT, difference, before, after)
    return [f"port {port}: {UNCLOSED}" for port in ports]


WORDS = CandidateWords(
    title="Arista EOS, configuration sessions over eAPI",
    show=DIALECT.show,
    see=DIALECT.see,
    closing=partial(closing_lines, DIALECT),
    unclosed=_unclosed,
    lines=partial(changing_lines, DIALECT),
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
