"""What is wrong with a dialect, as far as that shows without a device. Pure."""

from collections.abc import Iterator, Mapping
from string import Formatter

from sbf_service.drivers.dialects.dialect import Dialect, Lines, Seen

REQUIRED = ("title", "netmiko", "show", "create", "delete", "allow", "remove", "save")
BLANKS: Mapping[str, frozenset[str]] = {
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
"""The placeholders that each template may have."""


def faults(dialect: Dialect) -> tuple[str, ...]:
    """Return what is wrong with a dialect, one sentence for each fault."""
    return tuple(_faults(dialect))


def _faults(dialect: Dialect) -> Iterator[str]:
    yield from (f"{name} is empty" for name in REQUIRED if not getattr(dialect, name))
    for name, allowed in BLANKS.items():
        yield from _template_faults(name, _lines(getattr(dialect, name)), allowed)
    for name in ("create", "delete"):
        if not any("{vlan" in line for line in getattr(dialect, name)):
            yield f"{name} names no VLAN: expected {{vlan}} in it"
    if dialect.errors.search(""):
        yield "errors matches an empty answer: every command would seem refused"
    if bool(dialect.access) != bool(dialect.vacate):
        yield "access and vacate go together: expected both or neither"
    if strange := [command for command in dialect.instead if command not in dialect.show]:
        yield f"instead has {strange[0]!r}, which is no command of show"
    yield from _reading_faults(dialect)


def _lines(template: Lines | tuple[Lines, ...]) -> Lines:
    return tuple(line for part in template for line in ((part,) if isinstance(part, str) else part))


def _template_faults(name: str, lines: Lines, allowed: frozenset[str]) -> Iterator[str]:
    for line in lines:
        try:
            blanks = {blank for _, blank, _, _ in Formatter().parse(line) if blank is not None}
        except ValueError as error:
            yield f"{name} has {line!r}, which is no template: {error}"
            continue
        if blanks - allowed:
            expected = ", ".join(f"{{{one}}}" for one in sorted(allowed))
            yield f"{name} has {line!r}: expected no placeholder but {expected}"


def _reading_faults(dialect: Dialect) -> Iterator[str]:
    """Check that ``see`` answers nonsense as it must: whatever else it raised would end a worker's turn."""
    for answer in ("", "what is this"):
        try:
            found: object = dialect.see([answer] * len(dialect.show))
        except ValueError:
            continue
        except Exception as error:  # noqa: BLE001 - anything may come of foreign code
            yield f"see raises {type(error).__name__} for the answers {answer!r}: expected ValueError"
            continue
        if not isinstance(found, Seen):
            yield f"see returns {type(found).__name__}: expected Seen"
