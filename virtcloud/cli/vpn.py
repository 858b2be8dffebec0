"""``virtcloud access``: join a cluster's network from a computer, list and revoke profiles, and invite users.

The commands ``access ssh`` and ``access outside`` are in the modules `access_ssh` and `access_outside`.
"""

import os
import stat
import sys
from pathlib import Path
from typing import Final

import click

from virtcloud.cli import printing
from virtcloud.cli.access_outside import outside
from virtcloud.cli.access_ssh import ssh
from virtcloud.cli.confirmation import require_confirmation, yes_option
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import open_client
from virtcloud.cli.vpn_profiles import describe_profile, parse_device, print_without_secrets, wait_for_gateways
from virtcloud.cli.vpn_router import router
from virtcloud.client.api import Client
from virtcloud.client.credentials import replace_private_file
from virtcloud.client.vpn_profile import make_device_key, render_profile
from virtcloud.model.errors import BadInput, NotFound, count_of
from virtcloud.model.vpn import VpnConnectionView, VpnInvitation, VpnProfileRequest, VpnProfileView

PROFILE_COLUMNS = ("device", "user", "addresses", "gateways", "created", "valid until", "id")
CONNECTION_COLUMNS = ("device", "user", "gateway", "from", "protocol", "since", "received", "sent", "reported")
INVITATION_COLUMNS = ("user", "invited", "by")
PRIVATE: Final = 0o600


@click.group(cls=SummaryGroup)
def access() -> None:
    """Join the network of a cluster from your computer with OpenVPN, or reach its guests with ssh.

    Example: virtcloud access profile demo > demo.ovpn
    """


access.add_command(ssh)
access.add_command(outside)


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

    The profile is a file for any OpenVPN client of version 2.5 or later. It contains a private key, which SBF does not
    know. A new profile for the same computer replaces the former profile.

    Example: virtcloud access profile demo > demo.ovpn

    Example: virtcloud access profile demo --device laptop --output demo.ovpn
    """
    client = open_client(context)
    name = parse_device(device)
    _check_output(output)
    if as_json and output is None:
        raise BadInput("expected --output FILE with --json, because the profile is not JSON, got --json only")
    device_key = make_device_key()
    created = client.sbf.create_profile(key, VpnProfileRequest(device=name, csr=device_key.csr))
    _write(render_profile(created, device_key.private), output)
    if as_json:
        print_without_secrets(created)
    describe_profile(created)
    if not no_wait:
        wait_for_gateways(client, created, "connect with 'openvpn --config FILE'")


def _check_output(output: Path | None) -> None:
    """Raise BadInput if the file cannot be written, before the device's former profile is revoked."""
    if output is not None and (output.is_dir() or not os.access(output.absolute().parent, os.W_OK | os.X_OK)):
        raise BadInput(f"--output: expected a file in a folder that you can write, got {output}")


def _write(text: str, output: Path | None) -> None:
    """Write a profile to a file, or to stdout. If stdout is a file, make it readable for its owner only."""
    if output is not None:
        replace_private_file(output, text)
        return
    _protect_stdout()
    click.echo(text, nl=False)
    sys.stdout.flush()


def _protect_stdout() -> None:
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # a test's stdout, which is no file
        return
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        os.fchmod(descriptor, PRIVATE)


access.add_command(router)


@access.command("list")
@click.argument("key", metavar="CLUSTER")
@click.option("--all", "revoked", is_flag=True, help="Also list revoked profiles.")
@printing.json_option
@click.pass_context
def list_(context: click.Context, /, key: str, *, revoked: bool, as_json: bool) -> None:
    """List the profiles of CLUSTER. If you were invited to the cluster, list your profiles.

    Example: virtcloud access list demo
    """
    views = open_client(context).sbf.profiles(key, revoked=revoked)
    printing.print_list(PROFILE_COLUMNS, views, _profile_row, "no profiles", as_json=as_json)


