"""Sets of VLAN IDs, written as ranges: ``100-199,300``."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from virtcloud.model.errors import BadInput
from virtcloud.model.values import VlanId


class _Checked(dict[int, VlanId]):
    """Each number once: sets of thousands are made for every claim, and finding is quicker than checking."""

    def __missing__(self, number: int) -> VlanId:
        """Check a number when it is first met; raises :class:`BadInput`."""
        found = VlanId(number)
        self[found] = found
        return found


_CHECKED = _Checked()


class VlanSet(frozenset[VlanId]):
    """A set of VLAN IDs. ``str()`` formats its ranges and :meth:`parse` parses them; the empty set is ``''``."""

    __slots__ = ()

    def __new__(cls, numbers: Iterable[int] = ()) -> Self:
        """Create a set; raise BadInput for an invalid VLAN ID."""
        return cls._checked(map(_CHECKED.__getitem__, numbers))

    @classmethod
    def _checked(cls, numbers: Iterable[VlanId]) -> Self:
        """Create a set of VLAN IDs that are valid already, without checking each one again."""
        return super().__new__(cls, numbers)

    @classmethod
    def parse(cls, text: str) -> "VlanSet":
        """Parse ranges such as ``100-199,300``. Raise BadInput that quotes the invalid part."""
        return _parsed(text)

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
        """Format the set as an expression that creates it."""
        return f"VlanSet.parse({str(self)!r})"

    def __iter__(self) -> Iterator[VlanId]:
        """Iterate in ascending order, so that everything derived from a set is reproducible."""
        return iter(sorted(super().__iter__()))

    def __or__(self, other: Iterable[int]) -> "VlanSet":  # type: ignore[override]
        """Return the union."""
        return self._checked(super().__or__(_set_of(other)))

    def __and__(self, other: Iterable[int]) -> "VlanSet":  # type: ignore[override]
        """Return the intersection."""
        return self._checked(super().__and__(_set_of(other)))

    def __sub__(self, other: Iterable[int]) -> "VlanSet":  # type: ignore[override]
        """Return the VLAN IDs of this set that are not in ``other``."""
        return self._checked(super().__sub__(frozenset(other)))

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


def _set_of(numbers: Iterable[int]) -> VlanSet:
    return numbers if isinstance(numbers, VlanSet) else VlanSet(numbers)


@lru_cache(maxsize=64)
def _parsed(text: str) -> VlanSet:
    """Parse ranges. The results are cached because many sites have the same pool and pools are read often."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return VlanSet(number for part in parts for number in _numbers(part))


def _numbers(part: str) -> range:
    first, dash, last = part.partition("-")
    try:
        low, high = VlanId(int(first)), VlanId(int(last if dash else first))
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(f"expected VLAN ranges such as '100-199,300', got {part!r}") from error
    if high < low:
        raise BadInput(f"expected a range with the lower VLAN ID first, got {part!r}")
    return range(low, high + 1)
