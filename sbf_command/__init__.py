"""The ``sbf`` command: runs the service, and offers the commands by which older schedulers call it.

This package alone imports both the service and the command line; each is loaded when it is called.
"""

from pathlib import Path

import click

from virtcloud.cli import ConnectionOptions
from virtcloud.cli.groups import LazyGroup

COMMANDS = {
    "serve": ("sbf_service.__main__:serve", "Serve until SIGTERM."),
    "openapi": ("sbf_service.__main__:openapi", "Print the OpenAPI document of the API."),
    "platforms": ("sbf_service.__main__:platforms", "List the switch platforms, also those of plug-ins."),
    "token": ("sbf_service.__main__:token", "Create tokens on the service's own machine."),
    "requestvlan": ("virtcloud.cli.legacy_commands:requestvlan", "Create a network and print its VLAN ID."),
    "addhosts": ("virtcloud.cli.legacy_commands:addhosts", "Add hosts to a network."),
    "removehosts": ("virtcloud.cli.legacy_commands:removehosts", "Remove hosts from a network."),
    "releasevlan": ("virtcloud.cli.legacy_commands:releasevlan", "Release a network without hosts."),
    "forcereleasevlan": ("virtcloud.cli.legacy_commands:forcereleasevlan", "Release a network with its hosts."),
    "dumpstate": ("virtcloud.cli.legacy_commands:dumpstate", "Print all networks as XML."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    program="sbf",
    extra="sbf",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-q", "quiet", is_flag=True, help="Accepted without effect: commands print their result only.")
@click.option(
    "--url", envvar="VIRTCLOUD_URL", metavar="URL", help="Address of SBF, for the commands of older schedulers."
)
@click.option(
    "--token-file", envvar="VIRTCLOUD_TOKEN_FILE", type=click.Path(path_type=Path), help="The scheduler's token."
)
@click.option(
    "--ca-file",
    envvar="VIRTCLOUD_CA_FILE",
    type=click.Path(path_type=Path),
    help="File with the certificate of SBF's authority.",
)
@click.version_option(package_name="virtcloud")
@click.pass_context
def main(context: click.Context, quiet: bool, url: str | None, token_file: Path | None, ca_file: Path | None) -> None:  # noqa: ARG001 - older schedulers pass it
    """Run the service that owns virtual clusters, or call it with the commands of older schedulers.

    Exit codes: 0 done; 1 refused, or not done in time; 2 bad input, or SBF not reachable.

    Example: sbf requestvlan mine && sbf addhosts mine brno-h1 praha-h1
    """
    context.obj = ConnectionOptions(url, token_file, ca_file, None)
