"""The old verbs of ``sbf``, for schedulers that ask by them: networks by ID, hosts by name."""

from collections.abc import Callable
from typing import Any

import click

from virtcloud.cli.options import DurationType, open_client
from virtcloud.client.host_networks import HostNetworks, render_state_xml
from virtcloud.model.values import ClusterKey, Name, VlanId

TIMEOUT_S = 60.0

timeout_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--timeout", type=DurationType(), default="60s", show_default=True, help="How long it may take."
)
lease_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--lease",
    type=DurationType(),
    default="31d",
    show_default=True,
    help="When it ends by itself, counted from the last call that gave it hosts.",
)


@click.command()
@click.argument("network", metavar="ID")
@click.option("--site", "sites", multiple=True, metavar="SITE", help="A site that it reaches.  [default: all]")
@click.option("--owner", help="Whose it is.  [default: the caller]")
@lease_option
@timeout_option
@click.pass_context
def requestvlan(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context,
    /,
    network: str,
    *,
    sites: tuple[str, ...],
    owner: str | None,
    lease: float,
    timeout: float,
) -> None:
    """Make the network ID and print its VLAN number. Where sites have others, a line for each: site and number.

    The same again changes nothing and prints the same. If it fails, nothing of it is left.

    Example: sbf requestvlan mine
    """
    view = HostNetworks(open_client(context), timeout).ensure(_id(network), owner, sites, lease)
    click.echo(_numbers(view.vlans))


@click.command()
@click.argument("network", metavar="ID")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@lease_option
@timeout_option
@click.pass_context
def addhosts(context: click.Context, network: str, hosts: tuple[str, ...], lease: float, timeout: float) -> None:
    """Bring the network ID to each HOST, and return when it is there. If it fails, those added are removed again.

    Example: sbf addhosts mine brno-h1 praha-h1
    """
    HostNetworks(open_client(context), timeout).add(_id(network), _elements(hosts), lease)


@click.command()
@click.argument("network", metavar="ID")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@timeout_option
@click.pass_context
def removehosts(context: click.Context, network: str, hosts: tuple[str, ...], timeout: float) -> None:
    """Take the network ID from each HOST, and return when it is gone there. May be repeated.

    Example: sbf removehosts mine brno-h1 praha-h1
    """
    HostNetworks(open_client(context), timeout).remove(_id(network), _elements(hosts))


@click.command()
@click.argument("network", metavar="ID")
@timeout_option
@click.pass_context
def releasevlan(context: click.Context, network: str, timeout: float) -> None:
    """Give the network ID up, which has no hosts any more. May be repeated.

    Example: sbf releasevlan mine
    """
    HostNetworks(open_client(context), timeout).ensure_none(_id(network))


@click.command()
@click.argument("network", metavar="ID")
@timeout_option
@click.pass_context
def forcereleasevlan(context: click.Context, network: str, timeout: float) -> None:
    """Give the network ID up, and take it from all hosts that it still has. May be repeated.

    Example: sbf forcereleasevlan mine
    """
    HostNetworks(open_client(context), timeout).ensure_none(_id(network), force=True)


@click.command()
@click.pass_context
def dumpstate(context: click.Context) -> None:
    """Print all networks as XML: <vlan ID="…"> with its <tag> and its <host>s.

    Example: sbf dumpstate
    """
    click.echo(render_state_xml(HostNetworks(open_client(context), TIMEOUT_S).all()))


def _id(network: str) -> ClusterKey:
    """Read an ID; schedulers write job names into it, whose case SBF does not keep."""
    return ClusterKey(network.lower())


def _elements(hosts: tuple[str, ...]) -> tuple[Name, ...]:
    """Read hosts as a batch system names them: SBF knows them by the first part of their names."""
    return tuple(dict.fromkeys(Name(host.partition(".")[0].lower()) for host in hosts))


def _numbers(vlans: dict[Name, VlanId]) -> str:
    if len(set(vlans.values())) == 1:
        return str(next(iter(vlans.values())))
    return "\n".join(f"{site} {number}" for site, number in sorted(vlans.items()))
