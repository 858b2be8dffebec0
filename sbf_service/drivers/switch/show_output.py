"""Parsers of the output of switches: configurations, tables of VLANs, port lists, XML. Pure.

If a parser cannot parse a text, the parser raises ValueError with the faulty line or with the first line of the text.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Any, TypedDict

from sbf_service.drivers.switch.dialect import ALL_VLANS, DEFAULT_VLAN, PortNames, PortReading
from virtcloud.model.errors import BadInput
from virtcloud.model.port_use import AGGREGATED, ROUTED
from virtcloud.model.values import VlanId
from virtcloud.model.vlans import VlanSet

ALLOWED_VLANS = "switchport trunk allowed vlan "
DYNAMIC_LEGEND = "* indicates a Dynamic VLAN"
ROUTES = ("ip address", "ipv6 address", "vrf ", "ip vrf forwarding", "ip unnumbered")
AGGREGATES = ("channel-group", "lag ", "port link-aggregation")


class _UseFields(TypedDict):
    mode: str
    native: VlanId | None
    lines: tuple[str, ...]


def parse_vlans(text: str, line: str = "", to: str = "-") -> VlanSet:
    """Return the VLAN IDs of a list. ``to`` separates the first and the last VLAN ID of a range.

    Raise ValueError for an invalid list. The error contains ``line``, or the list if ``line`` is empty.
    """
    try:
        return VlanSet.parse(text.replace(to, "-").strip(" ,"))
    except BadInput as error:
        raise ValueError(line or text) from error


def quote_first_line(text: str) -> str:
    """Return the first line of an answer, for a message: further lines could contain secrets."""
    return next((line.strip()[:100] for line in text.splitlines() if line.strip()), "")


def split_blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each unindented line of a configuration with the indented lines below it."""
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


def parse_interfaces(text: str, names: PortNames) -> dict[str, list[str]]:
    """Return the lines of each interface by canonical name. Raise ValueError for a configuration without interfaces."""
    found = {
        names.canonical(head.removeprefix("interface ")): body
        for head, body in split_blocks(text)
        if head.startswith("interface ")
    }
    if not found:
        raise ValueError(f"no interface in {quote_first_line(text)!r}")
    return found


