"""Validated values: names, port references, addresses, VLAN IDs, MAC addresses. An invalid value raises BadInput."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from ipaddress import ip_interface
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from virtcloud.model.errors import BadInput


class PatternText(str):
    """A string that matches its class's ``pattern``. Raise BadInput for any other string."""

    __slots__ = ()
    pattern: ClassVar[str] = ".*"
    meaning: ClassVar[str] = "text"
    _fullmatch: ClassVar[Callable[[str], object]] = re.compile(pattern).fullmatch

    def __init_subclass__(cls) -> None:
        """Compile the pattern of a subclass."""
        cls._fullmatch = re.compile(cls.pattern).fullmatch

    def __new__(cls, value: str) -> Self:
        """Check ``value`` against the pattern. A value of this class is returned without a check."""
        if type(value) is cls:
            return value
        if not isinstance(value, str) or cls._fullmatch(value) is None:
            raise BadInput(f"expected {cls.meaning} ({cls.pattern}), got {value!r}")
        return str.__new__(cls, value)

    @classmethod
    def matches(cls, text: str) -> bool:
        """Return whether ``text`` matches the class's pattern."""
        return cls._fullmatch(text) is not None

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema by which pydantic validates a string as this value."""
        return core_schema.no_info_after_validator_function(
            cls, core_schema.str_schema(), serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, Any]:
        """Return the JSON schema: a string with a pattern."""
        return {"type": "string", "pattern": f"^{cls.pattern}$", "description": cls.meaning}


class Name(PatternText):
    """A name of a site, an element, a transport, a guest or an image."""

    __slots__ = ()
    pattern = r"[a-z][a-z0-9-]{0,31}"
    meaning = "a name: lower case, digits and dashes, a letter first, at most 32 characters"


class UserName(PatternText):
    """The name of a Unix user, or of the holder of a scheduler's or administrator's token.

    Names that the audit log uses for agents and other programs (``agent@brno-h1``) are invalid.
    """

    __slots__ = ()
    pattern = r"(?!agent@|scheduler@|job-starter@)[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"
    meaning = "a user name: letters, digits, '_', '.', '@' and '-', at most 64 characters"


class LoginName(PatternText):
    """The login name of a user inside guests (useradd(8))."""

    __slots__ = ()
    pattern = r"[a-z_][a-z0-9_-]{0,31}"
    meaning = "a login name: lower case, digits, '_' and '-', a letter or '_' first, at most 32 characters"


class ClusterKey(PatternText):
    """The caller's name for a cluster: the idempotency key of every call about the cluster.

    The maximum length allows every job ID of OpenPBS (PBS_MAXSVRJOBID): a number and the server's full name.
    """

    __slots__ = ()
    pattern = r"[a-z0-9][a-z0-9._-]{0,274}"
    meaning = "a cluster key: lower case, digits, '.', '_' and '-', at most 275 characters"


class PortName(PatternText):
    """A port's name in the notation of its element, such as ``eth0`` or ``GigabitEthernet1/0/1``."""

    __slots__ = ()
    pattern = r"[A-Za-z0-9][A-Za-z0-9/._:-]{0,62}"
    meaning = "a port name"


class DeviceAddress(PatternText):
    """The address of a device's management interface: ``host``, ``host:port``, an IPv6 address or ``[IPv6]:port``."""

    __slots__ = ()
    pattern = r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]]+)(:[0-9]{1,5})?"
    meaning = (
        "an address such as 192.0.2.10, switch.example.org:2222 or [2001:db8::1]:22, with a port from 1 to 65535 or "
        "without a port"
    )

    def __new__(cls, value: str) -> Self:
        """Check ``value``, and the port if ``value`` contains a port."""
        address = super().__new__(cls, value)
        host, port = address._parts
        is_port = not port or (port.isdecimal() and 1 <= int(port) <= 65535)  # noqa: PLR2004 - RFC 9293
        if not host or not is_port or not value.isprintable():
            raise BadInput(f"expected {cls.meaning}, got {value!r}")
        return address

    @property
    def host(self) -> str:
        """The host's name or address, without brackets."""
        return self._parts[0]

    @property
    def port(self) -> int | None:
        """The TCP port, or None."""
        port = self._parts[1]
        return int(port) if port else None

    @property
    def _parts(self) -> tuple[str, str]:
        if self.startswith("["):
            host, _, rest = self[1:].partition("]")
            return host, rest[1:]
        host, _, port = self.partition(":")
        return (self, "") if ":" in port else (host, port)


