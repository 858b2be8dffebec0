"""``virtcloud up`` and ``virtcloud simulate``: an SBF with simulated sites, without root and without devices."""

import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import click

from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import NumberType, WholeNumberType
from virtcloud.client.credentials import FILE_VARIABLE, FileToken
from virtcloud.model.element import ElementKind
from virtcloud.model.element_views import ElementView, SiteView
from virtcloud.model.errors import BadInput
from virtcloud.model.message_text import count_of
from virtcloud.simulation.folder import FOLDER_VARIABLE, USERS, SimulationFolder, find_folder, open_folder
from virtcloud.simulation.installation import Simulation, SimulationOptions, check_libraries, run_simulation
from virtcloud.simulation.sites import MAX_SITES

CONSOLE_PATH = "/console/"
CONSOLE_S = 10.0
ACTIONS = ("off", "on", "drift", "restart")


@click.command(cls=SummaryCommand)
@click.option("--port", type=WholeNumberType(0, 65535), default=8800, show_default=True, help="TCP port; 0: any free.")
@click.option(
    "--sites", type=WholeNumberType(1, MAX_SITES), default=3, show_default=True, help="Number of simulated sites."
)
@click.option(
    "--keep",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Store the database in FOLDER, and use the same database at the next start.  [default: a temporary folder]",
)
@click.option(
    "--delay", type=NumberType(0, 60), default=1.0, show_default=True, help="Duration of each change in seconds."
)
def up(port: int, sites: int, keep: Path | None, delay: float) -> None:
    """Run SBF with simulated sites on this machine, until Ctrl-C: no root, no devices, no guests.

    Simulated switches and hosts confirm changes after a short delay, as real switches and hosts do. One switch is
    unreachable. To use SBF from another terminal, copy the printed lines. 'virtcloud simulate' simulates faults.

    All simulated sites share one transport and 39 VLAN IDs: at most 39 networks can connect several sites at the same
    time.

    Example: virtcloud up
    """
    check_libraries()
    stop = threading.Event()
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in former.items():
        if handler is not signal.SIG_IGN:  # nohup(1) ignores SIGHUP
            signal.signal(number, lambda *_: stop.set())
    options = SimulationOptions(port, sites, delay)
    try:
        with open_folder(None if keep is None else keep.absolute()) as folder:
            click.echo("starting SBF …", err=True)
            with run_simulation(folder, options) as simulation:
                _print_start(simulation, keep)
                simulation.wait(stop)
    except KeyboardInterrupt:
        click.echo(err=True)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    click.echo("stopped; " + ("everything was removed" if keep is None else f"the database is kept in {keep}"))


def _print_start(simulation: Simulation, keep: Path | None) -> None:
    folder = simulation.folder
    with simulation.client() as sbf:
        views, elements = sbf.sites(), sbf.elements()
    off = [element.name for element in elements if folder.is_off(element.name)]
    commands = "".join(f"  {line}\n" for line in _suggest_commands(views, elements))
    names = ", ".join(view.name for view in views[:6]) + (", …" if len(views) > 6 else "")  # noqa: PLR2004 - one line
    click.echo(
        f"SBF runs at {simulation.url} with {count_of(len(views), 'simulated site')} ({names})"
        f"{'; unreachable: ' + ', '.join(off) if off else ''}\n"
        f"{_describe_console(simulation)}\n"
        "Copy these lines into another terminal:\n\n"
        f"{_format_exports(simulation)}\n\n"
        "Then try:\n\n"
        f"{commands}\n"
        f"You are the operator admin. The tokens of the users {' and '.join(USERS)} are in {folder.path / 'tokens'}.\n"
        f"SBF's log: {folder.log}\n"
        f"Stop: Ctrl-C{' removes everything' if keep is None else f'; the database stays in {keep}'}"
    )


def _suggest_commands(sites: Sequence[SiteView], elements: Sequence[ElementView]) -> Iterator[str]:
    """Yield commands to try. Omit commands that need a host or a switch if the topology has none."""
    yield "virtcloud site list"
    hosts = [site.hosts[0] for site in sites if site.hosts]
    if hosts:
        yield f"virtcloud cluster create demo --host {hosts[0]} --host {hosts[-1]} --image busybox"
    switch = next((element.name for element in elements if element.kind is ElementKind.SWITCH), None)
    if switch is not None:
        yield f"virtcloud simulate {switch} drift"


def _describe_console(simulation: Simulation) -> str:
    if _has_page(simulation, CONSOLE_PATH):
        return (
            f"Console: {simulation.url}{CONSOLE_PATH} (log in with the content of {simulation.folder.operator_token})"
        )
    return f"Description of the API: {simulation.url}/docs"


def _has_page(simulation: Simulation, path: str) -> bool:
    token = FileToken(simulation.folder.operator_token)().get_secret_value()
    request = Request(f"{simulation.url}{path}", headers={"authorization": f"Bearer {token}"})  # noqa: S310 - http
    with suppress(URLError, OSError), build_opener(ProxyHandler({})).open(request, timeout=CONSOLE_S):
        return True
    return False


def _format_exports(simulation: Simulation) -> str:
    variables = {
        "VIRTCLOUD_URL": simulation.url,
        FILE_VARIABLE: str(simulation.folder.operator_token),
        FOLDER_VARIABLE: str(simulation.folder.path),
    }
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


@click.command(cls=SummaryCommand)
@click.argument("element")
@click.argument("action", type=click.Choice(ACTIONS))
@click.option(
    "--folder",
    envvar=FOLDER_VARIABLE,
    type=click.Path(path_type=Path),
    help=f"Folder of the simulation.  [default: {FOLDER_VARIABLE}]",
)
def simulate(element: str, action: str, folder: Path | None) -> None:
    """Turn ELEMENT of a running 'virtcloud up' off or on, or cause drift or a restart of a switch.

    off: the switch or host does not answer. on: the switch or host answers again. drift: a port of the switch loses the
    clusters' VLANs. restart: the switch loads its startup configuration. SBF reads a switch every 15 s;
    'virtcloud element reconcile' reads a switch at once.

    Example: virtcloud simulate brno-sw1 drift
    """
    if folder is None:
        raise BadInput(
            f"expected --folder or {FOLDER_VARIABLE}, got neither: copy the lines that 'virtcloud up' prints"
        )
    simulation = find_folder(folder)
    _check_element(simulation, element, action)
    if action == "on":
        simulation.mend(element)
    else:
        simulation.disturb(element, action)
    effects = {
        "off": "does not answer any more",
        "on": "answers again",
        "drift": "loses the clusters' VLANs on a port, if a port carries any",
        "restart": "loads its startup configuration",
    }
    click.echo(f"{element} {effects[action]}")


def _check_element(simulation: SimulationFolder, element: str, action: str) -> None:
    switches, others = simulation.known_elements()
    if element not in {*switches, *others}:
        raise BadInput(f"element {element}: expected a simulated element, known: {', '.join((*switches, *others))}")
    if element in others and action in {"drift", "restart"}:
        raise BadInput(f"{element}: expected off or on for a host, got {action}, which is for switches")
