"""Which VLAN IDs lines are about, so that a refusal is shown to the clusters that it concerns. Pure.

Lines were made from a dialect's templates; here they are matched with these templates again.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from sbf_service.drivers.dialects.dialect import Dialect, Lines
from virtcloud.model.errors import BadInput
from virtcloud.model.vlans import VlanSet
from virtcloud.model.wanted import SwitchDifference

_FIELDS = {"port": r"(?P<port>\S.*?)", "name": r"\S+", "vlan": r"(?P<vlan>\d+)", "vlans": r"(?P<vlans>\d.*)"}


def subjects(dialect: Dialect, line: str, block: Sequence[str], difference: SwitchDifference) -> VlanSet:
    """Return the VLAN IDs that a line of a block is about; those of the whole block where it says none itself."""
    return _named(dialect, [line], difference) or _named(dialect, block, difference)


def _named(dialect: Dialect, told: Sequence[str], difference: SwitchDifference) -> VlanSet:
    """Return the VLAN IDs that lines name, else those that the change moves on the ports that they name."""
    named = [found for line in told for found in _matches(dialect, line)]
    vlans = VlanSet(number for found in named for number in _numbers(dialect, found))
    return vlans or VlanSet(number for found in named for number in _moved(dialect, found, difference))


def _numbers(dialect: Dialect, found: re.Match[str]) -> Iterable[int]:
    fields = found.groupdict()
    listed = fields.get("vlan") or fields.get("vlans") or ""
    try:
        return VlanSet.parse(listed.replace(dialect.to, "-").replace(dialect.comma, ","))
    except BadInput:  # the words of another template that fits too
        return ()


def _moved(dialect: Dialect, found: re.Match[str], difference: SwitchDifference) -> Iterator[int]:
    port = dialect.ports.canonical(found.groupdict().get("port") or "")
    for moved in (difference.add, difference.remove):
        for name, vlans in moved.items():
            if dialect.ports.canonical(name) == port:
                yield from vlans


def _matches(dialect: Dialect, line: str) -> Iterator[re.Match[str]]:
    for pattern in _patterns(_templates(dialect)):
        if found := pattern.fullmatch(line):
            yield found


def _templates(dialect: Dialect) -> Lines:
    groups = (dialect.create, dialect.delete, dialect.prepare, dialect.trunk, dialect.allow, dialect.remove)
    every = (*groups, dialect.empty, dialect.access, *dialect.vacate)
    return tuple(dict.fromkeys(line for lines in every for line in lines if "{" in line))


@lru_cache(maxsize=64)
def _patterns(templates: Lines) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(_pattern(one)) for one in templates)


def _pattern(template: str) -> str:
    parts = re.split(r"\{(\w+)\}", template)
    return "".join(_FIELDS[part] if index % 2 else re.escape(part) for index, part in enumerate(parts))