class PortRef(PatternText):
    """A port of an element, written ``element:port``."""

    __slots__ = ()
    pattern = rf"{Name.pattern}:{PortName.pattern}"
    meaning = "a port written element:port"

    @classmethod
    def of(cls, element: Name, port: PortName) -> Self:
        """Return the reference of an element's port. The names are not checked again."""
        return str.__new__(cls, f"{element}:{port}")

    @property
    def element(self) -> Name:
        """The element's name."""
        return str.__new__(Name, self.partition(":")[0])

    @property
    def port(self) -> PortName:
        """The port's name on the element."""
        return str.__new__(PortName, self.partition(":")[2])


class Mac(PatternText):
    """A unicast MAC address, lower case with colons (IEEE 802: the lowest bit of the first octet is clear)."""

    __slots__ = ()
    pattern = r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}"
    meaning = "a unicast MAC address such as 02:00:00:00:00:01"


class Address(PatternText):
    """An IPv4 or IPv6 address of an interface with its prefix length, such as ``10.0.0.1/24``."""

    __slots__ = ()
    pattern = r"[0-9A-Fa-f.:]+/[0-9]{1,3}"
    meaning = "an address with its prefix length such as 10.0.0.1/24 or fd00::1/64"

    def __new__(cls, value: str) -> Self:
        """Check ``value`` and return its canonical form."""
        try:
            return super().__new__(cls, str(ip_interface(super().__new__(cls, value))))
        except BadInput:
            raise
        except ValueError as error:
            raise BadInput(f"expected {cls.meaning}, got {value!r}") from error


class VlanId(int):
    """A usable VLAN ID: 1 to 4094 (IEEE 802.1Q reserves 0 and 4095)."""

    __slots__ = ()
    lowest: ClassVar[int] = 1
    highest: ClassVar[int] = 4094

    def __new__(cls, value: int) -> Self:
        """Check that ``value`` is within 1 to 4094."""
        vlan_id = super().__new__(cls, value)
        if not cls.lowest <= vlan_id <= cls.highest:
            raise BadInput(f"expected a VLAN ID from {cls.lowest} to {cls.highest}, got {value}")
        return vlan_id

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema by which pydantic validates an integer as this value."""
        return core_schema.no_info_after_validator_function(cls, core_schema.int_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, Any]:
        """Return the JSON schema: an integer within bounds."""
        return {"type": "integer", "minimum": cls.lowest, "maximum": cls.highest}


def _check_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"expected text in Unicode, got the lone surrogate {text[error.start]!r}") from error
    return text


UnicodeText = Annotated[str, AfterValidator(_check_unicode)]
"""Text that UTF-8 can represent. JSON can also contain the escapes of lone surrogates (``\\ud800``)."""


def _convert_to_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise BadInput(f"expected a time with a time zone such as 2026-11-20T07:12:03Z, got {moment.isoformat()}")
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise BadInput(f"expected a time in the years 1 to 9999 of UTC, got {moment.isoformat()}") from error


UtcTime = Annotated[datetime, AfterValidator(_convert_to_utc)]
"""A time with a time zone, converted to UTC. A time that would be outside the years 1 to 9999 in UTC is invalid."""


def format_utc(moment: datetime) -> str:
    """Format a moment for messages, such as ``2026-11-20 07:12:03 UTC``. The moment must already be in UTC."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
