"""What commands that ask SBF share: the client, and the option for JSON."""

from collections.abc import Callable
from typing import Any

import click

from virtcloud.cluster import Client

as_json: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, as the HTTP API gives it."
)


def client(context: click.Context) -> Client:
    """Give a client for the address on the command line, closed when the command ends."""
    made = Client(context.find_root().obj)
    context.call_on_close(made.close)
    return made
