"""What commands that ask SBF share: the client, and the option for JSON."""

from collections.abc import Callable
from typing import Any

import click

from virtcloud.cluster import Client

as_json: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, as the HTTP API gives it."
)


def client(context: click.Context) -> Client:
    """Give a client for the address and the token that the command line says, closed when the command ends."""
    asking = context.find_root().obj
    made = Client(asking.url, token_file=asking.token_file, ca_file=asking.ca_file, certificate=asking.certificate)
    context.call_on_close(made.close)
    return made
