"""``virtcloud access``: join a cluster's network from a computer, and invite users.

The modules `access_ssh`, `access_outside`, `access_list` and `vpn_router` contain the other commands.
"""

import os
import shlex
import stat
import sys
from pathlib import Path
from typing import Final

import click

from virtcloud.cli import printing
from virtcloud.cli.access_list import PROFILE_COLUMNS, list_, make_profile_row, revoke, sessions
from virtcloud.cli.access_outside import outside
from virtcloud.cli.access_ssh import ssh
from virtcloud.cli.confirmation import require_confirmation, yes_option
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import open_client
from virtcloud.cli.vpn_profiles import describe_profile, parse_device, print_without_secrets, wait_for_gateways
from virtcloud.cli.vpn_router import router
from virtcloud.client.credentials import replace_private_file
from virtcloud.client.vpn_profile import make_device_key, render_profile
from virtcloud.model.errors import BadInput
from virtcloud.model.message_text import count_of
from virtcloud.model.vpn import VpnInvitation, VpnProfileRequest

INVITATION_COLUMNS = ("user", "invited", "by")
PRIVATE: Final = 0o600


@click.group(cls=SummaryGroup)
def access() -> None:
    """Join the network of a cluster from your computer with OpenVPN, or reach its guests with ssh.

    Example: virtcloud access profile demo --output demo.ovpn
    """


access.add_command(ssh)
access.add_command(outside)
access.add_command(list_)
access.add_command(revoke)
access.add_command(sessions)


@access.command()
@click.argument("key", metavar="CLUSTER")
@click.option("--device", metavar="NAME", help="A name for this computer.  [default: its host name]")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write the profile to this file, which only you can read."
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the gateways accept the profile.")
@printing.json_option
@click.pass_context
def profile(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context, /, key: str, *, device: str | None, output: Path | None, no_wait: bool, as_json: bool
) -> None:
    """Create a profile for an OpenVPN client, with which this computer joins the network of CLUSTER.

    The profile is a file for any OpenVPN client of version 2.5 or later. The profile contains a private key, which SBF
    does not know. A new profile for the same computer replaces the former profile.

    Example: virtcloud access profile demo --output demo.ovpn

    Example: virtcloud access profile demo --device phone --output phone.ovpn
    """
    client = open_client(context)
    name = parse_device(device)
    file = _find_output(output)
    if as_json and output is None:
        raise BadInput("expected --output FILE with --json, because the profile is not JSON, got --json only")
    device_key = make_device_key()
    created = client.sbf.create_profile(key, VpnProfileRequest(device=name, csr=device_key.csr))
    _write(render_profile(created, device_key.private), file)
    if as_json:
        print_without_secrets(created)
    describe_profile(created)
    if not no_wait:
        wait_for_gateways(client, created, f"connect with 'openvpn --config {shlex.quote(str(output or 'FILE'))}'")


def _find_output(output: Path | None) -> Path | None:
    """Return the file to write. Follow symbolic links.

    Call this function before SBF creates the new profile and revokes the device's former profile.

    Raise BadInput if the file cannot be written, or if ``output`` is a folder, a device or a pipe.
    """
    if output is None:
        return None
    file = Path(os.path.realpath(output))
    try:
        mode = output.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise BadInput(f"--output: expected a file that you can write, got {output}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
        raise BadInput(f"--output: expected a new or regular file, got {output}, which is {kind}: name a file")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise BadInput(f"--output: expected a file in a folder that you can write, got {output}")
    return file


def _write(text: str, output: Path | None) -> None:
    if output is not None:
        replace_private_file(output, text)
        return
    _protect_stdout()
    click.echo(text, nl=False)
    sys.stdout.flush()


def _protect_stdout() -> None:
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # in tests, stdout can have no descriptor
        return
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        os.fchmod(descriptor, PRIVATE)


access.add_command(router)


@access.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("user", metavar="USER")
@printing.json_option
@click.pass_context
def invite(context: click.Context, /, key: str, user: str, *, as_json: bool) -> None:
    """Allow USER to create VPN profiles and SSH certificates for CLUSTER. Idempotent.

    Example: virtcloud access invite demo bob
    """
    invitation = open_client(context).sbf.invite_user(key, user)
    if as_json:
        printing.print_json(invitation)
    else:
        click.echo(f"{user} may join cluster {key}: virtcloud access profile {key}")


@access.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("user", metavar="USER")
@printing.json_option
@click.pass_context
def uninvite(context: click.Context, /, key: str, user: str, *, as_json: bool) -> None:
    """Withdraw the invitation of USER, and revoke the user's profiles and certificates for CLUSTER. Idempotent.

    Example: virtcloud access uninvite demo bob
    """
    sbf = open_client(context).sbf
    was_invited = any(invitation.user == user for invitation in sbf.invitations(key))
    revoked = sbf.withdraw_invitation(key, user)
    if as_json:
        printing.print_list(PROFILE_COLUMNS, revoked, make_profile_row, "", as_json=True)
    else:
        devices = ", ".join(view.device for view in revoked) or "none"
        click.echo(f"{user} is not invited to cluster {key}; devices with revoked profiles: {devices}")
    if not was_invited:
        remedy = f"list the invited users: virtcloud access invitations {key}"
        click.echo(f"virtcloud: {user} was not invited to cluster {key}; {remedy}", err=True)


@access.command()
@click.argument("key", metavar="CLUSTER")
@printing.json_option
@click.pass_context
def invitations(context: click.Context, /, key: str, *, as_json: bool) -> None:
    """List the users who are invited to CLUSTER.

    Example: virtcloud access invitations demo
    """
    found = open_client(context).sbf.invitations(key)
    printing.print_list(INVITATION_COLUMNS, found, _invitation_row, "nobody is invited", as_json=as_json)


@access.command("renew-authority")
@yes_option
@printing.json_option
@click.pass_context
def renew_authority(context: click.Context, /, *, yes: bool, as_json: bool) -> None:
    """Replace the certificate authority, and revoke the profiles and SSH certificates of all users, as an operator.

    Use this command if somebody may have read SBF's database. Users then create new profiles and certificates.

    Example: virtcloud access renew-authority
    """
    require_confirmation("Cut off all connected users, who then need new profiles?", yes=yes)
    renewal = open_client(context).sbf.renew_authority()
    if as_json:
        printing.print_json(renewal)
    else:
        click.echo(f"the certificate authority is replaced; {count_of(renewal.revoked, 'profile')} revoked")


def _invitation_row(invitation: VpnInvitation) -> tuple[object, ...]:
    return invitation.user, printing.format_time(invitation.invited_at), invitation.invited_by
