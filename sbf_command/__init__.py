"""The ``sbf`` command: it runs the service, and has the verbs by which schedulers of old ask it.

The only place that knows both sides; each is loaded when it is called.
"""

from pathlib import Path

import click

from virtcloud.cli import ConnectionOptions
from virtcloud.cli.groups import LazyGroup

COMMANDS = {
    "serve": ("sbf_service.__main__:serve", "Serve until SIGTERM."),
    "openapi": ("sbf_service.__main__:openapi", "Print the OpenAPI document of the API."),
    "platforms": ("sbf_service.__main__:platforms", "List the switch platforms, those of plug-ins among them."),
    "token": ("sbf_service.__main__:token", "Make tokens on the service's own machine."),
    "requestvlan": ("virtcloud.cli.legacy_commands:requestvlan", "Make a network and print its VLAN number."),
    "addhosts": ("virtcloud.cli.legacy_commands:addhosts", "Bring a network to hosts."),
    "removehosts": ("virtcloud.cli.legacy_commands:removehosts", "Take a network from hosts."),
    "releasevlan": ("virtcloud.cli.legacy_commands:releasevlan", "Give up a network without hosts."),
    "forcereleasevlan": ("virtcloud.cli.legacy_commands:forcereleasevlan", "Give up a network with its hosts."),
    "dumpstate": ("virtcloud.cli.legacy_commands:dumpstate", "Print all networks as XML."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    program="sbf",
    extra="sbf",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-q", "quiet", is_flag=True, help="Taken and without effect: a verb prints what it is asked for, no more."
)
@click.option("--url", envvar="VIRTCLOUD_URL", metavar="URL", help="Address of SBF, for the verbs.")
@click.option(
    "--token-file", envvar="VIRTCLOUD_TOKEN_FILE", type=click.Path(path_type=Path), help="The scheduler's token."
)
@click.option("--ca-file", envvar="VIRTCLOUD_CA_FILE", type=click.Path(path_type=Path), help="SBF's authority.")
@click.version_option(package_name="virtcloud")
@click.pass_context
def main(context: click.Context, quiet: bool, url: str | None, token_file: Path | None, ca_file: Path | None) -> None:  # noqa: ARG001 - of old
    """Run the service that owns virtual clusters, or ask it by the verbs of old.

    Exit codes: 0 done; 1 SBF said no, or it was not done in time; 2 bad input, or SBF not reachable.

    Example: sbf requestvlan mine && sbf addhosts mine brno-h1 praha-h1
    """
    context.obj = ConnectionOptions(url, token_file, ca_file, None)
