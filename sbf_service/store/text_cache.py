"""A cache of parsed texts, limited by the total length of the texts."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final, Generic, TypeVar

LARGEST_SHARE: Final = 8
"""A text that is longer than the cache's capacity divided by this number is not cached, because it would replace the
texts of many clusters."""
Parsed = TypeVar("Parsed")


class TextCache(Generic[Parsed]):
    """Parses texts, and keeps the results for the most recently used texts. Thread-safe.

    The length of the texts is a measure of memory: a parsed document needs several times the memory of its text.
    ``functools.lru_cache`` limits only the number of texts, but a cluster's text can have 200 bytes or 4 MiB.
    """

    def __init__(self, parse: Callable[[str], Parsed], capacity: int) -> None:
        """Create an empty cache. ``capacity`` is the maximum total length of the cached texts, in characters.

        ``parse`` returns an immutable object, because all callers get the same object.
        """
        self._parse, self._capacity = parse, capacity
        self._results: OrderedDict[str, Parsed] = OrderedDict()
        self._lock = Lock()
        self.length = 0
        """The total length of the cached texts."""

    def parse(self, text: str) -> Parsed:
        """Return the parsed text. Raise the errors of the parser, which are not cached."""
        with self._lock:
            if text in self._results:
                self._results.move_to_end(text)
                return self._results[text]
        result = self._parse(text)
        if len(text) * LARGEST_SHARE <= self._capacity:
            self._add(text, result)
        return result

    def _add(self, text: str, result: Parsed) -> None:
        """Add a result, and remove the results that were not used for the longest time."""
        with self._lock:
            if text not in self._results:  # another thread may have parsed the text meanwhile
                self._results[text] = result
                self.length += len(text)
            while self.length > self._capacity:
                self.length -= len(self._results.popitem(last=False)[0])
