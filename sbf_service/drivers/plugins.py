"""Dialects from outside the tree: entry points of installed distributions, in the group ``virtcloud.switch_dialects``.

The name of an entry point is the platform's name in a topology, its object a :class:`Dialect`. A plug-in is checked
when it is loaded; one that cannot be used is kept with the reason, and stops nothing.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from sbf_service.drivers.dialects.dialect import Dialect
from sbf_service.drivers.dialects.faults import faults
from virtcloud.model.errors import printable

GROUP = "virtcloud.switch_dialects"
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point: the platform that it provides, or the ``fault`` for which it is not used."""

    platform: str
    source: str
    dialect: Dialect | None = None
    fault: str = ""

    def __str__(self) -> str:
        """Return which plug-in cannot be used, of which distribution, and why."""
        return f"platform {self.platform} of {self.source} cannot be used: {self.fault}"


@cache
def installed(taken: frozenset[str]) -> tuple[Plugin, ...]:
    """Return all plug-ins of this installation; they are loaded once for each process."""
    return loaded(entry_points(group=GROUP), taken)


def loaded(found: Iterable[EntryPoint], taken: Collection[str]) -> tuple[Plugin, ...]:
    """Load and check plug-ins. A name among ``taken``, or that two plug-ins have, is refused."""
    entries = sorted(found, key=lambda one: (one.name, _source(one)))
    names = [one.name for one in entries]
    return tuple(_plugin(one, taken, names.count(one.name)) for one in entries)


def _plugin(entry: EntryPoint, taken: Collection[str], count: int) -> Plugin:
    plugin = Plugin(printable(entry.name), _source(entry))
    fault = _name_fault(entry.name, taken, count)
    dialect = None
    if not fault:
        try:
            dialect = entry.load()
            fault = "; ".join(_faults(dialect))
        except Exception as error:  # noqa: BLE001 - anything may come of foreign code, and SBF goes on without it
            fault = f"{entry.value} does not load: {type(error).__name__}: {error}"
    if fault or not isinstance(dialect, Dialect):
        return Plugin(plugin.platform, plugin.source, fault=printable(" ".join(fault.split())))
    return Plugin(plugin.platform, plugin.source, dialect)


def _name_fault(name: str, taken: Collection[str], count: int) -> str:
    if not NAME.fullmatch(name):
        return "expected a name of lower-case letters, digits and underscores"
    if name in taken:
        return "SBF has a platform of this name: choose another one"
    return "several plug-ins have this name: uninstall all but one" if count > 1 else ""


def _faults(dialect: object) -> Iterator[str]:
    if not isinstance(dialect, Dialect):
        yield f"expected a Dialect, got {type(dialect).__name__}"
        return
    yield from faults(dialect)
    yield from netmiko_faults(dialect)


def netmiko_faults(dialect: Dialect) -> Iterator[str]:
    """Yield what is wrong with a dialect's name of Netmiko; loads Netmiko, which takes a second."""
    from netmiko.base_connection import BaseConnection  # noqa: PLC0415 - slow to load
    from netmiko.ssh_dispatcher import CLASS_MAPPER  # noqa: PLC0415

    known: type[BaseConnection] | None = CLASS_MAPPER.get(dialect.netmiko)
    if known is None:
        yield f"netmiko has {dialect.netmiko!r}, which Netmiko does not know: choose a name from its PLATFORMS.md"
    elif dialect.privileged and known.check_enable_mode is BaseConnection.check_enable_mode:
        cure = "choose a platform with an enable mode, such as cisco_ios"
        yield f"privileged needs 'enable', which Netmiko's {dialect.netmiko!r} never sends: {cure}"


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
