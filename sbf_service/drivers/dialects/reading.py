"""Understanding what switches show; whatever is not understood raises ValueError with the line."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TypedDict

from sbf_service.drivers.dialects.dialect import DEFAULT, EVERY, PortNames, PortSeen
from virtcloud.model.errors import BadInput
from virtcloud.model.port_use import AGGREGATED, ROUTED
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

ALLOWED = "switchport trunk allowed vlan "
ROUTES = ("ip address", "ipv6 address", "vrf ", "ip vrf forwarding", "ip unnumbered")
JOINS = ("channel-group", "lag ", "port link-aggregation")


class _Use(TypedDict):
    mode: str
    native: VlanId | None
    lines: tuple[str, ...]


def vlan_set(text: str, line: str = "", to: str = "-") -> VlanSet:
    """Read a list of VLANs; ``line`` is what is quoted when it cannot be read."""
    try:
        return VlanSet.parse(text.replace(to, "-").strip(" ,"))
    except BadInput as error:
        raise ValueError(line or text) from error


def beginning(text: str) -> str:
    """Give the first line, for messages: more of a configuration could have secrets in it."""
    return next((line.strip()[:100] for line in text.splitlines() if line.strip()), "")


def blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Split a configuration into what stands at the margin and what is indented below it."""
    head, body = "", list[str]()
    for line in text.splitlines():
        if line[:1].isspace():
            body.append(line.strip())
        elif line.strip():
            if head:
                yield head, body
            head, body = line.strip(), []
    if head:
        yield head, body


def interfaces(text: str, names: PortNames) -> dict[str, list[str]]:
    """Give the lines of each interface by its canonical name; raises ValueError when there is none."""
    found = {
        names.canonical(head.removeprefix("interface ")): body
        for head, body in blocks(text)
        if head.startswith("interface ")
    }
    if not found:
        raise ValueError(f"no interface in {beginning(text)!r}")
    return found


