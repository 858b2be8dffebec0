"""``virtcloud guest``: list, stop, start, reset, reach and clone the guests of a cluster."""

from collections.abc import Callable, Iterator
from typing import Any

import click

from virtcloud.cli import groups, printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import DurationType, WholeNumberType, open_client
from virtcloud.cli.progress import ProgressLines
from virtcloud.cli.session import attach_terminal, copy_standard_streams, print_log
from virtcloud.client.guests import ClusterGuest
from virtcloud.model.element import Hypervisor
from virtcloud.model.guest_sessions import CloneProgress
from virtcloud.model.guests import GuestPower, GuestView
from virtcloud.model.values import Name

PACKED_STEP = 64 << 20
DISK_NOTE = (
    "the image has the whole disk, also logs, histories, your public keys and the machine ID: before you share it, "
    "clean the guest as in docs/how-to/control-guests.md (sudo cloud-init clean --logs, …), and clone the guest again"
)
COLUMNS = ("guest", "host", "state", "resets", "addresses", "image", "trouble")


@click.group(cls=SummaryGroup)
def guest() -> None:
    """Show, stop, start, reset, reach and clone the guests of a cluster.

    Example: virtcloud guest stop demo g1
    """


WAIT_OPTIONS = (
    click.option("--no-wait", is_flag=True, help="Return when SBF has accepted the request."),
    click.option("--timeout", type=DurationType(), help="Maximum time to wait.  [default: no limit]"),
    printing.json_option,
)


def _guest_command(*options: Callable[..., Any]) -> Callable[[Callable[..., None]], click.Command]:
    def decorate(function: Callable[..., None]) -> click.Command:
        command: Callable[..., Any] = click.pass_context(function)
        for option in reversed((click.argument("cluster"), click.argument("name", metavar="GUEST"), *options)):
            command = option(command)
        return guest.command()(command)

    return decorate


@guest.command("list")
@click.argument("cluster")
@printing.json_option
@click.pass_context
def list_(context: click.Context, cluster: str, as_json: bool) -> None:
    """List the guests of CLUSTER with their hosts and power states.

    Example: virtcloud guest list demo
    """
    views = open_client(context).get(cluster).guests.views()
    printing.print_list(COLUMNS, views, _row, f"cluster {cluster} has no guests", as_json=as_json)


@_guest_command(*WAIT_OPTIONS)
def stop(context: click.Context, /, cluster: str, name: str, **options: Any) -> None:  # noqa: ANN401 - click's options
    """Stop GUEST of CLUSTER, and wait until the guest has ended. Idempotent.

    The host asks the guest to shut down. If the guest still runs after the host's grace period (5 s by default), the
    host ends the guest by force. The guest's disk stays. The guest remains stopped when its host reboots.

    Example: virtcloud guest stop demo g1
    """
    _change(context, cluster, name, ClusterGuest.stop, **options)


@_guest_command(*WAIT_OPTIONS)
def start(context: click.Context, /, cluster: str, name: str, **options: Any) -> None:  # noqa: ANN401 - click's options
    """Start GUEST of CLUSTER again after a stop, and wait until its host has started the guest. Idempotent.

    Example: virtcloud guest start demo g1
    """
    _change(context, cluster, name, ClusterGuest.start, **options)


@_guest_command(*WAIT_OPTIONS)
def reset(context: click.Context, /, cluster: str, name: str, **options: Any) -> None:  # noqa: ANN401 - click's options
    """Restart GUEST of CLUSTER once, and wait until its host has started the guest again. The guest's disk stays.

    Example: virtcloud guest reset demo g1
    """
    _change(context, cluster, name, ClusterGuest.reset, **options)


@_guest_command(
    click.argument("image"),
    click.option("--stop", is_flag=True, help="Stop the guest for the copy, and start it again afterwards."),
    printing.json_option,
)
def clone(  # noqa: PLR0913 - click's options
    context: click.Context, cluster: str, name: str, image: str, *, stop: bool, as_json: bool
) -> None:
    """Create the image IMAGE from the disk of GUEST of CLUSTER, so that other guests can be created from IMAGE.

    GUEST must be stopped, unless --stop is set. The host of GUEST packs the files of a container, or the disk of a
    virtual machine, and sends the result to SBF. You own IMAGE. Other users may use IMAGE only after you share the
    image. The image of a container contains no host keys, no ~/.ssh, no data of cloud-init, no machine ID and no logs.
    The image of a virtual machine contains everything on the disk except the private keys of the cluster. Remove your
    own secrets first.

    Example: virtcloud guest clone demo g1 my-image --stop
    """
    Name(image)
    found = _find(context, cluster, name)
    if stop and not found.view.is_confirmed:
        state = f"guest {name} of cluster {cluster}: {describe_state(found.view)}"
        click.echo(f"{state}; waiting for host {found.view.host}", err=True)
    progress = ProgressLines(_clone_lines)
    try:
        made = found.clone(image, stop=stop, progress=progress)
    except KeyboardInterrupt:
        groups.exit_interrupted(context, f"image {image} was not made, and nothing is stored")
    if as_json:
        printing.print_json(made)
    else:
        size = printing.format_size(made.source.size)
        click.echo(f"image {image} is ready ({size}); use it: virtcloud cluster create … --image {image}")
        if made.kind is Hypervisor.QEMU:
            click.echo(DISK_NOTE, err=True)


