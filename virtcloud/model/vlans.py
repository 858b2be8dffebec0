"""Sets of VLAN IDs, written as ranges: ``100-199,300``."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from virtcloud.model.errors import BadInput
from virtcloud.model.values import VlanId


class _ValidVlanIds(dict[int, VlanId]):
    """A cache of valid VLAN IDs. SBF often creates large sets, and a look-up is faster than a validation."""

    def __missing__(self, vlan_id: int) -> VlanId:
        """Check and store a VLAN ID. Raise BadInput for an invalid VLAN ID."""
        valid = VlanId(vlan_id)
        self[valid] = valid
        return valid


_VALID = _ValidVlanIds()
MAX_CHARACTERS = 32_768
"""Maximum length of ranges as text. A list of all VLAN IDs, one by one, has 19,362 characters."""
_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
"""A VLAN ID or a range. ``int()`` would read ``10_20``, a typing error for ``10-20``, as 1020."""


class VlanSet(frozenset[VlanId]):
    """A set of VLAN IDs. ``str()`` formats a set as ranges; :meth:`parse` parses ranges. The empty set is ``''``."""

    __slots__ = ()

    def __new__(cls, vlan_ids: Iterable[int] = ()) -> Self:
        """Create a set. Raise BadInput for an invalid VLAN ID."""
        return cls._checked(map(_VALID.__getitem__, vlan_ids))

    @classmethod
    def _checked(cls, vlan_ids: Iterable[VlanId]) -> Self:
        return super().__new__(cls, vlan_ids)

    @classmethod
    def parse(cls, text: str) -> "VlanSet":
        """Parse ranges such as ``100-199,300``. If a part is invalid, raise BadInput that quotes the part."""
        return _parse_ranges(text)

    def ranges(self) -> list[tuple[VlanId, VlanId]]:
        """Return the maximal ranges of consecutive VLAN IDs, ascending, as (first, last)."""
        ordered = sorted(self)
        breaks = [(a, b) for a, b in pairwise(ordered) if b != a + 1]
        firsts = ordered[:1] + [b for _, b in breaks]
        lasts = [a for a, _ in breaks] + ordered[-1:]
        return list(zip(firsts, lasts, strict=True))

    def __str__(self) -> str:
        """Format the set as ranges."""
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges())

    def __repr__(self) -> str:
        """Format the set as an expression that creates the set."""
        return f"VlanSet.parse({str(self)!r})"

    def __iter__(self) -> Iterator[VlanId]:
        """Iterate in ascending order, so that everything derived from a set is reproducible."""
        return iter(sorted(super().__iter__()))

    def __or__(self, other: Iterable[int]) -> "VlanSet":  # type: ignore[override]
        """Return the union."""
        return self._checked(super().__or__(_as_set(other)))

    def __and__(self, other: Iterable[int]) -> "VlanSet":  # type: ignore[override]
        """Return the intersection."""
        return self._checked(super().__and__(_as_set(other)))

    def __sub__(self, other: Iterable[int]) -> "VlanSet":  # type: ignore[override]
        """Return the VLAN IDs of this set that are not in ``other``."""
        return self._checked(super().__sub__(other if isinstance(other, frozenset) else frozenset(other)))

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema by which pydantic parses and writes ranges."""
        return core_schema.no_info_plain_validator_function(
            cls._coerce, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, Any]:
        """Return the JSON schema: a string of ranges."""
        return {"type": "string", "description": "VLAN ranges", "examples": ["100-199,300"]}

    @classmethod
    def _coerce(cls, value: object) -> "VlanSet":
        if isinstance(value, cls):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return cls([value])
        if not isinstance(value, str):
            raise BadInput(f"expected VLAN ranges such as '100-199,300', got {value!r}")
        return cls.parse(value)


def _as_set(vlan_ids: Iterable[int]) -> VlanSet:
    return vlan_ids if isinstance(vlan_ids, VlanSet) else VlanSet(vlan_ids)


@lru_cache(maxsize=64)
def _parse_ranges(text: str) -> VlanSet:
    """Parse ranges. The results are cached, because many sites have the same pool."""
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"expected VLAN ranges of at most {MAX_CHARACTERS} characters, got {len(text)} characters")
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return VlanSet(vlan_id for vlan_ids in _merge(map(_parse_range, parts)) for vlan_id in vlan_ids)


def _merge(ranges: Iterable[range]) -> Iterator[range]:
    """Yield disjoint ranges in ascending order that together contain the same VLAN IDs as ``ranges``."""
    end = 0
    for each in sorted(ranges, key=lambda each: each.start):
        yield range(max(each.start, end), each.stop)
        end = max(end, each.stop)


def _parse_range(part: str) -> range:
    found = _RANGE.fullmatch(part)
    if found is None:
        raise BadInput(f"expected VLAN ranges such as '100-199,300', got {part!r}")
    low, high = VlanId(int(found[1])), VlanId(int(found[2] or found[1]))
    if high < low:
        raise BadInput(f"expected a range with the lower VLAN ID first, got {part!r}")
    return range(low, high + 1)
