"""``virtcloud element``: switches, provider edges, hosts and gateways, and whether they carry what they must."""

import click

from virtcloud.cli import confirmation, differences, printing
from virtcloud.cli.element_try import try_command
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import json_option, open_client
from virtcloud.model.errors import BadInput, ElementError
from virtcloud.model.port_use import PortRelease
from virtcloud.model.views import ElementView
from virtcloud.model.vlans import VlanSet

PORTS = ("port", "state", "found", "before SBF", "SBF")
COLUMNS = ("element", "kind", "site", "wanted", "confirmed", "last seen", "carries", "trouble")


@click.group(cls=SummaryGroup)
def element() -> None:
    """Look at switches, provider edges, hosts and gateways: what they must carry, and what they were seen to carry.

    Example: virtcloud element list
    """


element.add_command(try_command)


@element.command("list")
@json_option
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """List all elements with their two revisions; one is as it should be when they are equal.

    Example: virtcloud element list
    """
    views = open_client(context).sbf.elements()
    printing.print_json_list(views) if as_json else printing.print_table(
        COLUMNS, [_row(one) for one in views], "no elements"
    )


@element.command("show")
@click.argument("name")
@json_option
@click.pass_context
def show_(context: click.Context, name: str, as_json: bool) -> None:
    """Show the element NAME; of a switch or an edge also what it was last seen to carry.

    Example: virtcloud element show brno-sw
    """
    view = open_client(context).sbf.element(name)
    if as_json:
        printing.print_json(view)
        return
    printing.print_table(COLUMNS[:-1], [_row(view)[:-1]], "")
    if view.unsaved_since:
        click.echo(f"\n{_unsaved(view)}: a restart could bring back what it carried before")
    if view.trouble:
        click.echo(f"\ntrouble: {view.trouble}")
    if view.read_at is not None:
        lost = "" if view.reachable else "; it is unreachable, and may have restarted since"
        click.echo(f"\nread at {printing.format_time(view.read_at)}{lost}")
    if view.carried is not None:
        click.echo()
        printing.print_table(
            ("port", "VLANs"), [(port, vlans or "none") for port, vlans in view.carried.items()], "no ports"
        )
    if view.circuits is not None:
        click.echo()
        circuits = [(one.port, one.vlan, one.transport, one.service) for one in view.circuits]
        printing.print_table(("port", "VLAN", "transport", "service"), circuits, "no circuits")


@element.command()
@click.argument("name")
@click.option("--read", is_flag=True, help="Read the device now, instead of taking what it was last seen to carry.")
@json_option
@click.pass_context
def diff(context: click.Context, name: str, read: bool, as_json: bool) -> None:
    """Say what would be changed on the element NAME now; changes nothing.

    Example: virtcloud element diff brno-sw --read
    """
    found = open_client(context).sbf.difference(name, read=read)
    printing.print_json(found) if as_json else differences.print_difference(found)


@element.command()
@click.argument("name")
@json_option
@click.pass_context
def reconcile(context: click.Context, name: str, as_json: bool) -> None:
    """Read the switch or edge NAME now and CHANGE what differs from its wanted state.

    To read without changing anything: virtcloud element diff NAME --read. Exit code 1 when the device refuses.

    Example: virtcloud element reconcile brno-sw
    """
    found = open_client(context).sbf.reconcile(name)
    printing.print_json(found) if as_json else differences.print_reconciliation(found)
    if found.element.trouble:
        raise ElementError(found.element.trouble)


@element.command()
@click.argument("name")
@json_option
@click.pass_context
def ports(context: click.Context, name: str, as_json: bool) -> None:
    """Read the switch NAME now and list its managed ports: how each is used, and what SBF makes of it.

    Example: virtcloud element ports brno-sw
    """
    found = open_client(context).sbf.ports(name)
    rows = [(one.port, one.state, one.use, one.before, one.effect) for one in found]
    printing.print_json_list(found) if as_json else printing.print_table(PORTS, rows, "no ports")


@element.command()
@click.argument("name")
@click.argument("ports", nargs=-1, required=True, metavar="PORT...")
@confirmation.dry_run_option
@confirmation.yes_option
@json_option
@click.pass_context
def adopt(  # noqa: PLR0913 - click gives each option by its name
    context: click.Context, /, name: str, ports: tuple[str, ...], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Adopt the PORTs of the switch NAME for SBF although they are in other use.

    The switch is read first; what becomes of each port's use is shown and asked about. SBF changes a port when the
    first cluster needs it. What was there before is recorded then, and put back when SBF gives the port up.

    Example: virtcloud element adopt brno-sw Gi1/0/1
    """
    sbf = open_client(context).sbf
    chosen = confirmation.select_ports(name, sbf.ports(name), ports)
    printing.print_json_list(chosen) if as_json else confirmation.print_port_uses(chosen)
    names = ", ".join(one.port for one in chosen)
    if not dry_run:
        confirmation.require_confirmation(f"Adopt {names} of {name}?", yes=yes)
        sbf.adopt_ports(name, {one.port: one.use for one in chosen})
    if not as_json:
        click.echo("nothing was changed" if dry_run else f"adopted {names} of {name}")


@element.command()
@click.argument("name")
@click.argument("ports", nargs=-1, required=True, metavar="PORT...")
@click.option("--forget", is_flag=True, help="Put nothing back; for a port or a switch that is gone.")
@json_option
@click.pass_context
def release(context: click.Context, /, name: str, ports: tuple[str, ...], *, forget: bool, as_json: bool) -> None:
    """Take the PORTs of the switch NAME back from SBF: what was there before SBF took them is put back.

    Example: virtcloud element release brno-sw Gi1/0/1
    """
    release = PortRelease.model_validate({"ports": ports, "forget": forget})
    open_client(context).sbf.release_ports(name, release.ports, forget=forget)
    outcome = "nothing is put back" if forget else "what was there before is put back"
    printing.print_json(release) if as_json else click.echo(f"released {', '.join(ports)} of {name}: {outcome}")


@element.command(hidden=True)
@click.argument("name")
@json_option
def check(name: str, as_json: bool) -> None:  # noqa: ARG001 - its former option
    """Refuse the former name of ``reconcile``: a check must not change a device.

    Example: virtcloud element reconcile brno-sw
    """
    raise BadInput(
        f"'element check' was renamed, because it changes the device: 'virtcloud element reconcile {name}' reads and "
        f"changes it, 'virtcloud element diff {name} --read' only reads it"
    )


def _row(view: ElementView) -> tuple[object, ...]:
    seen = printing.format_time(view.last_seen) if view.last_seen else "never"
    return (
        view.name,
        view.kind,
        view.site,
        view.wanted_revision,
        view.confirmed_revision,
        seen,
        _carries(view),
        printing.shorten("; ".join(part for part in (_unsaved(view), view.trouble) if part)),
    )


def _unsaved(view: ElementView) -> str | None:
    """Return since when the running configuration may differ from the startup configuration."""
    return f"not saved since {printing.format_time(view.unsaved_since)}" if view.unsaved_since else None


def _carries(view: ElementView) -> str | None:
    """Return what a device was seen to carry, in few words, and of an unreachable one when that was."""
    as_of = (
        "" if view.reachable or view.read_at is None else f" as of {printing.format_time(view.read_at)}, unreachable"
    )
    if view.circuits is not None:
        return f"{len(view.circuits)} circuit{'' if len(view.circuits) == 1 else 's'}{as_of}"
    if view.carried is not None:
        vlans = VlanSet(number for carried in view.carried.values() for number in carried)
        return (f"VLAN {vlans}" if vlans else "nothing") + as_of
    return None
