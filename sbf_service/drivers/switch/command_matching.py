"""Matches commands with a dialect's templates: the VLAN IDs and ports of a command, and the blocks of commands. Pure.

SBF reports a refused command to the owners of the clusters that it concerns, and therefore finds the VLAN IDs or the
port in the command.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from sbf_service.drivers.switch.dialect import Commands, Dialect
from virtcloud.model.errors import BadInput
from virtcloud.model.switch_state import SwitchDifference
from virtcloud.model.vlans import VlanSet

EXIT_COMMANDS = frozenset({"exit", "quit"})
_FIELDS = {"port": r"(?P<port>\S.*?)", "name": r"\S+", "vlan": r"(?P<vlan>\d+)", "vlans": r"(?P<vlans>\d.*)"}


def find_command_vlans(dialect: Dialect, line: str, block: Sequence[str], difference: SwitchDifference) -> VlanSet:
    """Return the VLAN IDs that the command ``line`` names or, if there are none, those that its ``block`` names."""
    return _find_named_vlans(dialect, [line], difference) or _find_named_vlans(dialect, block, difference)


def find_command_ports(dialect: Dialect, line: str, block: Sequence[str]) -> frozenset[str]:
    """Return the port that the command ``line`` names or, without one, all ports that its ``block`` names."""
    return _find_named_ports(dialect, [line]) or _find_named_ports(dialect, block)


def is_enabling(dialect: Dialect, line: str) -> bool:
    """Return whether a command enables a port."""
    return any(pattern.fullmatch(line) for pattern in _compile_templates((dialect.enable,)))


def split_command_blocks(dialect: Dialect, commands: Sequence[str]) -> Iterator[list[str]]:
    """Yield blocks of commands.

    A block enters a mode, and ends with the command that leaves the mode. Consecutive commands that need no mode are
    also a block.
    """
    block: list[str] = []
    is_modeless = False
    for command in commands:
        if is_modeless and not _enters_no_mode(dialect, command):
            yield block
            block = []
        is_modeless = _enters_no_mode(dialect, command) if not block else is_modeless
        block.append(command)
        if command in EXIT_COMMANDS:
            yield block
            block = []
    if block:
        yield block


def split_before_enabling(dialect: Dialect, block: Sequence[str]) -> Iterator[list[str]]:
    """Yield the parts of a block, which begin at each command that enables a port."""
    part: list[str] = []
    for command in block:
        if part and is_enabling(dialect, command):
            yield part
            part = []
        part.append(command)
    yield part


def _enters_no_mode(dialect: Dialect, line: str) -> bool:
    templates = (template for group in _list_groups(dialect) if not EXIT_COMMANDS & {*group} for template in group)
    return any(pattern.fullmatch(line) for pattern in _compile_templates(tuple(templates)))


def _find_named_ports(dialect: Dialect, commands: Sequence[str]) -> frozenset[str]:
    named = (match.groupdict().get("port") for line in commands for match in _match_templates(dialect, line))
    return frozenset(dialect.ports.canonical(port) for port in named if port)


def _find_named_vlans(dialect: Dialect, commands: Sequence[str], difference: SwitchDifference) -> VlanSet:
    """Return the VLAN IDs that commands name.

    If the commands name no VLAN ID, return the VLAN IDs that the difference changes on the commands' ports.
    """
    matches = [match for line in commands for match in _match_templates(dialect, line)]
    vlans = VlanSet(vlan for match in matches for vlan in _parse_matched_vlans(dialect, match))
    return vlans or VlanSet(vlan for match in matches for vlan in _find_changed_vlans(dialect, match, difference))


def _parse_matched_vlans(dialect: Dialect, match: re.Match[str]) -> Iterable[int]:
    fields = match.groupdict()
    listed = fields.get("vlan") or fields.get("vlans") or ""
    try:
        return VlanSet.parse(listed.replace(dialect.to, "-").replace(dialect.comma, ","))
    except BadInput:  # a line can match several templates; here, the matched text is not a VLAN ID
        return ()


def _find_changed_vlans(dialect: Dialect, match: re.Match[str], difference: SwitchDifference) -> Iterator[int]:
    port = dialect.ports.canonical(match.groupdict().get("port") or "")
    for changes in (difference.add, difference.remove):
        for name, vlans in changes.items():
            if dialect.ports.canonical(name) == port:
                yield from vlans


def _match_templates(dialect: Dialect, line: str) -> Iterator[re.Match[str]]:
    for pattern in _compile_templates(_list_templates(dialect)):
        if match := pattern.fullmatch(line):
            yield match


def _list_templates(dialect: Dialect) -> Commands:
    return tuple(dict.fromkeys(line for group in _list_groups(dialect) for line in group if "{" in line))


def _list_groups(dialect: Dialect) -> tuple[Commands, ...]:
    vlans = (dialect.create, dialect.delete)
    trunks = (dialect.prepare, dialect.trunk, dialect.allow, dialect.remove, dialect.empty)
    return (*vlans, *trunks, dialect.access, *dialect.vacate, dialect.leave_vlans)


@lru_cache(maxsize=64)
def _compile_templates(templates: Commands) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(_template_pattern(template)) for template in templates)


def _template_pattern(template: str) -> str:
    parts = re.split(r"\{(\w+)\}", template)
    return "".join(_FIELDS[part] if index % 2 else re.escape(part) for index, part in enumerate(parts))
