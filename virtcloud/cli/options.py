"""The connection to SBF that commands share, and options with durations such as ``90s``, ``4h`` or ``1h30m``."""

import re
from typing import Any

import click

from virtcloud.client.api import Client
from virtcloud.model.errors import BadInput

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def open_client(context: click.Context) -> Client:
    """Return the client for the address and token of the command line. The client is closed after the command."""
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


def parse_duration(text: str) -> float:
    """Parse a duration and return it in seconds. Raise BadInput if the text is malformed or the duration is zero."""
    parts = _PART.findall(text)
    seconds = sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds:
        raise BadInput(f"expected a duration such as 90s, 15m, 4h, 1d or 1h30m, got {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Format whole seconds with the two largest units: ``1h30m``."""
    remaining, parts = max(0, round(seconds)), []
    for unit, size in sorted(DURATION_UNITS.items(), key=lambda item: -item[1]):
        if unit != "w" and remaining >= size:
            parts.append(f"{remaining // size}{unit}")
            remaining %= size
    return "".join(parts[:2]) or "0s"


class DurationType(click.ParamType):  # type: ignore[type-arg] # not generic in older releases of click
    """A duration on the command line, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's signature
        """Parse the option's value."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(value)
        except BadInput as error:
            self.fail(str(error), param, ctx)
