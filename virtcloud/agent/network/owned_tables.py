"""Tables of nftables that the agent owns: the commands that create them, and the check of a listed table. Pure.

The comment of each rule is a digest of the rule's text. The digest shows whether a rule was changed. A table is
replaced in one transaction. Named counters keep their values, because ``flush table`` removes only rules (nft(8)). If
only addresses change, only the address sets are changed.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

NO_TABLE = "the table is missing"


@dataclass(frozen=True, slots=True)
class OwnedChain:
    """A chain. For a base chain, ``hook`` declares the hook, such as ``filter hook input priority 0; policy drop``."""

    rules: tuple[str, ...]
    hook: str = ""


@dataclass(frozen=True, slots=True)
class OwnedSet:
    """A set of addresses of one IP version. Rules refer to the set as ``@NAME``."""

    version: int
    addresses: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        """The nftables type of the set's elements: "ipv4_addr" or "ipv6_addr"."""
        return f"ipv{self.version}_addr"


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """A table. ``counters`` are names of counters. ``sets`` are declarations of sets whose elements the rules add."""

    family: str
    name: str
    chains: Mapping[str, OwnedChain]
    counters: tuple[str, ...] = field(default=())
    sets: tuple[str, ...] = field(default=())
    address_sets: Mapping[str, OwnedSet] = field(default_factory=dict)
    """Sets whose addresses the agent writes, by name. A table with ``address_sets`` has no ``sets``."""

    def render(self, listing: Mapping[str, Any] | None = None) -> str:
        """Return commands that replace the table's rules and sets in one transaction.

        Wanted counters keep their values. ``listing`` is the existing table as in `find_faults`. The commands also
        delete the unwanted chains and counters in ``listing`` and, if `sets` is empty, the unwanted sets in
        ``listing``.
        """
        counters = "".join(f" counter {name} {{ }}\n" for name in self.counters)
        sets = "".join(f" {declaration}\n" for declaration in self.sets)
        sets += "".join(f" set {name} {{ type {one.kind}; }}\n" for name, one in self.address_sets.items())
        hooks = "".join(f" chain {name} {{ {_declare(chain.hook)} }}\n" for name, chain in self.chains.items())
        rules = "".join(_render_chain(name, chain) for name, chain in self.chains.items())
        table = f"table {self.family} {self.name}"
        removals = "".join(self._render_removals(listing)) if listing is not None else ""
        elements = "".join(
            f"flush set {self.family} {self.name} {name}\n{self._render_elements(name, one.addresses, 'add')}"
            for name, one in self.address_sets.items()
        )
        return f"{table} {{\n{counters}{sets}{hooks}}}\nflush {table}\n{removals}{table} {{\n{rules}}}\n{elements}"

    def _render_elements(self, name: str, addresses: Iterable[str], action: str) -> str:
        listed = ", ".join(sorted(addresses))
        return f"{action} element {self.family} {self.name} {name} {{ {listed} }}\n" if listed else ""

    def render_set_changes(self, listing: Mapping[str, Any]) -> str:
        """Return commands that correct the address sets in ``listing``, or "" if all address sets are correct."""
        found = _list_sets(listing)
        return "".join(
            self._render_elements(name, wanted.addresses - found[name].addresses, "add")
            + self._render_elements(name, found[name].addresses - wanted.addresses, "delete")
            for name, wanted in self.address_sets.items()
            if name in found
        )

    def _render_removals(self, listing: Mapping[str, Any]) -> Iterator[str]:
        wanted: dict[str, Container[str]] = {"chain": self.chains, "counter": self.counters}
        if not self.sets:
            wanted["set"] = self.address_sets
        for item in listing["nftables"]:
            kind, found = next(iter(item.items()))
            if kind in wanted and found["name"] not in wanted[kind]:
                yield f"delete {kind} {self.family} {self.name} {found['name']}\n"

    def render_removal(self) -> str:
        """Return commands that delete the table. The commands also succeed if the table is absent."""
        return f"table {self.family} {self.name} {{ }}\ndelete table {self.family} {self.name}\n"

    def find_faults(self, listing: Mapping[str, Any] | None) -> Iterator[str]:
        """Yield the differences between this table and ``listing``, the output of ``nft --json list table``.

        ``listing`` is None if the table is missing. Counters, ``sets``, and the addresses in address sets
        are not compared.
        """
        if listing is None:
            yield NO_TABLE
            return
        found = [next(iter(item.items())) for item in listing["nftables"]]
        if any("flags" in one for kind, one in found if kind == "table"):
            yield "the table has flags, for example dormant"
        present = _list_sets(listing)
        for name, wanted in self.address_sets.items():
            if name not in present or present[name].version != wanted.version:
                yield f"the set {name} is missing or was changed"
        hooks = {one["name"]: _describe_hook(one) for kind, one in found if kind == "chain"}
        for name, chain in self.chains.items():
            observed = [one.get("comment") for kind, one in found if kind == "rule" and one["chain"] == name]
            if observed != [digest_rule(rule) for rule in chain.rules]:
                yield f"the rules of chain {name} were changed"
            elif hooks.get(name) != _describe_wanted_hook(chain.hook):
                yield f"the hook of chain {name} was changed"
        if extra := hooks.keys() - self.chains.keys():
            yield f"the chains {', '.join(sorted(extra))} are not wanted"


def _list_sets(listing: Mapping[str, Any]) -> dict[str, OwnedSet]:
    """Return the address sets in a listing, by name. A set with flags is not an address set, and is skipped."""
    return {
        one["name"]: OwnedSet(int(one["type"][3]), frozenset(map(_format_element, one.get("elem", ()))))
        for one in (item["set"] for item in listing["nftables"] if "set" in item)
        if str(one["type"]) in {"ipv4_addr", "ipv6_addr"} and "flags" not in one
    }


def _format_element(element: Any) -> str:  # noqa: ANN401 - JSON
    """Return the address of a set's element. An element with a comment is an object with its address in ``val``."""
    return str(ip_address(element["elem"]["val"] if isinstance(element, dict) else element))


def digest_rule(rule: str) -> str:
    """Return the comment of a rule: the first digits of the SHA-256 of the rule's text."""
    return sha256(rule.encode()).hexdigest()[:12]


def _declare(hook: str) -> str:
    return f"type {hook};" if hook else ""


def _render_chain(name: str, chain: OwnedChain) -> str:
    return f" chain {name} {{\n{''.join(_render_rules(chain.rules))} }}\n"


def _render_rules(rules: Sequence[str]) -> Iterator[str]:
    return (f'  {rule} comment "{digest_rule(rule)}"\n' for rule in rules)


def _describe_hook(chain: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(chain.get(key) for key in ("type", "hook", "policy"))


def _describe_wanted_hook(hook: str) -> tuple[str | None, ...]:
    """Return TYPE, HOOK and POLICY of ``TYPE hook HOOK priority NUMBER; policy POLICY``.

    If ``hook`` is "", return None for all three.
    """
    if not hook:
        return None, None, None
    kind, _, name, *_, policy = hook.replace(";", "").split()
    return kind, name, policy