def switchports(text: str, names: PortNames) -> dict[str, list[str]]:
    """Read ``show interfaces switchport`` of an IOS-like as the lines that the configuration would have for each port.

    Returns nothing for another kind of text; raises ValueError for a port without a mode.
    """
    parts = re.split(r"^Name: +(\S+) *\n", text, flags=re.MULTILINE)
    return {names.canonical(name): _switchport(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _switchport(text: str) -> list[str]:
    found = dict(re.findall(r"^ *([A-Z][^:\n]+): *(.*(?:\n {4,}[\d,-]+)*)", text, re.MULTILINE))
    if found.get("Switchport") == "Disabled":
        return ["no switchport"]
    mode = found.get("Administrative Mode", "").removeprefix("static ")
    if not mode:
        raise ValueError(beginning(text))
    lines = [f"switchport mode {mode}"]
    if mode != "trunk" and "Access Mode VLAN" in found:
        lines.append(f"switchport access vlan {found['Access Mode VLAN'].split()[0]}")
    if mode != "access" and "Trunking Native Mode VLAN" in found:
        lines.append(f"switchport trunk native vlan {found['Trunking Native Mode VLAN'].split()[0]}")
    listed = "".join(found.get("Trunking VLANs Enabled", "ALL").split())
    lines += [] if listed == "ALL" else [f"{ALLOWED}{listed.lower()}"]
    bundled = "member of bundle" in found.get("Operational Mode", "")
    return [*lines, "channel-group 1"] if bundled else lines


def starting(lines: Iterable[str], start: str) -> list[str]:
    """Give what follows ``start`` in the lines that have it."""
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def trunk(lines: Sequence[str], implicit_mode: str) -> PortSeen:
    """Understand the ``switchport`` lines of one port of an IOS-like; a list that is not there means all VLANs.

    ``implicit_mode`` is what a port without a mode does.
    """
    mode = next(iter(starting(lines, "switchport mode ")), implicit_mode).partition(" ")[0]
    untagged = numbers_after(lines, "switchport access vlan ", "switchport trunk native vlan ")
    off = "shutdown" in lines
    listed = reduce(_said, starting(lines, ALLOWED), EVERY)
    dormant = None if listed == EVERY else listed
    routed = "no switchport" in lines
    member = bool(starting(lines, "channel-group "))
    used = use_of(lines, "routed" if routed else mode, "switchport trunk native vlan ")
    if mode not in ("trunk", "dynamic") or routed:
        number = None if routed else access_number(lines, "switchport access vlan ")
        return PortSeen(untagged=untagged, access=number, off=off, dormant=dormant, member=member, **used)
    ready, is_open = mode == "trunk" and listed != EVERY, listed == EVERY
    return PortSeen(
        listed, ready=ready, open=is_open, untagged=untagged, off=off, dormant=dormant, member=member, **used
    )


def use_of(lines: Sequence[str], mode: str, native: str) -> _Use:
    """Return the fields that tell a port's use: its mode, its native VLAN after ``native``, its configuration."""
    if any(line.startswith(ROUTES) for line in lines):
        mode = ROUTED
    if any(line.startswith(JOINS) for line in lines):
        mode = AGGREGATED
    return {"mode": mode, "native": max(numbers_after(lines, native), default=None), "lines": tuple(lines)}


def access_number(lines: Iterable[str], start: str) -> VlanId:
    """Give the number of an access port: the default one unless a line says another."""
    return max(numbers_after(lines, start) or DEFAULT)


def numbers_after(lines: Iterable[str], *starts: str) -> VlanSet:
    """Give the numbers that single-number commands name."""
    found = [(start, words) for start in starts for words in starting(lines, start)]
    return VlanSet(number for start, words in found for number in vlan_set(words.split()[0], start + words))


def _said(allowed: VlanSet, words: str) -> VlanSet:
    """Follow one ``switchport trunk allowed vlan`` line."""
    verb, _, numbers = words.partition(" ")
    if words in ("none", "all"):
        return VlanSet() if words == "none" else EVERY
    if verb in ("add", "except"):
        read = vlan_set(numbers, ALLOWED + words)
        return allowed | read if verb == "add" else EVERY - read
    return vlan_set(words, ALLOWED + words)


def vlan_table(text: str) -> dict[int, str]:
    """Read the names of a table that starts with ``VLAN Name``, by number: rows may go on below, indented."""
    head = re.search(r"^(VLAN +)(Name +)\S.*\n[- ]+\n", text, re.MULTILINE)
    if head is None:
        raise ValueError(f"no table of VLANs in {beginning(text)!r}")
    name = slice(len(head[1]), len(head[1]) + len(head[2]))
    names = {}
    for line in text[head.end() :].splitlines():
        row = re.match(r"(\d{1,4}) +\S", line)
        if row:
            names[int(row[1])] = line[name].strip()
        elif line.strip() and not line.startswith(" " * 20):
            raise ValueError(line)
    return names


def used_numbers(text: str) -> VlanSet:
    """Read ``show vlan internal usage``: a number at the start of each row that has one."""
    return VlanSet(int(number) for number in re.findall(r"^\s*(\d{1,4})\s+\S", text, re.MULTILINE))


def spread(text: str) -> Iterator[str]:
    """Give the single ports of a list such as ``1-4,A1-A3,Trk1``."""
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start, end = (re.fullmatch(r"(\D*(?:\d+/)*\D*)(\d+)", one) for one in (first, last or first))
        if start is None or end is None or (dash and end[1] not in ("", start[1])):
            raise ValueError(text)
        yield from (f"{start[1]}{number}" for number in range(int(start[2]), int(end[2]) + 1))


def members_seen(members: Sequence[tuple[str, str, int]], tagged: str, untagged: str) -> dict[str, PortSeen]:
    """Turn (how, port, number) of a device that puts ports into VLANs into what each port has."""
    found: dict[str, dict[str, set[int]]] = {}
    for how, port, number in members:
        found.setdefault(port, {}).setdefault(how, set()).add(number)
    return {
        port: _member(VlanSet(ways.get(tagged, ())), VlanSet(ways.get(untagged, ()))) for port, ways in found.items()
    }


def _member(tagged: VlanSet, untagged: VlanSet) -> PortSeen:
    only = max(untagged) if len(untagged) == 1 and not tagged else None
    native = max(untagged, default=None) if tagged else None
    lines = tuple(f"untagged {number}" for number in untagged)
    mode = "trunk" if tagged else "access" if untagged else ""
    return PortSeen(tagged, ready=True, untagged=untagged, access=only, mode=mode, native=native, lines=lines)
