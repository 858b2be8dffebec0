"""``virtcloud lab``: a whole installation of several sites on this machine."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import click
from rich.console import Console

from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.client.sbf import DEFAULT_URL
from virtcloud.lab import Lab, LabEvent, LabFile, LabOptions, read_lab_file, take_down
from virtcloud.lab.control_client import run_attached
from virtcloud.lab.demo.chapters import DEMO_TIMING, run_demo
from virtcloud.lab.demo.report import DemoReport
from virtcloud.lab.pbs import LabPbs, as_user
from virtcloud.lab.state import LabState
from virtcloud.model.topology import Topology

SHELL = ("/bin/bash", "--norc", "--noprofile")
user_option = click.option("--user", help="As this user, who has logged in (of 'virtcloud lab pbs': alice, bob).")


@click.group(cls=SummaryGroup)
def lab() -> None:
    """Run a whole installation of several sites on this machine, for trying and testing."""


@lab.command()
@click.argument("topology", type=click.Path(path_type=Path), required=False)
@click.option("--bare", is_flag=True, help="Network, sshd and libvirtd only: neither SBF nor agents.")
@click.option(
    "--kernel", type=click.Choice(["direct", "uml"]), help="Insist on this machine's kernel, or on User-mode Linux."
)
def up(topology: Path | None, bare: bool, kernel: str | None) -> None:
    """Start the lab of TOPOLOGY: a file, or the name of one that comes with virtcloud.

    These are: metacenter (the default: Brno, Praha and Plzeň on an 802.1ad core, two hosts each), and evpn (the same
    sites joined by BGP EVPN over VXLAN, by FRR; no VLAN number is free at two of them).
    """
    described = read_lab_file(topology)
    with LabProgress(Console(stderr=True)) as progress:
        running = Lab.up(described, LabOptions(bare=bare, kernel=kernel), progress.watch)
        seconds = progress.seconds
    click.echo(f"lab {described.name} is up after {seconds:.1f} s: {_summary(described)}")
    click.echo("look at it: virtcloud lab status; into a node: virtcloud lab shell NODE; end it: virtcloud lab down")
    if not bare:
        click.echo(f"ask its SBF: virtcloud {_url(running.sbf_socket)}site list")


def _url(socket: str) -> str:
    """Give the flag without which SBF is not found there."""
    return "" if f"unix://{socket}" == DEFAULT_URL else f"--url unix://{socket} "


def _summary(described: LabFile) -> str:
    sites = ", ".join(site.name for site in described.sites)
    hosts = sum(len(site.hosts) for site in described.sites)
    return f"{len(described.sites)} sites ({sites}), {hosts} hosts"


@lab.command()
def down() -> None:
    """Stop the lab and remove everything of it, also what a crashed one left."""
    state = LabState.of_machine()
    lived = state.pid() is not None
    found = take_down(state)
    if not found:
        click.echo("no lab is up, and none has left anything")
    elif lived:
        click.echo("the lab is down; nothing of it is left on this machine")
    else:
        click.echo(f"a lab that ended by itself had left {', '.join(found)}; removed, nothing is left")


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(as_json: bool) -> None:
    """Show the lab's nodes and services."""
    found = Lab.running().status()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    kernels = {"direct": "this machine's kernel", "uml": "User-mode Linux"}
    click.echo(f"lab {found['name']} on {kernels[found['kernel']]}; SBF: {found['sbf'] or 'none (bare)'}")
    rows = [(name, node["kind"], node["address"], _services(node["services"])) for name, node in found["nodes"].items()]
    printing.print_table(("node", "kind", "address", "services"), rows, "no nodes")


def _services(states: Mapping[str, str]) -> str:
    return ", ".join(f"{service} {state}" for service, state in states.items())


@lab.command()
@click.option("--host", "hosts", multiple=True, help="Only on this host; may be repeated.  [default: all hosts]")
def pbs(hosts: tuple[str, ...]) -> None:
    """Start a real OpenPBS in the lab that is up: its server on the station, a MoM on each host, virtcloud's hooks.

    It has two users, alice and bob. OpenPBS must be installed on this machine, by default in /opt/pbs.

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
    """Run COMMAND on NODE, with this terminal's input and output; gives its exit code.

    As from a shell, 127 says that NODE has no such program, and 126 that it cannot be run.
    """
    words = command if user is None else as_user(user, command)
    sys.exit(run_attached(Lab.running().state, node, words, terminal=False))


@lab.command()
@user_option
@click.argument("node")
def shell(user: str | None, node: str) -> None:
    """Open a shell on NODE."""
    words = SHELL if user is None else as_user(user, ())
    sys.exit(run_attached(Lab.running().state, node, words, terminal=True))


@lab.command()
@click.argument("node")
@click.argument("service")
@click.argument("action", type=click.Choice(["start", "stop", "kill"]))
def service(node: str, service: str, action: str) -> None:
    """Start, stop or kill one SERVICE of NODE (the service itself: station sbf)."""
    handle = Lab.running().service(node, service)
    {"start": handle.start, "stop": handle.stop, "kill": handle.kill}[action]()
    click.echo(f"{node}: {service}: {action} done")


@lab.command()
def demo() -> None:
    """Show it all: a lab, two clusters over its three sites, a fault, and nothing left in the end.

    Exit code 0 says that every claim was checked and holds.

    Example: virtcloud lab demo
    """
    console = Console()
    report = DemoReport(console)

    def bring_up() -> Lab:
        with LabProgress(console) as progress:
            return Lab.up(read_lab_file(None), LabOptions(timing=DEMO_TIMING), progress.watch)

    holds = run_demo(report, bring_up)
    console.print()
    console.print(report.table())
    sys.exit(0 if holds else 1)


class LabProgress:
    """Shows what is being waited for and for how long, and what is done."""

    def __init__(self, console: Console) -> None:
        """Show it on ``console``."""
        self._console = console
        self._since = time.monotonic()
        self._open: dict[str, float] = {}
        self._status = console.status(self)

    def __enter__(self) -> Self:
        """Begin to show."""
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it; what was printed stays."""
        self._status.stop()

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self._since

    def __rich__(self) -> str:
        """Give the line that is shown now."""
        return f"{self.seconds:5.1f} s  waiting for {', '.join(list(self._open)[:4]) or 'the next step'}"

    def watch(self, event: LabEvent) -> None:
        """Take in one event."""
        now = time.monotonic()
        if event.state == "begin":
            self._open[event.step] = now
        elif event.state == "note":
            self._console.print(f"         {event.text}", highlight=False, soft_wrap=True)
        else:
            took = now - self._open.pop(event.step, now)
            self._console.print(f"{self.seconds:5.1f} s  {event.step} ({took:.1f} s)", highlight=False)
