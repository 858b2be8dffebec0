"""``virtcloud lab``: a multi-site installation on this machine, for trials, demonstrations and tests."""

import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

import click
from rich.console import Console

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.client.agent_client import DEFAULT_URL
from virtcloud.lab import Lab, LabEvent, LabFile, LabOptions, read_lab_file, take_down
from virtcloud.lab.addressing import USERS
from virtcloud.lab.control_client import run_attached
from virtcloud.lab.debian_image import LAB_IMAGES, write_image
from virtcloud.lab.demo.chapters import DEMO_TIMING, run_demo
from virtcloud.lab.demo.mpi_chapters import IMAGE
from virtcloud.lab.demo.report import DemoReport
from virtcloud.lab.pbs import LabPbs, as_user
from virtcloud.lab.state import LabState
from virtcloud.model.message_text import count_of
from virtcloud.model.topology import Topology

SHELL = ("/bin/bash", "--norc", "--noprofile")
user_option = click.option(
    "--user", type=click.Choice(tuple(USERS)), help="Run as this user, whom 'virtcloud lab pbs' creates."
)


@click.group(cls=SummaryGroup)
def lab() -> None:
    """Run a multi-site installation on this machine, for trials and tests."""


@lab.command()
@click.argument("topology", type=click.Path(path_type=Path), required=False)
@click.option("--bare", is_flag=True, help="Start the network, sshd and libvirtd only: neither SBF nor agents.")
@click.option(
    "--kernel",
    type=click.Choice(["direct", "uml"]),
    help="Use this machine's kernel (direct), or User-mode Linux (uml).  [default: direct if possible, else uml]",
)
@click.option(
    "--image",
    "images",
    type=click.Choice(list(LAB_IMAGES)),
    multiple=True,
    help="Also create this image of Debian; may be repeated.",
)
def up(topology: Path | None, bare: bool, kernel: str | None, images: tuple[str, ...]) -> None:
    """Start the lab of TOPOLOGY, which is a file or the name of a topology that is part of virtcloud.

    The topologies of virtcloud are metacenter (the default: Brno, Praha and Plzeň on an 802.1ad core, two hosts each),
    and evpn (the same sites joined by FRR with BGP EVPN over VXLAN; no VLAN ID is free at more than one site).
    """
    lab_file = _with_images(read_lab_file(topology), images)
    with LabProgress(Console(stderr=True)) as progress:
        running = Lab.up(lab_file, LabOptions(bare=bare, kernel=kernel), progress.watch)
        seconds = progress.seconds
    click.echo(f"lab {lab_file.name} is up after {seconds:.1f} s: {_summarize(lab_file)}")
    click.echo("next: virtcloud lab status; a shell on a node: virtcloud lab shell NODE; stop it: virtcloud lab down")
    if not bare:
        click.echo(f"use its SBF: virtcloud {_url_option(running.sbf_socket)}site list")


def _with_images(lab_file: LabFile, images: Iterable[str]) -> LabFile:
    return lab_file.model_copy(update={"images": tuple({*lab_file.images, *images})})


def _url_option(socket: str) -> str:
    return "" if f"unix://{socket}" == DEFAULT_URL else f"--url unix://{socket} "


def _summarize(lab_file: LabFile) -> str:
    sites = ", ".join(site.name for site in lab_file.sites)
    hosts = sum(len(site.hosts) for site in lab_file.sites)
    return f"{count_of(len(lab_file.sites), 'site')} ({sites}), {count_of(hosts, 'host')}"


@lab.command()
def down() -> None:
    """Stop the lab and remove all its parts, including the remains of a lab that crashed."""
    state = LabState.of_machine()
    was_running = state.pid() is not None
    remains = take_down(state)
    if not remains:
        click.echo("no lab is up, and no remains of a lab were found")
    elif was_running:
        click.echo("the lab is down; all its parts were removed from this machine")
    else:
        click.echo(f"removed the remains of a lab that ended unexpectedly: {', '.join(remains)}")


@lab.command()
@printing.json_option
def status(as_json: bool) -> None:
    """Show the lab's nodes and services."""
    status = Lab.running().status()
    if as_json:
        click.echo(json.dumps(status, indent=2))
        return
    kernels = {"direct": "this machine's kernel", "uml": "User-mode Linux"}
    click.echo(f"lab {status['name']} on {kernels[status['kernel']]}; SBF: {status['sbf'] or 'none (bare)'}")
    rows = [
        (name, node["kind"], node["address"], _format_services(node["services"]))
        for name, node in status["nodes"].items()
    ]
    printing.print_table(("node", "kind", "address", "services"), rows, "no nodes")


def _format_services(states: Mapping[str, str]) -> str:
    return ", ".join(f"{service} {state}" for service, state in states.items())