def _clone_lines(report: CloneProgress) -> Iterator[tuple[str, str]]:
    """Yield the state of a clone. The numbers are coarse, so that few lines are printed."""
    if report.image is not None or report.error is not None:
        return
    if report.size is None:
        packed = report.packed // PACKED_STEP * PACKED_STEP
        yield "clone", f"packing, {printing.format_size(packed)}" if packed else "packing"
    else:
        yield "clone", f"sending {printing.format_size(report.size)}, {report.sent * 10 // report.size * 10} %"


@_guest_command(click.option("--follow", "-f", is_flag=True, help="Continue with later output, until Ctrl-C."))
def log(context: click.Context, cluster: str, name: str, follow: bool) -> None:
    """Print the log of the console of GUEST of CLUSTER.

    A host stores about the last megabyte of each guest's console.

    Example: virtcloud guest log demo g1 --follow
    """
    print_log(_find(context, cluster, name).log(follow=follow))


@_guest_command()
def console(context: click.Context, cluster: str, name: str) -> None:
    """Connect the terminal with the console of GUEST of CLUSTER. Ctrl-] or the end of the input ends the session.

    Several users may be connected at the same time: all see the same output.

    Example: virtcloud guest console demo g1
    """
    with _find(context, cluster, name).console() as stream:
        click.echo(f"connected to the console of {name}; press Enter for a prompt, Ctrl-] to leave", err=True)
        attach_terminal(stream)
    click.echo("\nthe session has ended", err=True)


@_guest_command(click.argument("port", type=WholeNumberType(1, 65535)))
def connect(context: click.Context, cluster: str, name: str, port: int) -> None:
    """Connect standard input and output with the TCP port PORT of GUEST of CLUSTER, inside the cluster's network.

    The connection goes through SBF and the agent of the guest's host. The command can be a ProxyCommand of ssh, as
    in 'virtcloud cluster ssh': ssh -o ProxyCommand='virtcloud guest connect demo %h %p' user@g1

    Example: virtcloud guest connect demo g1 22
    """
    with _find(context, cluster, name).connect(port) as stream:
        copy_standard_streams(stream)


def _find(context: click.Context, cluster: str, name: str) -> ClusterGuest:
    return open_client(context).get(cluster).guests.find(name)


def _change(  # noqa: PLR0913 - click's options
    context: click.Context,
    key: str,
    name: str,
    change: Callable[..., ClusterGuest],
    *,
    no_wait: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    found = open_client(context).get(key).guests.find(name)
    progress = ProgressLines(_progress_lines)
    try:
        change(found, wait=not no_wait, progress=progress, timeout=timeout)
    except KeyboardInterrupt:
        message = f"guest {name} continues to change on {found.view.host}; show it: virtcloud guest list {key}"
        groups.exit_interrupted(context, message)
    if as_json:
        printing.print_json(found.view)
    elif no_wait:
        click.echo(f"guest {name} of cluster {key}: {describe_state(found.view)}; show it: virtcloud guest list {key}")
    else:
        state = f"{describe_state(found.view)} after {progress.seconds:.1f} s"
        click.echo(f"guest {name} of cluster {key} on {found.view.host} is {state}")


def _row(view: GuestView) -> tuple[object, ...]:
    addresses = " ".join(view.addresses)
    return (
        view.name,
        view.host,
        describe_state(view),
        view.resets,
        addresses,
        view.image,
        printing.shorten(view.trouble),
    )


def describe_state(view: GuestView) -> str:
    """Return ``running``, ``starting``, ``stopped``, ``stopping``, or why the guest's state is unknown."""
    if not view.reachable:
        return f"unknown (wanted: {view.power}): host {view.host} does not answer"
    if view.power is GuestPower.ON:
        return "running" if view.is_confirmed else "starting"
    return "stopped" if view.is_confirmed else "stopping"


def _progress_lines(view: GuestView) -> Iterator[tuple[str, str]]:
    state = describe_state(view)
    waits = "" if view.is_confirmed else f": waiting for the agent of {view.host}"
    yield f"{view.cluster}/{view.name}", state + (f": {view.trouble}" if view.trouble else waits)
