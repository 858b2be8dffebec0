"""A secret that nobody sees by accident."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or a key. Its ``str`` and ``repr`` are ``***``; :meth:`reveal` gives it, at the point of use only."""

    _value: str

    def reveal(self) -> str:
        """Give the secret itself."""
        return self._value

    def __repr__(self) -> str:
        """Hide it."""
        return "***"

    __str__ = __repr__
