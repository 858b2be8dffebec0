"""The ``virtcloud`` command. Exit codes: see :mod:`virtcloud.cli.groups`."""

from dataclasses import dataclass
from pathlib import Path

import click

from virtcloud import __version__
from virtcloud.cli.groups import LazyGroup

COMMANDS = {
    "agent": ("virtcloud.cli.host:agent", "Converge this machine: its segments and guests."),
    "audit": ("virtcloud.cli.audit:audit", "Say who changed what, when and why."),
    "cluster": ("virtcloud.cli.cluster:cluster", "Create, watch and delete virtual clusters."),
    "doctor": (
        "virtcloud.cli.doctor:doctor",
        "Check this machine: for a lab, or as a host of guests.",
    ),
    "element": ("virtcloud.cli.element:element", "Look at switches, hosts and gateways."),
    "image": ("virtcloud.cli.host:image", "Look at this machine's images of guests."),
    "job": ("virtcloud.cli.job:job", "Show the cluster of a batch job."),
    "login": ("virtcloud.cli.access:login", "Keep your token for later commands."),
    "lab": ("virtcloud.cli.lab:lab", "Run a whole installation of several sites on this machine."),
    "pbs": ("virtcloud.cli.pbs:pbs", "Install the hooks in OpenPBS, and look after them."),
    "pool": ("virtcloud.cli.pool:pool", "Say which VLAN numbers a site gives."),
    "quota": ("virtcloud.cli.access:quota", "Say how much a user may have."),
    "site": ("virtcloud.cli.site:site", "Look at sites and their pools."),
    "token": ("virtcloud.cli.access:token", "Make, list and revoke tokens."),
    "topology": ("virtcloud.cli.topology:topology", "Say what sites, elements and links there are."),
    "torque": ("virtcloud.cli.torque:torque", "Write the scripts that Torque runs."),
    "whoami": ("virtcloud.cli.access:whoami", "Say whom SBF takes you for."),
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Where and as whom commands ask SBF, as the command line says."""

    url: str | None
    token_file: Path | None
    ca_file: Path | None
    certificate: Path | None


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
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
    help="File with your token.  [default: VIRTCLOUD_TOKEN_FILE, or what 'virtcloud login' kept]",
)
@click.option(
    "--ca-file",
    envvar="VIRTCLOUD_CA_FILE",
    type=click.Path(path_type=Path),
    help="File with the certificates of the authority that SBF's was signed by.  [default: this machine's]",
)
@click.option(
    "--certificate",
    envvar="VIRTCLOUD_CERTIFICATE",
    type=click.Path(path_type=Path),
    help="File with a certificate to show and its key, where SBF wants one.",
)
@click.version_option(__version__, prog_name="virtcloud")
@click.pass_context
def main(
    context: click.Context, url: str | None, token_file: Path | None, ca_file: Path | None, certificate: Path | None
) -> None:
    """Private layer-2 networks across sites, with virtual machines on them.

    Exit codes: 0 done; 1 the cluster failed, or SBF said no; 2 bad input, or SBF not reachable; 130 interrupted.

    Example: virtcloud cluster create demo --host brno-h1 --host praha-h1 --image busybox
    """
    context.obj = ConnectionOptions(url, token_file, ca_file, certificate)
