"""The types of attributes and resources (hook guide, "Types"), and the exceptions of PBS's module ("Exceptions")."""

import re
from typing import Any, Optional


class EventIncompatibleError(AttributeError):
    """The event does not have this parameter."""


class UnsetAttributeNameError(Exception):
    """No attribute has this name."""


class BadAttributeValueTypeError(Exception):
    """The value has the wrong type for the attribute."""


class BadAttributeValueError(Exception):
    """The attribute does not accept this value, or the attribute is read-only."""


class UnsetResourceNameError(Exception):
    """No resource has this name."""


class BadResourceValueTypeError(Exception):
    """The value has the wrong type for the resource."""


class BadResourceValueError(Exception):
    """The resource does not accept this value."""


EXCEPTIONS = (
    EventIncompatibleError,
    UnsetAttributeNameError,
    BadAttributeValueTypeError,
    BadAttributeValueError,
    UnsetResourceNameError,
    BadResourceValueTypeError,
    BadResourceValueError,
)


class PbsText:
    """A value that PBS stores as text. As in PBS, two values are equal only if they are the same object."""

    attribute = ""
    shape: Optional[str] = None
    is_resource = False

    def __init__(self, value: Any) -> None:
        """Accept text, or a value of this type. Raise PBS's error for an invalid format."""
        text = str(value)
        if self.shape is not None and re.fullmatch(self.shape, text) is None:
            error = BadResourceValueError if self.is_resource else BadAttributeValueError
            raise error("input value %s not of the right format for '%s'" % (text, self.attribute))
        self._value = text

    def __str__(self) -> str:
        """Return the text."""
        return self._value

    __repr__ = __str__


class select(PbsText):
    """Chunks of resources: ``2:ncpus=4:mem=8gb+1:ncpus=8``."""

    attribute = "select"
    shape = r"[^+:\s][^\s]*"
    is_resource = True


class place(PbsText):
    """The placement of chunks on hosts: ``scatter:excl``."""

    attribute = "place"
    _word = r"(free|pack|scatter|vscatter|excl|exclhost|shared|group=[^:]+)"
    shape = "%s(:%s)*" % (_word, _word)
    is_resource = True


class hold_types(PbsText):
    """Holds of a job: letters ``u``, ``o``, ``s``, ``p``, or ``n`` for none. ``+`` and ``-`` add and remove letters."""

    attribute = "Hold_Types"
    shape = r"[uosp]+|n"

    def __add__(self, other: Any) -> "hold_types":
        """Return the holds of both values."""
        return hold_types("".join(dict.fromkeys(self._value + str(other))))

    def __sub__(self, other: Any) -> "hold_types":
        """Return the holds without the holds of ``other``, or ``n`` if no hold remains."""
        return hold_types("".join(letter for letter in self._value if letter not in str(other)) or "n")


class exec_host(PbsText):
    """Hosts and their processors: ``n1/0*4+n2/0*4``."""

    attribute = "exec_host"


class vchunk:
    """One chunk of a job's ``exec_vnode``."""

    def __init__(self, text: str) -> None:
        """Parse ``n1:ncpus=4:mem=8388608kb``."""
        words = text.split(":")
        self.vnode_name = words[0]
        self.chunk_resources = dict(word.split("=", 1) for word in words[1:])


class exec_vnode(PbsText):
    """The vnodes of a job: ``(n1:ncpus=4)+(n2:ncpus=4)``. ``chunks`` contains the parsed chunks."""

    attribute = "exec_vnode"

    def __init__(self, value: Any) -> None:
        """Parse the chunks."""
        super().__init__(value)
        self.chunks = [vchunk(chunk.strip("()")) for chunk in self._value.split("+")]


class pbs_bool(PbsText):
    """A boolean value, written as 1 or 0."""

    _yes = ("true", "t", "y", "1")
    _no = ("false", "f", "n", "0")

    def __init__(self, value: Any) -> None:
        """Accept a bool, 0, 1, or a word such as ``True``. Raise BadAttributeValueError for any other value."""
        word = str(value).lower()
        if word not in self._yes + self._no:
            raise BadAttributeValueError("input value %s not of the right format for 'Rerunable'" % value)
        self._value = "1" if word in self._yes else "0"

    def __bool__(self) -> bool:
        """Return the value."""
        return self._value == "1"

    def __int__(self) -> int:
        """Return 1 or 0."""
        return int(self._value)


class pbs_int(int):
    """An integer."""


