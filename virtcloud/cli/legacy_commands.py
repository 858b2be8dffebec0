"""The legacy commands of ``sbf``, for schedulers that manage networks by ID and hosts by name."""

from collections.abc import Callable
from typing import Any

import click

from virtcloud.cli.options import DurationType, open_client
from virtcloud.client.host_networks import HostNetworks, render_state_xml
from virtcloud.model.durations import MAX_LEASE_S
from virtcloud.model.values import ClusterKey, Name, VlanId

TIMEOUT_S = 60.0

timeout_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--timeout", type=DurationType(), default="60s", show_default=True, help="Maximum duration of the command."
)
lease_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--lease",
    type=DurationType(MAX_LEASE_S),
    default="31d",
    show_default=True,
    help="The network ends this long after its creation, or after the last call that added hosts.",
)


@click.command()
@click.argument("network", metavar="ID")
@click.option(
    "--site", "sites", multiple=True, metavar="SITE", help="A site of the network; may be repeated.  [default: all]"
)
@click.option("--owner", help="The network's owner.  [default: the caller]")
@lease_option
@timeout_option
@click.pass_context
def requestvlan(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    network: str,
    *,
    sites: tuple[str, ...],
    owner: str | None,
    lease: float,
    timeout: float,
) -> None:
    """Create the network with this ID and print its VLAN ID. If sites have different VLAN IDs, print one line per site.

    Idempotent. If the command fails after creating the network, the command deletes the network.

    Example: sbf requestvlan mine
    """
    view = HostNetworks(open_client(context), timeout).ensure(_parse_id(network), owner, sites, lease)
    click.echo(_format_vlans(view.vlans))


@click.command()
@click.argument("network", metavar="ID")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@lease_option
@timeout_option
@click.pass_context
def addhosts(context: click.Context, network: str, hosts: tuple[str, ...], lease: float, timeout: float) -> None:
    """Add each HOST to the network with this ID, and wait until all are active.

    If a host fails, the command removes the hosts that it added.

    Example: sbf addhosts mine brno-h1 praha-h1
    """
    HostNetworks(open_client(context), timeout).add(_parse_id(network), _parse_hosts(hosts), lease)


@click.command()
@click.argument("network", metavar="ID")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@timeout_option
@click.pass_context
def removehosts(context: click.Context, network: str, hosts: tuple[str, ...], timeout: float) -> None:
    """Remove each HOST from the network with this ID, and wait until the hosts have confirmed the removal. Idempotent.

    A network that SBF does not know and did not know earlier is an error, for example a mistyped ID.

    Example: sbf removehosts mine brno-h1 praha-h1
    """
    HostNetworks(open_client(context), timeout).remove(_parse_id(network), _parse_hosts(hosts))


@click.command()
@click.argument("network", metavar="ID")
@timeout_option
@click.pass_context
def releasevlan(context: click.Context, network: str, timeout: float) -> None:
    """Release the network with this ID. The network must have no hosts. Idempotent.

    Example: sbf releasevlan mine
    """
    HostNetworks(open_client(context), timeout).ensure_none(_parse_id(network))


@click.command()
@click.argument("network", metavar="ID")
@timeout_option
@click.pass_context
def forcereleasevlan(context: click.Context, network: str, timeout: float) -> None:
    """Remove all hosts from the network with this ID, and release the network. Idempotent.

    Example: sbf forcereleasevlan mine
    """
    HostNetworks(open_client(context), timeout).ensure_none(_parse_id(network), force=True)


@click.command()
@click.pass_context
def dumpstate(context: click.Context) -> None:
    """Print all networks as XML: <vlan ID="…"> with its <tag> and its <host>s.

    Example: sbf dumpstate
    """
    click.echo(render_state_xml(HostNetworks(open_client(context), TIMEOUT_S).all()))


def _parse_id(network: str) -> ClusterKey:
    """Validate an ID and convert it to lower case: cluster keys contain no upper case letters."""
    return ClusterKey(network.lower())


def _parse_hosts(hosts: tuple[str, ...]) -> tuple[Name, ...]:
    """Parse names of hosts in a batch system. A host's name in SBF is the part before the first dot."""
    return tuple(dict.fromkeys(Name(host.partition(".")[0].lower()) for host in hosts))


def _format_vlans(vlans: dict[Name, VlanId]) -> str:
    if len(set(vlans.values())) == 1:
        return str(next(iter(vlans.values())))
    return "\n".join(f"{site} {vlan}" for site, vlan in sorted(vlans.items()))
