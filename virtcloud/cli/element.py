"""``virtcloud element``: show, compare and reconcile switches, provider edges, hosts and gateways; adopt ports."""

import click

from virtcloud.cli import confirmation, differences, printing
from virtcloud.cli.element_try import try_command
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import open_client
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView
from virtcloud.model.errors import BadInput, ElementError
from virtcloud.model.message_text import count_of
from virtcloud.model.port_use import PortRelease, PortView
from virtcloud.model.vlans import VlanSet

PORT_COLUMNS = ("port", "state", "use", "before SBF", "effect of adoption")
COLUMNS = ("element", "kind", "site", "wanted", "confirmed", "last seen", "carries", "trouble")


@click.group(cls=SummaryGroup)
def element() -> None:
    """Show, compare and reconcile switches, provider edges, hosts and gateways.

    Example: virtcloud element list
    """


element.add_command(try_command)


@element.command("list")
@click.option("--site", help="Only elements at this site.")
@click.option("--kind", type=click.Choice([str(kind) for kind in ElementKind]), help="Only elements of this kind.")
@click.option(
    "--troubled",
    is_flag=True,
    help="Only elements that need attention: elements that do not answer, that have an error or a pending save, or "
    "whose agent never called SBF.",
)
@printing.limit_option
@printing.json_option
@click.pass_context
def list_(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    *,
    site: str | None,
    kind: str | None,
    troubled: bool,
    limit: int | None,
    as_json: bool,
) -> None:
    """List elements with their wanted and confirmed revisions. An element with equal revisions is up to date.

    The elements are in the order of their names, and are printed page by page.

    Example: virtcloud element list --site brno --kind switch
    """
    pages = open_client(context).sbf.element_pages(site=site, kind=kind, troubled=troubled)
    printing.print_pages(COLUMNS, pages, _row, "no elements", as_json=as_json, limit=limit)


@element.command("show")
@click.argument("name")
@printing.json_option
@click.pass_context
def show_(context: click.Context, name: str, as_json: bool) -> None:
    """Show the element NAME. For a switch or edge, also show the last observed state.

    Example: virtcloud element show brno-sw
    """
    view = open_client(context).sbf.element(name)
    if as_json:
        printing.print_json(view)
        return
    printing.print_table(COLUMNS[:-1], [_row(view)[:-1]], "")
    if view.capacity:
        click.echo(f"\ncapacity: {count_of(view.capacity.cpus, 'CPU')}, {view.capacity.memory_mb} MiB of memory")
    if view.unsaved_since:
        click.echo(f"\n{_format_unsaved(view)}: a restart would restore an older configuration")
    if view.trouble:
        click.echo(f"\ntrouble: {view.trouble}")
    for notice in view.notices:
        click.echo(f"\nnotice: {notice}")
    if view.read_at is not None:
        connection = "" if view.reachable else "; the device is unreachable and may have restarted"
        click.echo(f"\nread at {printing.format_time(view.read_at)}{connection}")
    if view.carried is not None:
        click.echo()
        printing.print_table(
            ("port", "VLANs"), [(port, vlans or "none") for port, vlans in view.carried.items()], "no ports"
        )
    if view.circuits is not None:
        click.echo()
        circuits = [(circuit.port, circuit.vlan, circuit.transport, circuit.service) for circuit in view.circuits]
        printing.print_table(("port", "VLAN", "transport", "service"), circuits, "no circuits")


@element.command()
@click.argument("name")
@click.option("--read", is_flag=True, help="Read the device now, instead of using its last observed state.")
@printing.json_option
@click.pass_context
def diff(context: click.Context, name: str, read: bool, as_json: bool) -> None:
    """Show the difference between the observed and wanted state of the element NAME. The command changes nothing.

    Example: virtcloud element diff brno-sw --read
    """
    difference = open_client(context).sbf.difference(name, read=read)
    printing.print_json(difference) if as_json else differences.print_difference(difference)


@element.command()
@click.argument("name")
@printing.json_option
@click.pass_context
def reconcile(context: click.Context, name: str, as_json: bool) -> None:
    """Read the switch or edge NAME now, and CHANGE the device to its wanted state.

    To read the device without changing the device, use 'virtcloud element diff NAME --read'. The exit code is 1 if the
    device rejects a change.

    Example: virtcloud element reconcile brno-sw
    """
    reconciliation = open_client(context).sbf.reconcile(name)
    printing.print_json(reconciliation) if as_json else differences.print_reconciliation(reconciliation)
    if reconciliation.element.trouble:
        raise ElementError(reconciliation.element.trouble)


