"""Dialects from other Python packages (entry points in the group ``virtcloud.switch_dialects``), and their checks.

An entry point's name is the platform's name in a topology, and its object is a :class:`Dialect`. SBF reports and
ignores a faulty plug-in.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from string import Formatter

from sbf_service.drivers.switch.dialect import Commands, Dialect, SwitchReading
from virtcloud.model.message_text import printable

GROUP = "virtcloud.switch_dialects"
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
REQUIRED_FIELDS = ("title", "netmiko", "show", "create", "delete", "allow", "remove", "save")
PLACEHOLDERS: Mapping[str, frozenset[str]] = {
    "create": frozenset({"vlan", "name"}),
    "delete": frozenset({"vlan", "vlans"}),
    "prepare": frozenset({"port"}),
    "trunk": frozenset({"port"}),
    "allow": frozenset({"port", "vlan", "vlans"}),
    "remove": frozenset({"port", "vlan", "vlans"}),
    "empty": frozenset({"port", "vlan", "vlans"}),
    "access": frozenset({"port", "vlan", "vlans"}),
    "vacate": frozenset({"port", "vlan"}),
    "leave_vlans": frozenset({"port"}),
}


@dataclass(frozen=True, slots=True)
class DialectPlugin:
    """One entry point: the platform's dialect, or the ``fault`` that makes the plug-in unusable."""

    platform: str
    source: str
    dialect: Dialect | None = None
    fault: str = ""

    def __str__(self) -> str:
        """Return the message about a plug-in that cannot be used."""
        return f"platform {self.platform} of {self.source} cannot be used: {self.fault}"


@cache
def load_installed_plugins(taken: frozenset[str]) -> tuple[DialectPlugin, ...]:
    """Return all plug-ins of this installation, loaded once for each process.

    ``taken``: the names of SBF's own platforms.
    """
    return load_plugins(entry_points(group=GROUP), taken)


def load_plugins(found: Iterable[EntryPoint], taken: Collection[str]) -> tuple[DialectPlugin, ...]:
    """Load and check plug-ins.

    A plug-in whose name is in ``taken``, or is used twice, is faulty and is not loaded.
    """
    entries = sorted(found, key=lambda entry: (entry.name, _describe_source(entry)))
    names = [entry.name for entry in entries]
    return tuple(_load_plugin(entry, taken, names.count(entry.name)) for entry in entries)


def _load_plugin(entry: EntryPoint, taken: Collection[str], count: int) -> DialectPlugin:
    plugin = DialectPlugin(printable(entry.name), _describe_source(entry))
    fault = _check_name(entry.name, taken, count)
    dialect = None
    if not fault:
        try:
            dialect = entry.load()
            fault = "; ".join(_check_plugin(dialect))
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything, and SBF continues without the plug-in
            fault = f"{entry.value} does not load: {type(error).__name__}: {error}"
    if fault or not isinstance(dialect, Dialect):
        return DialectPlugin(plugin.platform, plugin.source, fault=printable(" ".join(fault.split())))
    return DialectPlugin(plugin.platform, plugin.source, dialect)


def _check_name(name: str, taken: Collection[str], count: int) -> str:
    if not NAME.fullmatch(name):
        return "expected a name of lower-case letters, digits and underscores"
    if name in taken:
        return "SBF has a platform of this name: choose another name"
    return "several plug-ins have this name: uninstall all but one" if count > 1 else ""


def _check_plugin(dialect: object) -> Iterator[str]:
    if not isinstance(dialect, Dialect):
        yield f"expected a Dialect, got {type(dialect).__name__}"
        return
    yield from find_dialect_faults(dialect)
    yield from find_netmiko_faults(dialect)


def find_netmiko_faults(dialect: Dialect) -> Iterator[str]:
    """Yield the faults of a dialect's fields ``netmiko`` and ``privileged``. Imports Netmiko, which takes a second."""
    from netmiko.base_connection import BaseConnection  # noqa: PLC0415 - slow to load
    from netmiko.ssh_dispatcher import CLASS_MAPPER  # noqa: PLC0415

    known: type[BaseConnection] | None = CLASS_MAPPER.get(dialect.netmiko)
    if known is None:
        yield f"field 'netmiko' is {dialect.netmiko!r}: expected a device type from Netmiko's PLATFORMS.md"
    elif dialect.privileged and known.check_enable_mode is BaseConnection.check_enable_mode:
        remedy = "choose a device type with an enable mode, such as cisco_ios"
        yield f"field 'privileged' needs 'enable', which Netmiko's {dialect.netmiko!r} never sends: {remedy}"


def _describe_source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"


def find_dialect_faults(dialect: Dialect) -> tuple[str, ...]:
    """Return one sentence for each fault of a dialect's fields and parser, without connecting to a device. Pure."""
    return tuple(_check_dialect(dialect))


def _check_dialect(dialect: Dialect) -> Iterator[str]:
    yield from (f"field {name!r} is empty" for name in REQUIRED_FIELDS if not getattr(dialect, name))
    for name, allowed in PLACEHOLDERS.items():
        yield from _check_template(name, _flatten_template(getattr(dialect, name)), allowed)
    for name in ("create", "delete"):
        if not any("{vlan" in line for line in getattr(dialect, name)):
            yield f"field {name!r} contains no VLAN: expected the placeholder {{vlan}}"
    if dialect.errors.search(""):
        yield "field 'errors' matches an empty answer: every command would count as refused"
    if bool(dialect.access) != bool(dialect.vacate):
        yield "expected both fields 'access' and 'vacate', or neither"
    if unknown := [command for command in dialect.instead if command not in dialect.show]:
        yield f"field 'instead' contains {unknown[0]!r}: expected a command of field 'show'"
    yield from _check_parser(dialect)


def _flatten_template(template: Commands | tuple[Commands, ...]) -> Commands:
    return tuple(line for part in template for line in ((part,) if isinstance(part, str) else part))


def _check_template(name: str, lines: Commands, allowed: frozenset[str]) -> Iterator[str]:
    for line in lines:
        try:
            placeholders = {name for _, name, _, _ in Formatter().parse(line) if name is not None}
        except ValueError as error:
            yield f"field {name!r} contains {line!r}: expected a template: {error}"
            continue
        if placeholders - allowed:
            expected = ", ".join(f"{{{placeholder}}}" for placeholder in sorted(allowed))
            yield f"field {name!r} contains {line!r}: expected only the placeholders {expected}"


def _check_parser(dialect: Dialect) -> Iterator[str]:
    for answer in ("", "what is this"):
        try:
            reading: object = dialect.see([answer] * len(dialect.show))
        except ValueError:
            continue
        except Exception as error:  # noqa: BLE001 - foreign code may raise anything
            yield f"field 'see' raises {type(error).__name__} for the answers {answer!r}: expected ValueError"
            continue
        if not isinstance(reading, SwitchReading):
            yield f"field 'see' returns {type(reading).__name__}: expected SwitchReading"
