"""The ``virtcloud`` command. The module of a subcommand is imported only when the subcommand runs."""

from dataclasses import dataclass
from pathlib import Path

import click

from virtcloud import __version__
from virtcloud.cli.groups import LazyGroup

COMMANDS = {
    "access": ("virtcloud.cli.vpn:access", "Join the network of a cluster from your computer."),
    "agent": ("virtcloud.cli.host:agent", "Reconcile this host with its wanted state."),
    "audit": ("virtcloud.cli.audit:audit", "Show the audit log: who changed what, when and why."),
    "cluster": ("virtcloud.cli.cluster:cluster", "Create, show and delete virtual clusters."),
    "doctor": ("virtcloud.cli.doctor:doctor", "Check whether this machine can run a lab or host guests."),
    "element": ("virtcloud.cli.element:element", "Show, compare and reconcile switches, hosts and gateways."),
    "guest": ("virtcloud.cli.guest:guest", "Show, stop, start, reset and reach the guests of a cluster."),
    "image": ("virtcloud.cli.image:image", "Add, list, share and certify images of guests."),
    "job": ("virtcloud.cli.job:job", "Show the cluster of a batch job."),
    "key": ("virtcloud.cli.key:key", "Add, list and remove your SSH keys."),
    "login": ("virtcloud.cli.tokens:login", "Store your token for later commands."),
    "lab": ("virtcloud.cli.lab:lab", "Run a multi-site installation on this machine."),
    "netbox": ("virtcloud.cli.netbox:netbox", "Compare sites, cables and pools with NetBox, or import them."),
    "pbs": ("virtcloud.cli.pbs:pbs", "Install, remove and check the hooks of OpenPBS."),
    "pool": ("virtcloud.cli.pool:pool", "Show and set the VLAN IDs that a site allocates."),
    "quota": ("virtcloud.cli.quota:quota", "Show and set the limits of users."),
    "simulate": ("virtcloud.cli.up:simulate", "Switch a simulated element off or on, or cause drift or a restart."),
    "site": ("virtcloud.cli.site:site", "Show sites, and check their cables."),
    "token": ("virtcloud.cli.tokens:token", "Create, list and revoke tokens."),
    "topology": ("virtcloud.cli.topology:topology", "Show and set sites, elements and links."),
    "torque": ("virtcloud.cli.torque:torque", "Write the scripts that Torque runs."),
    "up": ("virtcloud.cli.up:up", "Run SBF with simulated sites on this machine, without root."),
    "whoami": ("virtcloud.cli.tokens:whoami", "Show the user and the role that SBF sees for your token."),
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The connection options of the command line: SBF's address, and the files with the token and certificates."""

    url: str | None
    token_file: Path | None
    ca_file: Path | None
    certificate: Path | None


@click.group(
    cls=LazyGroup, lazy=COMMANDS, extras={"lab": "lab"}, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--url",
    envvar="VIRTCLOUD_URL",
    metavar="URL",
    help="Address of SBF: http://host:port or unix:///path.  [default: VIRTCLOUD_URL, or unix:///run/virtcloud/sbf.sock]",
)
@click.option(
    "--token-file",
    envvar="VIRTCLOUD_TOKEN_FILE",
    type=click.Path(path_type=Path),
    help="File with your token.  [default: VIRTCLOUD_TOKEN_FILE, or the file of 'virtcloud login']",
)
@click.option(
    "--ca-file",
    envvar="VIRTCLOUD_CA_FILE",
    type=click.Path(path_type=Path),
    help="File with the CA certificates that verify SBF's certificate.  [default: the system's CA certificates]",
)
@click.option(
    "--certificate",
    envvar="VIRTCLOUD_CERTIFICATE",
    type=click.Path(path_type=Path),
    help="File with a client certificate and its key, if SBF requires one.",
)
@click.version_option(__version__, prog_name="virtcloud")
@click.pass_context
def main(
    context: click.Context, url: str | None, token_file: Path | None, ca_file: Path | None, certificate: Path | None
) -> None:
    """Private layer-2 networks across sites, with virtual machines on them.

    Exit codes: 0 done; 1 the cluster failed, SBF refused, or a wait ended early; 2 bad input, or SBF not reachable; 130
    interrupted.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox
    """
    context.obj = ConnectionOptions(url, token_file, ca_file, certificate)
