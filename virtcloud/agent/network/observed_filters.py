"""The table of the guests' filters as read from the kernel, and its differences from `guest_filter_rules`. Pure."""

import json
from collections.abc import Iterator, Mapping
from ipaddress import IPv6Address
from typing import Any, NamedTuple

from virtcloud.agent.network.guest_filter_rules import (
    FAMILY,
    INGRESS,
    RATE_SETS,
    RULES,
    SETS,
    TABLE,
    SetElement,
    is_verdict_map,
)
from virtcloud.agent.network.owned_tables import digest_rule


class ObservedFilters(NamedTuple):
    """The observed table of a host.

    ``elements`` are the elements of all sets. ``faults`` describes each difference from this agent's rules.
    If ``foreign`` is true, virtcloud did not create the table.
    """

    elements: frozenset[SetElement] = frozenset()
    faults: tuple[str, ...] = ()
    foreign: bool = False


_OWN_SETS = {"ports", "guests"}
_FOREIGN = ObservedFilters(faults=(f"virtcloud did not create the table {FAMILY} {TABLE}",), foreign=True)
_FLAGS = "the table has flags, for example dormant"


def parse_flagged_table(text: str) -> ObservedFilters:
    """Parse the output of ``nft list table`` for a table with flags. Determine only whether the table is foreign."""
    _, *lines = text.splitlines()
    parts = [line.split() for line in lines if line.endswith("{")]
    sets = {name for kind, name, *_ in parts if kind == "set"}
    return _FOREIGN if parts and not sets >= _OWN_SETS else ObservedFilters(faults=(_FLAGS,))


def parse_table(listing: Mapping[str, Any]) -> ObservedFilters:
    """Parse the table as ``nft --json list table`` prints it (libnftables-json(5)).

    The table counts as foreign if it has content, but lacks the set ``ports`` or the set ``guests``.
    """
    found = [next(iter(item.items())) for item in listing["nftables"]]
    sets: dict[str, list[Any]] = {one["name"]: one.get("elem", []) for kind, one in found if _has_elements(kind, one)}
    if not sets.keys() >= _OWN_SETS and any(kind not in {"metainfo", "table"} for kind, _ in found):
        return _FOREIGN
    elements = frozenset(
        (name, *(_parse_mapping(one) if is_verdict_map(name) else _parse_element(one)))
        for name in SETS
        for one in sets.get(name, [])
    )
    return ObservedFilters(elements, tuple(_find_faults(found, sets)))


def _has_elements(kind: str, item: Mapping[str, Any]) -> bool:
    """Return whether an item is a set, or a verdict map if `SETS` has a verdict map of this name."""
    if kind in {"set", "map"} and is_verdict_map(item["name"]):
        return bool(item.get("map") == "verdict")
    return kind == "set"


def _parse_mapping(element: tuple[Any, Any]) -> Iterator[str]:
    """Yield the parts of a verdict map's element as texts. The verdict is the last part."""
    key, verdict = element
    yield from _parse_element(key)
    action, target = next(iter(verdict.items()))
    yield f"{action} {target['target']}" if target else action


def _parse_element(element: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the parts of an element as texts. libnftables prints small integers as JSON numbers.

    In elements that this agent adds, each part is a string, an integer or a prefix. Another program can add an element
    with another kind of part, such as a range. For such a part, yield the part's JSON text. For an element with a
    comment, yield the JSON text of the whole element. These texts equal no wanted part.
    """
    for part in element["concat"] if isinstance(element, dict) and "concat" in element else [element]:
        if isinstance(part, dict) and "prefix" in part:
            yield f"{_format_address(part['prefix']['addr'])}/{part['prefix']['len']}"
        elif isinstance(part, dict):
            yield json.dumps(part)
        else:
            yield f"{part:#x}" if isinstance(part, int) else _format_address(str(part))


def _format_address(text: str) -> str:
    """Return an address in Python's format: ``::102:304`` for the text ``::1.2.3.4``, which libnftables prints."""
    return str(IPv6Address(text)) if ":" in text and "." in text else text


def _find_faults(found: list[tuple[str, Any]], sets: Mapping[str, object]) -> Iterator[str]:
    hooks = {one["name"]: (one.get("hook"), one.get("policy")) for kind, one in found if kind == "chain"}
    for name, rules in RULES.items():
        observed = [one.get("comment") for kind, one in found if kind == "rule" and one["chain"] == name]
        if observed != [digest_rule(rule) for rule in rules]:
            yield f"the rules of chain {name} were changed"
    if hooks.get(INGRESS) != ("prerouting", "accept"):
        yield f"chain {INGRESS} does not receive the frames"
    if any("flags" in one for kind, one in found if kind == "table"):
        yield _FLAGS
    for name in (*SETS, *RATE_SETS):
        if name not in sets:
            yield f"the set {name} is missing"
