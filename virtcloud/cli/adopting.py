"""What an administrator is shown before ports in other use are given to SBF."""

from collections.abc import Iterable, Sequence

import click

from virtcloud.model.errors import BadInput
from virtcloud.model.port_use import PortState, PortView


def chosen(switch: str, views: Iterable[PortView], ports: Sequence[str]) -> list[PortView]:
    """Return the views of these ports. Raise BadInput for a port that is not managed or that SBF has already."""
    known = {one.port.lower(): one for one in views}
    found = []
    for port in ports:
        view = known.get(port.lower())
        if view is None:
            names = ", ".join(one.port for one in known.values())
            raise BadInput(f"expected a managed port of switch {switch} ({names}), got {port}")
        if view.state is PortState.TAKEN:
            raise BadInput(f"port {view.port} of {switch} is SBF's already: it need not be adopted")
        found.append(view)
    return found


def tell(views: Iterable[PortView]) -> None:
    """Print what each port is used for and what becomes of it."""
    for one in views:
        click.echo(f"{one.port}: {one.use} {one.effect}" if one.effect else f"{one.port}: {one.use}")
