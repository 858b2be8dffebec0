"""The ``sbf`` command, which runs the service and offers the commands of older schedulers.

No other package imports both the service and the command line.
"""

from pathlib import Path

import click

from virtcloud.cli import ConnectionOptions
from virtcloud.cli.groups import LazyGroup

COMMANDS = {
    "serve": ("sbf_service.__main__:serve", "Run the service until SIGTERM."),
    "backup": ("sbf_service.__main__:backup", "Write a backup of the database; SBF need not be stopped."),
    "restore": ("sbf_service.__main__:restore", "Restore the database from a backup."),
    "prune": ("sbf_service.__main__:prune", "Archive old audit rows and ended clusters."),
    "upgrade": (
        "sbf_service.__main__:upgrade",
        "Convert the database to this version. With --check, only try the conversion.",
    ),
    "openapi": ("sbf_service.__main__:openapi", "Print the OpenAPI document of the API."),
    "platforms": ("sbf_service.__main__:platforms", "List the switch platforms, including those of plug-ins."),
    "token": ("sbf_service.__main__:token", "Create tokens on the host of the service."),
    "requestvlan": ("virtcloud.cli.legacy_commands:requestvlan", "Create a network and print its VLAN ID."),
    "addhosts": ("virtcloud.cli.legacy_commands:addhosts", "Add hosts to a network."),
    "removehosts": ("virtcloud.cli.legacy_commands:removehosts", "Remove hosts from a network."),
    "releasevlan": ("virtcloud.cli.legacy_commands:releasevlan", "Release a network that has no hosts."),
    "forcereleasevlan": (
        "virtcloud.cli.legacy_commands:forcereleasevlan",
        "Remove all hosts from a network, and release the network.",
    ),
    "dumpstate": ("virtcloud.cli.legacy_commands:dumpstate", "Print all networks as XML."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    program="sbf",
    extras=dict.fromkeys(COMMANDS, "sbf"),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-q", "quiet", is_flag=True, help="Ignored: commands always print only their result.")
@click.option(
    "--url", envvar="VIRTCLOUD_URL", metavar="URL", help="Address of SBF, for the commands of older schedulers."
)
@click.option(
    "--token-file",
    envvar="VIRTCLOUD_TOKEN_FILE",
    type=click.Path(path_type=Path),
    help="File with the scheduler's token.",
)
@click.option(
    "--ca-file",
    envvar="VIRTCLOUD_CA_FILE",
    type=click.Path(path_type=Path),
    help="File with the certificate of the authority that signed SBF's certificate.",
)
@click.version_option(package_name="virtcloud")
@click.pass_context
def main(context: click.Context, quiet: bool, url: str | None, token_file: Path | None, ca_file: Path | None) -> None:  # noqa: ARG001 - older schedulers pass the option
    """Run the service that manages virtual clusters, or call it with the commands of older schedulers.

    Exit codes: 0 success; 1 refused, or not completed in time; 2 bad input, or SBF cannot be reached.

    Example: sbf requestvlan mine && sbf addhosts mine brno-h1 praha-h1
    """
    context.obj = ConnectionOptions(url, token_file, ca_file, None)
