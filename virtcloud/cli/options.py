"""Options of several commands: the connection to SBF, names, durations such as ``90s`` or ``1h30m``, and times."""

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import click

from virtcloud.jobs.request_values import ValueKind
from virtcloud.model.durations import parse_duration
from virtcloud.model.errors import BadInput
from virtcloud.model.values import Name, PatternText, UserName

if TYPE_CHECKING:
    from virtcloud.client.api import Client


T = TypeVar("T", bound=PatternText)


def open_client(context: click.Context) -> "Client":
    """Return a client with the address and token of the command line. The client is closed after the command."""
    from virtcloud.client.api import Client  # noqa: PLC0415 - the HTTP library is slow to load, and --help needs none

    root = context.find_root()
    client = root.meta.get(__name__)
    if not isinstance(client, Client):
        options = root.obj
        client = Client(
            options.url, token_file=options.token_file, ca_file=options.ca_file, certificate=options.certificate
        )
        root.meta[__name__] = client
        root.call_on_close(client.close)
    return client


def name_of(file: IO[str]) -> str:
    """Return the name that messages use for an input file."""
    return str(getattr(file, "name", "<stdin>"))


def split_names(values: Sequence[str], option: str, what: str) -> list[str]:
    """Split the values of a repeated option at commas. Pure.

    Raise BadInput for values without a name, such as the value of an empty variable. Such values must not
    have the effect of a missing option, which applies a command to all objects (``what``, in messages).
    """
    names = [name for value in values for name in value.split(",") if name]
    if values and not names:
        raise BadInput(f"{option}: expected names of {what}, got an empty text; without {option}: all {what}")
    return names


def parse_name(text: str, option: str) -> Name:
    """Return a name. For a malformed name, raise BadInput with the option."""
    return _parse(Name, text, option)


def parse_user(text: str, option: str) -> UserName:
    """Return a user name. For a malformed name, raise BadInput with the option."""
    return _parse(UserName, text, option)


def _parse(kind: type[T], text: str, option: str) -> T:
    try:
        return kind(text)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from error


class SizeType(click.ParamType):  # type: ignore[type-arg] # not generic in older releases of click
    """A size on the command line, in the notation of batch systems (``4gb``). The converted value is in MiB."""

    name = "size"

    def __init__(self, kind: ValueKind, bare_unit: str = "mb") -> None:
        """Create the type of sizes of this kind. A number without a unit has the unit ``bare_unit``: b or mb."""
        self.kind = kind
        self.bare_unit = bare_unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's signature
        """Parse the option's value."""
        try:
            return self.parse(str(value))
        except BadInput as error:
            self.fail(str(error), param, ctx)

    def parse(self, text: str) -> int:
        """Return a size in MiB. Raise BadInput for a text that is no size, or a size that is not allowed."""
        is_bare = text.isdecimal()
        try:
            return cast("int", self.kind.read(f"{text}{self.bare_unit}" if is_bare else text))
        except ValueError as error:
            unit = "bytes" if self.bare_unit == "b" else "MiB"
            reason = f": a number without a unit is in {unit}" if is_bare else ""
            raise BadInput(f"expected {self.kind.expected}, got {text!r}{reason}") from error


class WholeNumberType(click.IntRange):
    """A whole number on the command line, without its unit: 100 means 100 Mbit/s if ``unit`` is Mbit/s.

    The error for another value, such as 4gb, names the permitted values.
    """

    def __init__(self, minimum: int, maximum: int | None = None, unit: str = "") -> None:
        """Create the type of numbers from ``minimum`` to ``maximum``."""
        super().__init__(minimum, maximum)
        limits = f", at least {minimum}" if maximum is None else f" from {minimum} to {maximum}"
        self.expected = f"a whole number{f' of {unit}' if unit else ''}{limits}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's signature
        """Parse the option's value."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"expected {self.expected}, got {value!r}", param, ctx)


class NumberType(click.FloatRange):
    """A number on the command line, which may have a fraction. The error for another value names the limits."""

    def __init__(self, minimum: float, maximum: float) -> None:
        """Create the type of numbers from ``minimum`` to ``maximum``."""
        super().__init__(minimum, maximum)
        self.expected = f"a number from {minimum:g} to {maximum:g}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's signature
        """Parse the option's value."""
        try:
            return float(super().convert(value, param, ctx))
        except click.BadParameter:
            self.fail(f"expected {self.expected}, got {value!r}", param, ctx)


class DurationType(click.ParamType):  # type: ignore[type-arg] # not generic in older releases of click
    """A duration on the command line, such as ``1h30m``. The converted value is a number of seconds."""

    name = "duration"

    def __init__(self, maximum_s: float = math.inf) -> None:
        """Create the type of durations up to ``maximum_s``."""
        self.maximum_s = maximum_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's signature
        """Parse the option's value."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(value, self.maximum_s)
        except BadInput as error:
            self.fail(str(error), param, ctx)


class MomentType(click.ParamType):  # type: ignore[type-arg] # not generic in older releases of click
    """A time on the command line: ISO 8601 (local time if no time zone is given), or a duration before now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:  # noqa: ANN401 - click's signature
        """Parse the option's value."""
        if isinstance(value, datetime):
            return value
        with suppress(BadInput, OverflowError):
            return datetime.now().astimezone() - timedelta(seconds=parse_duration(value))
        try:
            return datetime.fromisoformat(value).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"expected a time such as 2026-11-20T08:00 or a duration such as 2h, got {value!r}", param, ctx)
