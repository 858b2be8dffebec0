"""``virtcloud cluster ssh`` and ``virtcloud cluster known-hosts``: logins to guests from anywhere."""

import os
from typing import Literal

import click

from virtcloud.cli import printing
from virtcloud.cli.cluster_run import IDENTITY, THROUGH
from virtcloud.cli.groups import SummaryCommand
from virtcloud.cli.options import open_client
from virtcloud.client.gateway_logins import CACHE_VARIABLE, find_login_folder
from virtcloud.client.ssh_arguments import ClusterLogins, SshOptions, require_ssh
from virtcloud.model.guest_seed import render_known_hosts


@click.command("known-hosts", cls=SummaryCommand)
@click.argument("key")
@printing.json_option
@click.pass_context
def known_hosts(context: click.Context, key: str, as_json: bool) -> None:
    """Print the host keys of the guests in the network of the cluster KEY, as lines for a file known_hosts.

    With these lines, ssh asks no question about a guest's host key, and refuses any other key.

    Example: virtcloud cluster known-hosts demo >> ~/.ssh/known_hosts
    """
    found = open_client(context).sbf.peers(key)
    if as_json:
        printing.print_json(found)
        return
    click.echo(render_known_hosts(found.peers), nl=False)
    if unknown := [peer.name for peer in found.peers if peer.host_key is None]:
        click.echo(
            f"the host keys of {', '.join(unknown)} are not known: an earlier version of SBF created their cluster",
            err=True,
        )


@click.command(cls=SummaryCommand)
@click.argument("key")
@click.argument("guest", required=False)
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--user", "-l", help="The login user in the guest.  [default: the login user of the cluster's guests]")
@IDENTITY
@click.option(
    "--option", "-o", "options", multiple=True, help="An option for ssh, as in ssh_config(5); may be repeated."
)
@THROUGH
@click.pass_context
def ssh(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    guest: str | None,
    *,
    command: tuple[str, ...],
    user: str | None,
    identity: str | None,
    options: tuple[str, ...],
    through: Literal["sbf", "gateway"] | None,
) -> None:
    """Log in to GUEST of the cluster KEY with ssh, from anywhere. Without GUEST, log in to the first guest.

    The connection passes a gateway of the cluster, or SBF and the agent of the guest's host. SBF knows the guest's
    host key, so that ssh asks no question. The exit code is the exit code of COMMAND, or 255 if ssh fails. A COMMAND
    needs a GUEST.

    Guests accept the keys that their owner had before the cluster was created (virtcloud key list). If ssh prints
    "Permission denied": load your key into the ssh-agent (ssh-add), or pass it with -i.

    Example: virtcloud cluster ssh demo g2 -- hostname
    """
    client = open_client(context)
    logins = ClusterLogins(client.sbf, key, find_login_folder(), variable=CACHE_VARIABLE)
    (login,) = logins.find(SshOptions(user, identity, options, through), [guest]).values()
    client.close()
    with require_ssh():
        os.execvp(login[0], [*login, *command])  # noqa: S606 - no shell