@lab.command()
@click.option("--host", "hosts", multiple=True, help="Only on this host; may be repeated.  [default: all hosts]")
def pbs(hosts: tuple[str, ...]) -> None:
    """Start OpenPBS in the running lab: the server on the node station, a MoM on each host, and virtcloud's hooks.

    The command creates the users alice and bob in the lab. OpenPBS must be installed on this machine, by default in
    /opt/pbs.

    Example: virtcloud lab pbs
    """
    running = Lab.running()
    batch = LabPbs.of(running)
    with LabProgress(Console(stderr=True)) as progress:
        batch.start(hosts or _hosts(running.topology), progress.watch)
        batch.install_hooks()
        batch.reconcile()
        seconds = progress.seconds
    click.echo(f"OpenPBS {batch.version()} runs after {seconds:.1f} s")
    click.echo("submit a job: virtcloud lab shell --user alice station")


def _hosts(topology: Topology) -> list[str]:
    return [host.name for site in topology.sites for host in site.hosts]


@lab.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@user_option
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(user: str | None, node: str, command: tuple[str, ...]) -> None:
    """Run COMMAND on NODE, with this terminal's input and output, and return the exit code of COMMAND.

    As in a shell, the exit code is 127 if NODE has no such program, and 126 if the program cannot be executed.
    """
    program = command[1:] if command[0] == "--" else command
    if not program:
        raise click.UsageError("expected a program after --, got none")
    arguments = program if user is None else as_user(user, program)
    sys.exit(run_attached(Lab.running().state, node, arguments, terminal=False))


@lab.command()
@user_option
@click.argument("node")
def shell(user: str | None, node: str) -> None:
    """Open a shell on NODE."""
    arguments = SHELL if user is None else as_user(user, ())
    sys.exit(run_attached(Lab.running().state, node, arguments, terminal=True))


@lab.command()
@click.argument("node")
@click.argument("service")
@click.argument("action", type=click.Choice(["start", "stop", "kill"]))
def service(node: str, service: str, action: str) -> None:
    """Start, stop or kill the service SERVICE of NODE. For SBF: service sbf of node station."""
    handle = Lab.running().service(node, service)
    {"start": handle.start, "stop": handle.stop, "kill": handle.kill}[action]()
    click.echo(f"{node}: {service}: {action} done")


@lab.command()
@click.argument("node")
@click.argument("state", type=click.Choice(["off", "on", "cycle"]))
def power(node: str, state: str) -> None:
    """Switch the power of NODE, a host or a gateway: off, on, or cycle (off and on again).

    'off' kills all processes at once. NODE loses its interfaces, mounts, filters and running guests, and everything in
    /run. The files of the agent (with the guests' disks), of libvirt and of the MoM (lab pbs), and the files in
    /var/log remain. 'on' boots NODE and starts its services and its MoM.

    Example: virtcloud lab power brno-h1 cycle
    """
    running = Lab.running()
    if state != "on":
        running.power_off(node)
    if state != "off":
        running.power_on(node)
    click.echo(f"{node}: power {state} done")


@lab.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def image(file: Path) -> None:
    """Build a Debian image from Debian's packages, and write it to the new file FILE.

    If FILE ends with .tar, the image is a root file system for LXC guests. If FILE ends with .qcow2, the image is a
    disk for QEMU guests. Both images contain systemd, sshd, cloud-init and Open MPI. The packages come from the sources
    of this machine's APT. The command needs root.

    Example: virtcloud lab image debian.tar
    """
    with LabProgress(Console(stderr=True)) as progress:
        write_image(file, progress.watch)
    click.echo(f"{file} is a Debian image ({file.stat().st_size >> 20} MB)")


@lab.command()
def demo() -> None:
    """Demonstrate virtcloud in a lab: clusters across three sites, a fault, an MPI program, and the clusters' removal.

    The first demonstration on a machine builds an image from Debian's packages, which takes about a minute.

    The exit code is 0 if all checks of the demonstration succeed.

    Example: virtcloud lab demo
    """
    console = Console()
    report = DemoReport(console)

    def bring_up() -> Lab:
        with LabProgress(console) as progress:
            return Lab.up(_with_images(read_lab_file(None), [IMAGE]), LabOptions(timing=DEMO_TIMING), progress.watch)

    succeeded = run_demo(report, bring_up)
    console.print()
    console.print(report.table())
    sys.exit(0 if succeeded else 1)


class LabProgress:
    """Displays the current steps of the lab. Prints messages about steps, and each ended step with its duration."""

    def __init__(self, console: Console) -> None:
        """Create a display on ``console``."""
        self._console = console
        self._start = time.monotonic()
        self._open: dict[str, float] = {}
        self._status = console.status(self)

    def __enter__(self) -> Self:
        """Start the display."""
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the display. Printed lines remain on the terminal."""
        self._status.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the display was created."""
        return time.monotonic() - self._start

    def __rich__(self) -> str:
        """Return the text of the current steps."""
        return f"{self.seconds:5.1f} s  waiting for {', '.join(list(self._open)[:4]) or 'the next step'}"

    def watch(self, event: LabEvent) -> None:
        """Record one event of the lab."""
        now = time.monotonic()
        if event.state == "begin":
            self._open[event.step] = now
        elif event.state == "note":
            self._console.print(f"         {event.text}", highlight=False, soft_wrap=True)
        else:
            duration = now - self._open.pop(event.step, now)
            self._console.print(f"{self.seconds:5.1f} s  {event.step} ({duration:.1f} s)", highlight=False)