class pbs_str(str):
    """Text."""

    __slots__ = ()


class pbs_float(float):
    """A floating-point number."""


class pbs_list(PbsText):
    """Words separated by commas."""


class duration(int):
    """A duration in seconds, parsed from a number or ``[[H:]M:]S``. ``str()`` returns the original text."""

    def __new__(cls, value: Any) -> "duration":
        """Parse a duration. Raise BadResourceValueError if the format is invalid."""
        text = str(value)
        if re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text) is None:
            raise BadResourceValueError("input value %s not of the right format for 'walltime'" % text)
        seconds = 0.0
        for word in text.split(":"):
            seconds = seconds * 60 + float(word)
        parsed = int.__new__(cls, int(seconds + 0.5))
        parsed.text = text  # type: ignore[attr-defined]
        return parsed

    def __str__(self) -> str:
        """Return the text from which the duration was parsed."""
        return str(self.text)  # type: ignore[attr-defined]


WORD_BYTES = 8
UNITS = ("", "k", "m", "g", "t", "p")


class size:
    """An amount of memory or storage: ``pbs.size("4gb")``, ``pbs.size(1024)`` (bytes).

    Sizes support +, - and comparison, and cannot be dictionary keys.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any) -> None:
        """Parse a size. Raise TypeError if the format is invalid."""
        match = re.fullmatch(r"(\d+)([kmgtp]?)([bw]?)", str(value).lower())
        if match is None:
            raise TypeError("%s: bad value for _size" % value)
        self._unit = UNITS.index(match.group(2))
        self._count = int(match.group(1)) * (WORD_BYTES if match.group(3) == "w" else 1)

    def _bytes(self) -> int:
        return self._count << 10 * self._unit

    def _add(self, other: Any, sign: int) -> Any:
        if not isinstance(other, (size, int)):
            return NotImplemented
        operand = size(other)
        unit = min(self._unit, operand._unit)
        total = self._bytes() + sign * operand._bytes()
        return size("%d%sb" % (total >> 10 * unit, UNITS[unit]))

    def __add__(self, other: Any) -> Any:
        """Return the sum, in the smaller of the two units."""
        return self._add(other, 1)

    def __sub__(self, other: Any) -> Any:
        """Return the difference, in the smaller of the two units."""
        return self._add(other, -1)

    def __eq__(self, other: object) -> bool:
        """Compare with a size or a number of bytes. Values of other types are not equal."""
        return isinstance(other, (size, int)) and self._bytes() == size(other)._bytes()

    def __lt__(self, other: Any) -> bool:
        """Compare bytes."""
        return self._bytes() < size(other)._bytes()

    def __le__(self, other: Any) -> bool:
        """Compare bytes."""
        return self._bytes() <= size(other)._bytes()

    def __gt__(self, other: Any) -> bool:
        """Compare bytes."""
        return self._bytes() > size(other)._bytes()

    def __ge__(self, other: Any) -> bool:
        """Compare bytes."""
        return self._bytes() >= size(other)._bytes()

    def __str__(self) -> str:
        """Return number and unit, such as ``4gb``."""
        return "%d%sb" % (self._count, UNITS[self._unit])

    __repr__ = __str__


def size_to_kbytes(value: Any) -> int:
    """Return a size in KiB, rounded up. Raise TypeError if the format of ``value`` is invalid."""
    return -(-size(value)._bytes() // 1024)


STATE_LETTERS = {"T": 0, "Q": 1, "H": 2, "W": 3, "R": 4, "E": 5, "X": 6, "B": 7, "M": 8, "F": 9, "S": 400, "U": 410}


class job_state(int):
    """A job's state as a number. The constructor also accepts the letter of the state."""

    def __new__(cls, value: Any) -> "job_state":
        """Accept the number or the letter. The state of an unknown letter is -1."""
        return int.__new__(cls, STATE_LETTERS.get(value, -1) if isinstance(value, str) else value)


class vnode_state(int):
    """The bits of a vnode's state."""


def text_type(name: str) -> type:
    """Return a new text type with this name. The type accepts any text."""
    return type(name, (PbsText,), {"__doc__": "Text of an attribute.", "attribute": name})


NAMED = {
    name: text_type(name)
    for name in (
        "acl args checkpoint depend email_list group_list join_path keep_files license_count mail_points name "
        "node_group_key path path_list priority project range route_destinations sandbox software staging_list "
        "state_count user_list version"
    ).split()
}
"""Types whose values are not checked."""