def parse_switchports(text: str, names: PortNames) -> dict[str, list[str]]:
    """Convert ``show interfaces switchport`` of an IOS-like platform to configuration lines, by canonical port name.

    Return an empty dictionary for other text. Raise ValueError for a port without a mode.
    """
    parts = re.split(r"^Name: +(\S+) *\n", text, flags=re.MULTILINE)
    return {names.canonical(name): _parse_switchport(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _parse_switchport(text: str) -> list[str]:
    fields = dict(re.findall(r"^ *([A-Z][^:\n]+): *(.*(?:\n {4,}[\d,-]+)*)", text, re.MULTILINE))
    if fields.get("Switchport") == "Disabled":
        return ["no switchport"]
    mode = fields.get("Administrative Mode", "").removeprefix("static ")
    if not mode:
        raise ValueError(quote_first_line(text))
    lines = [f"switchport mode {mode}"]
    if mode != "trunk" and "Access Mode VLAN" in fields:
        lines.append(f"switchport access vlan {fields['Access Mode VLAN'].split()[0]}")
    if mode != "access" and "Trunking Native Mode VLAN" in fields:
        lines.append(f"switchport trunk native vlan {fields['Trunking Native Mode VLAN'].split()[0]}")
    listed = "".join(fields.get("Trunking VLANs Enabled", "ALL").split())
    lines += [] if listed == "ALL" else [f"{ALLOWED_VLANS}{listed.lower()}"]
    is_member = "member of bundle" in fields.get("Operational Mode", "")
    return [*lines, "channel-group 1"] if is_member else lines


def find_arguments(lines: Iterable[str], start: str) -> list[str]:
    """Return the text after ``start`` in each line that begins with ``start``."""
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def parse_switchport_lines(lines: Sequence[str], implicit_mode: str) -> PortReading:
    """Return the `PortReading` of one port from the port's ``switchport`` lines on an IOS-like platform.

    A trunk without a list of allowed VLANs allows all VLANs. ``implicit_mode`` is the mode of a port without a
    ``switchport mode`` line.
    """
    mode = next(iter(find_arguments(lines, "switchport mode ")), implicit_mode).partition(" ")[0]
    untagged = parse_vlans_after(lines, "switchport access vlan ", "switchport trunk native vlan ")
    off = "shutdown" in lines
    listed = reduce(_apply_allowed, find_arguments(lines, ALLOWED_VLANS), ALL_VLANS)
    dormant = None if listed == ALL_VLANS else listed
    routed = "no switchport" in lines
    member = bool(find_arguments(lines, "channel-group "))
    used = parse_use(lines, "routed" if routed else mode, "switchport trunk native vlan ")
    if mode not in ("trunk", "dynamic") or routed:
        access = None if routed else parse_access_vlan(lines, "switchport access vlan ")
        return PortReading(untagged=untagged, access=access, off=off, dormant=dormant, member=member, **used)
    ready, is_open = mode == "trunk" and listed != ALL_VLANS, listed == ALL_VLANS
    return PortReading(
        listed, ready=ready, open=is_open, untagged=untagged, off=off, dormant=dormant, member=member, **used
    )


def parse_use(lines: Sequence[str], mode: str, native: str) -> _UseFields:
    """Return mode, native VLAN and lines of a port. ``native`` is the beginning of the line with the native VLAN.

    The mode is ``mode``, except for a routed port (`ROUTED`) and for a member of an aggregate (`AGGREGATED`).
    """
    if any(line.startswith(ROUTES) for line in lines):
        mode = ROUTED
    if any(line.startswith(AGGREGATES) for line in lines):
        mode = AGGREGATED
    return {"mode": mode, "native": max(parse_vlans_after(lines, native), default=None), "lines": tuple(lines)}


def parse_access_vlan(lines: Iterable[str], start: str) -> VlanId:
    """Return the VLAN ID of the line that begins with ``start``, or the default VLAN."""
    return max(parse_vlans_after(lines, start) or DEFAULT_VLAN)


def parse_vlans_after(lines: Iterable[str], *starts: str) -> VlanSet:
    """Return the VLAN IDs of the lines that begin with one of ``starts``, one for each line."""
    found = [(start, words) for start in starts for words in find_arguments(lines, start)]
    return VlanSet(vlan for start, words in found for vlan in parse_vlans(words.split()[0], start + words))


def _apply_allowed(allowed: VlanSet, words: str) -> VlanSet:
    verb, _, listed = words.partition(" ")
    if words in ("none", "all"):
        return VlanSet() if words == "none" else ALL_VLANS
    if verb in ("add", "except"):
        vlans = parse_vlans(listed, ALLOWED_VLANS + words)
        return allowed | vlans if verb == "add" else ALL_VLANS - vlans
    return parse_vlans(words, ALLOWED_VLANS + words)


def parse_vlan_table(text: str) -> dict[int, str]:
    """Return the VLANs' names by ID, from a table that starts with ``VLAN Name``.

    A row can continue in indented lines. EOS marks a dynamic VLAN, which a protocol created, with an asterisk.
    """
    head = re.search(r"^(VLAN +)(Name +)\S.*\n[- ]+\n", text, re.MULTILINE)
    if head is None:
        raise ValueError(f"no table of VLANs in {quote_first_line(text)!r}")
    name = slice(len(head[1]), len(head[1]) + len(head[2]))
    names = {}
    for line in text[head.end() :].splitlines():
        row = re.match(r"(\d{1,4})\*? +\S", line)
        if row:
            names[int(row[1])] = line[name].strip()
        elif line.strip() not in ("", DYNAMIC_LEGEND) and not line.startswith(" " * 20):
            raise ValueError(line)
    return names


def parse_internal_vlans(text: str) -> VlanSet:
    """Return the VLAN IDs in ``show vlan internal usage``."""
    return VlanSet(int(vlan) for vlan in re.findall(r"^\s*(\d{1,4})\s+\S", text, re.MULTILINE))


def expand_port_list(text: str) -> Iterator[str]:
    """Yield the ports of a list such as ``1-4,A1-A3,Trk1``. Raise ValueError for a list of any other form."""
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        start, end = (re.fullmatch(r"(\D*(?:\d+/)*\D*)(\d+)", port) for port in (first, last or first))
        if start is None or end is None or (dash and end[1] not in ("", start[1])):
            raise ValueError(text)
        yield from (f"{start[1]}{number}" for number in range(int(start[2]), int(end[2]) + 1))


def build_port_readings(members: Sequence[tuple[str, str, int]], tagged: str, untagged: str) -> dict[str, PortReading]:
    """Return the `PortReading` of each port in ``members`` (kind, port, VLAN ID).

    ``tagged`` and ``untagged`` are the kinds in the device's spelling, such as ``T`` and ``U``.
    """
    by_port: dict[str, dict[str, set[int]]] = {}
    for kind, port, vlan in members:
        by_port.setdefault(port, {}).setdefault(kind, set()).add(vlan)
    return {
        port: _build_port_reading(VlanSet(kinds.get(tagged, ())), VlanSet(kinds.get(untagged, ())))
        for port, kinds in by_port.items()
    }


def _build_port_reading(tagged: VlanSet, untagged: VlanSet) -> PortReading:
    access = max(untagged) if len(untagged) == 1 and not tagged else None
    native = max(untagged, default=None) if tagged else None
    lines = tuple(f"untagged {vlan}" for vlan in untagged)
    mode = "trunk" if tagged else "access" if untagged else ""
    return PortReading(tagged, ready=True, untagged=untagged, access=access, mode=mode, native=native, lines=lines)


def parse_xml(text: str) -> Any:  # noqa: ANN401 - lxml has no types
    """Parse XML without resolving entities. If the text is not XML, raise ValueError with its first line."""
    from lxml import etree  # noqa: PLC0415 - slow to load, and only needed for some platforms

    try:
        return etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError as error:
        raise ValueError(quote_first_line(text)) from error


def extract_text(element: Any) -> str:  # noqa: ANN401
    """Return the text of an element and its descendants on one line."""
    return " ".join("".join(element.itertext()).split())