@access.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("device", metavar="DEVICE|ID")
@click.option("--user", metavar="USER", help="The user of the device.  [default: the only user with such a device]")
@printing.json_option
@click.pass_context
def revoke(context: click.Context, /, key: str, device: str, *, user: str | None, as_json: bool) -> None:
    """Revoke the profile of a device. The gateways end its connection at once.

    Example: virtcloud access revoke demo laptop
    """
    client = open_client(context)
    revoked = client.sbf.revoke_profile(key, _find_profile(client, key, device, user))
    if as_json:
        printing.print_json(revoked)
    else:
        click.echo(f"the profile of device {revoked.device} of {revoked.user} for cluster {key} is revoked")


def _find_profile(client: Client, key: str, device: str, user: str | None) -> str:
    """Return the ID of the profile with this ID or device. Raise NotFound or BadInput unless there is exactly one."""
    views = client.sbf.profiles(key, revoked=True)
    if any(view.id == device for view in views):
        return device
    valid = [view for view in views if view.revoked_at is None and user in {None, view.user}]
    found = [view for view in valid if view.device == device]
    if not found:
        known = ", ".join(f"{view.device} of {view.user}" for view in valid) or "none"
        raise NotFound(f"cluster {key} has no valid profile of device {device}; devices with profiles: {known}")
    if len(found) > 1:
        users = ", ".join(view.user for view in found)
        raise BadInput(f"device {device}: expected one device, got devices of {users}: add --user USER")
    return found[0].id


@access.command()
@click.argument("key", metavar="CLUSTER")
@printing.json_option
@click.pass_context
def sessions(context: click.Context, /, key: str, *, as_json: bool) -> None:
    """List the devices that are connected to CLUSTER now.

    Example: virtcloud access sessions demo
    """
    views = open_client(context).sbf.vpn_connections(key)
    printing.print_list(CONNECTION_COLUMNS, views, _connection_row, "no device is connected", as_json=as_json)


@access.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("user", metavar="USER")
@printing.json_option
@click.pass_context
def invite(context: click.Context, /, key: str, user: str, *, as_json: bool) -> None:
    """Allow USER to create profiles for CLUSTER, with which the user's own computers join its network. Idempotent.

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
    """Withdraw the invitation of USER, and revoke the user's profiles for CLUSTER. Idempotent.

    Example: virtcloud access uninvite demo bob
    """
    revoked = open_client(context).sbf.withdraw_invitation(key, user)
    if as_json:
        printing.print_list(PROFILE_COLUMNS, revoked, _profile_row, "", as_json=True)
    else:
        devices = ", ".join(view.device for view in revoked) or "none"
        click.echo(f"{user} is not invited to cluster {key}; devices with revoked profiles: {devices}")


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
    """Replace the certificate authority, and revoke the profiles of all users, as an operator.

    Do this if somebody may have read SBF's database. Users then create new profiles.

    Example: virtcloud access renew-authority
    """
    require_confirmation("Cut off all connected users, who then need new profiles?", yes=yes)
    renewal = open_client(context).sbf.renew_authority()
    if as_json:
        printing.print_json(renewal)
    else:
        click.echo(f"the certificate authority is replaced; {count_of(renewal.revoked, 'profile')} revoked")


def _profile_row(view: VpnProfileView) -> tuple[object, ...]:
    end = (
        f"revoked {printing.format_time(view.revoked_at)}" if view.revoked_at else printing.format_time(view.expires_at)
    )
    created = printing.format_time(view.created_at)
    addresses = ", ".join(view.addresses) + (" (router)" if view.router else "")
    return view.device, view.user, addresses, ", ".join(view.gateways), created, end, view.id


def _connection_row(view: VpnConnectionView) -> tuple[object, ...]:
    return (
        view.device,
        view.user,
        view.gateway,
        view.remote,
        view.protocol,
        printing.format_time(view.connected_at),
        printing.format_size(view.received_bytes),
        printing.format_size(view.sent_bytes),
        printing.format_time(view.reported_at),
    )


def _invitation_row(invitation: VpnInvitation) -> tuple[object, ...]:
    return invitation.user, printing.format_time(invitation.invited_at), invitation.invited_by
