"""What commands that ask SBF share: the client, and the option for JSON.

Durations such as ``90s``, ``4h``, ``1d`` or ``1h30m``.
"""

import re
from collections.abc import Callable
from typing import Any

import click

from virtcloud.client.api import Client
from virtcloud.model.errors import BadInput

json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, as the HTTP API gives it."
)


def open_client(context: click.Context) -> Client:
    """Give a client for the address and the token that the command line says, closed when the command ends."""
    asking = context.find_root().obj
    made = Client(asking.url, token_file=asking.token_file, ca_file=asking.ca_file, certificate=asking.certificate)
    context.call_on_close(made.close)
    return made


DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")


def parse_duration(text: str) -> float:
    """Give seconds; raises :class:`BadInput` when it is no duration above zero."""
    parts = _PART.findall(text)
    seconds = sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds:
        raise BadInput(f"expected a duration such as 90s, 15m, 4h, 1d or 1h30m, got {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """Write whole seconds with the two largest units: ``1h30m``."""
    left, words = max(0, round(seconds)), []
    for unit, size in sorted(DURATION_UNITS.items(), key=lambda one: -one[1]):
        if unit != "w" and left >= size:
            words.append(f"{left // size}{unit}")
            left %= size
    return "".join(words[:2]) or "0s"


class DurationType(click.ParamType):  # type: ignore[type-arg]  # older ones are not generic
    """A duration on the command line, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Parse it."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(value)
        except BadInput as error:
            self.fail(str(error), param, ctx)