@element.command()
@click.argument("name")
@click.option("--reason", required=True, metavar="TEXT", help="The reason why the element is clean, for the audit log.")
@printing.json_option
@click.pass_context
def clean(context: click.Context, /, name: str, *, reason: str, as_json: bool) -> None:
    """Declare the element NAME clean: nobody needs the clusters on NAME that are missing in SBF's database.

    After a restore of its database, SBF starts no cluster at a site until all elements of the site have confirmed their
    wanted state. Use this command for an element that will never return. SBF deletes VLANs and circuits that have a
    name of SBF and are missing in its database. But SBF keeps a VLAN or circuit whose VLAN ID SBF has not managed on
    this switch or edge before: it may belong to another SBF, or to a cluster of a lost database. After this command,
    SBF deletes these VLANs and circuits too. The audit log records your name.

    Example: virtcloud element clean brno-h3 --reason "brno-h3 was scrapped"
    """
    view = open_client(context).sbf.declare_element_clean(name, reason=reason)
    done = (
        f"SBF no longer waits for {name}; if {name} is a switch or an edge, SBF deletes VLANs and circuits there "
        "that its database does not contain"
    )
    printing.print_json(view) if as_json else click.echo(done)


@element.command()
@click.argument("name")
@printing.json_option
@click.pass_context
def ports(context: click.Context, name: str, as_json: bool) -> None:
    """Read the switch NAME now and list its managed ports and the use of each port.

    Example: virtcloud element ports brno-sw
    """
    views = open_client(context).sbf.ports(name)
    printing.print_list(PORT_COLUMNS, views, _port_row, "no ports", as_json=as_json)


def _port_row(view: PortView) -> tuple[object, ...]:
    return (view.port, view.state, view.use, view.before, view.effect)


@element.command()
@click.argument("name")
@click.argument("ports", nargs=-1, required=True, metavar="PORT...")
@confirmation.dry_run_option
@confirmation.yes_option
@printing.json_option
@click.pass_context
def adopt(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context, /, name: str, ports: tuple[str, ...], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Allow SBF to use the PORTs of the switch NAME, although they have a configuration that SBF did not make.

    The command reads the switch and asks you to confirm the effect on each port. When a cluster first needs a port, SBF
    records the port's configuration and changes the port. When the port is released, SBF restores the recorded
    configuration.

    Example: virtcloud element adopt brno-sw Gi1/0/1
    """
    sbf = open_client(context).sbf
    selected = confirmation.select_ports(name, sbf.ports(name), ports)
    if as_json:
        printing.print_list(PORT_COLUMNS, selected, _port_row, "", as_json=True)
    else:
        confirmation.print_port_uses(selected)
    names = ", ".join(view.port for view in selected)
    if not dry_run:
        confirmation.require_confirmation(f"Adopt {names} of {name}?", yes=yes)
        sbf.adopt_ports(name, {view.port: view.use for view in selected})
    if not as_json:
        click.echo("nothing was changed" if dry_run else f"adopted {names} of {name}")


@element.command()
@click.argument("name")
@click.argument("ports", nargs=-1, required=True, metavar="PORT...")
@click.option("--forget", is_flag=True, help="Restore nothing, because the port or switch no longer exists.")
@printing.json_option
@click.pass_context
def release(context: click.Context, /, name: str, ports: tuple[str, ...], *, forget: bool, as_json: bool) -> None:
    """Release the PORTs of the switch NAME. SBF restores the ports' former configuration and no longer uses the ports.

    Example: virtcloud element release brno-sw Gi1/0/1
    """
    release = PortRelease.model_validate({"ports": ports, "forget": forget})
    open_client(context).sbf.release_ports(name, release.ports, forget=forget)
    outcome = "nothing is restored" if forget else "SBF restores the former configuration"
    printing.print_json(release) if as_json else click.echo(f"released {', '.join(ports)} of {name}: {outcome}")


@element.command(hidden=True)
@click.argument("name")
@printing.json_option
def check(name: str, as_json: bool) -> None:  # noqa: ARG001 - an option of the former command
    """Print that this command was renamed to ``reconcile``.

    Example: virtcloud element reconcile brno-sw
    """
    raise BadInput(
        f"'element check' was renamed, because this name did not show that the command changes the device. 'virtcloud "
        f"element reconcile {name}' reads and changes the device; 'virtcloud element diff {name} --read' only reads it"
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
        _format_observed(view),
        printing.shorten("; ".join(part for part in (_format_unsaved(view), view.trouble) if part)),
    )


def _format_unsaved(view: ElementView) -> str | None:
    return f"not saved since {printing.format_time(view.unsaved_since)}" if view.unsaved_since else None


def _format_observed(view: ElementView) -> str | None:
    as_of = (
        "" if view.reachable or view.read_at is None else f" as of {printing.format_time(view.read_at)}, unreachable"
    )
    if view.circuits is not None:
        return f"{count_of(len(view.circuits), 'circuit')}{as_of}"
    if view.carried is not None:
        vlans = VlanSet(vlan for carried in view.carried.values() for vlan in carried)
        return (f"VLAN {vlans}" if vlans else "no VLAN") + as_of
    return None
