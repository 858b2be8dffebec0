"""``virtcloud access ssh``: the files with which plain ssh reaches the guests of a cluster through a gateway."""

from pathlib import Path

import click

from virtcloud.cli import printing
from virtcloud.cli.options import open_client
from virtcloud.cli.progress import ProgressLines, describe_pending
from virtcloud.client.gateway_logins import CONFIG, check_login_folder, request_login_files
from virtcloud.model.values import format_utc


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.option(
    "--output",
    required=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the files to this folder, which is created. The folder's path becomes part of the configuration.",
)
@printing.json_option
@click.pass_context
def ssh(context: click.Context, /, key: str, *, output: Path, as_json: bool) -> None:
    """Write files with which ssh reaches the guests of CLUSTER.

    The connections pass a gateway of the cluster. FOLDER has a configuration for ssh, a new private key, a certificate
    that is valid for some minutes, and the host keys of the gateways and guests. An open connection lasts until the
    cluster ends, your invitation is withdrawn, or the certificate is revoked. To get a new certificate, repeat the
    command. In the guests, you log in with your own key.

    Example: virtcloud access ssh demo --output demo-ssh && ssh -F demo-ssh/config g1
    """
    check_login_folder(output)
    progress = ProgressLines(describe_pending)
    certificate = request_login_files(open_client(context).sbf, key, output, show=progress)
    if as_json:
        printing.print_json(certificate)
        return
    guests = [peer.name for peer in certificate.peers]
    gateways = " or ".join(gateway.name for gateway in certificate.gateways)
    ends = format_utc(certificate.expires_at)
    click.echo(
        f"{certificate.user} may connect to cluster {key} through {gateways} until {ends}: "
        f"ssh -F {output / CONFIG} {guests[0] if guests else 'GUEST'}"
    )
