"""``virtcloud access list``, ``revoke`` and ``sessions``: VPN profiles, SSH certificates, and open connections.

Without ``--kind``, the JSON output of ``list`` and ``sessions`` is about VPN only, as programs for earlier versions
expect.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from virtcloud.cli import printing
from virtcloud.cli.options import open_client
from virtcloud.client.api import Client
from virtcloud.model.errors import BadInput, NoSuchCall, NotFound
from virtcloud.model.message_text import count_of
from virtcloud.model.ssh_connections import SERIAL_LIMIT, SshCertificateEntry, SshConnectionView
from virtcloud.model.vpn import VpnConnectionView, VpnProfileView

VPN, SSH = "vpn", "ssh"
PROFILE_COLUMNS: Final = ("kind", "device", "user", "addresses", "gateways", "created", "valid until", "id")
CONNECTION_COLUMNS: Final = (
    "device or guest",
    "user",
    "gateway",
    "from",
    "protocol",
    "since",
    "received",
    "sent",
    "reported",
    "id",
)
T = TypeVar("T")
kind_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--kind", type=click.Choice([VPN, SSH]), help="List only this kind.  [default: both; with --json: vpn]"
)


@click.command("list")
@click.argument("key", metavar="CLUSTER")
@click.option("--all", "ended", is_flag=True, help="Also list revoked profiles and ended certificates.")
@kind_option
@printing.json_option
@click.pass_context
def list_(context: click.Context, /, key: str, *, ended: bool, kind: str | None, as_json: bool) -> None:
    """List the VPN profiles and SSH certificates of CLUSTER.

    An invited user sees only the user's own profiles and certificates. An SSH certificate expires after some minutes.
    Connections that were opened with the certificate continue until you revoke the certificate. The last column is the
    ID for 'virtcloud access revoke'.

    Example: virtcloud access list demo
    """
    sbf = open_client(context).sbf
    profiles = [] if kind == SSH else sbf.profiles(key, revoked=ended)
    if as_json and kind != SSH:
        printing.print_list(PROFILE_COLUMNS, profiles, make_profile_row, "", as_json=True)
        return
    certificates = [] if kind == VPN else _read_if_known(lambda: sbf.ssh_certificates(key, ended=ended), kind)
    if as_json:
        printing.print_list(PROFILE_COLUMNS, certificates, _certificate_row, "", as_json=True)
        return
    rows = [*map(make_profile_row, profiles), *map(_certificate_row, certificates)]
    printing.print_table(PROFILE_COLUMNS, rows, "no profiles and no SSH certificates")


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.argument("device", metavar="DEVICE|ID")
@click.option("--user", help="The user of the device.  [default: the only user with a device of this name]")
@printing.json_option
@click.pass_context
def revoke(context: click.Context, /, key: str, device: str, *, user: str | None, as_json: bool) -> None:
    """Revoke the VPN profile of a device, or an SSH certificate.

    The gateways end the connections of the profile or certificate at once.

    Example: virtcloud access revoke demo laptop

    Example: virtcloud access revoke demo 6148914691236517205
    """
    client = open_client(context)
    serial = _parse_serial(client, key, device)
    if serial is not None:
        certificate = client.sbf.revoke_ssh_certificate(key, serial)
        text = f"the SSH certificate {serial} of {certificate.user} for cluster {key} is revoked"
        printing.print_json(certificate) if as_json else click.echo(text)
        return
    revoked = client.sbf.revoke_profile(key, _find_profile(client, key, device, user))
    text = f"the profile of device {revoked.device} of {revoked.user} for cluster {key} is revoked"
    printing.print_json(revoked) if as_json else click.echo(text)


@click.command()
@click.argument("key", metavar="CLUSTER")
@kind_option
@printing.json_option
@click.pass_context
def sessions(context: click.Context, /, key: str, *, kind: str | None, as_json: bool) -> None:
    """List the devices and SSH users that are connected now.

    SSH users are connected with guests of CLUSTER through a gateway. The last column is the ID of the profile or
    certificate for 'virtcloud access revoke'.

    Example: virtcloud access sessions demo
    """
    sbf = open_client(context).sbf
    devices = [] if kind == SSH else sbf.vpn_connections(key)
    if as_json and kind != SSH:
        printing.print_list(CONNECTION_COLUMNS, devices, _device_row, "", as_json=True)
        return
    logins = [] if kind == VPN else _read_if_known(lambda: sbf.ssh_connections(key), kind)
    if as_json:
        printing.print_list(CONNECTION_COLUMNS, logins, _login_row, "", as_json=True)
        return
    rows = [*map(_device_row, devices), *map(_login_row, logins)]
    printing.print_table(CONNECTION_COLUMNS, rows, "no device is connected, and no SSH connection is open")


def _read_if_known(read: Callable[[], list[T]], kind: str | None) -> list[T]:
    """Return an empty list for the kind None if SBF is too old. If the user named the kind, raise NoSuchCall."""
    try:
        return read()
    except NoSuchCall:
        if kind is not None:
            raise
        return []


def _parse_serial(client: Client, key: str, text: str) -> int | None:
    """Return None if ``text`` is not a serial number, or if a VPN profile has the ID ``text``."""
    if re.fullmatch("[0-9]{1,19}", text) is None or int(text) >= SERIAL_LIMIT:
        return None
    return None if any(view.id == text for view in client.sbf.profiles(key, revoked=True)) else int(text)


def _find_profile(client: Client, key: str, device: str, user: str | None) -> str:
    """Return the ID of the profile ``device``, which is an ID or a device's name.

    Raise NotFound if no valid profile is for a device of this name. Raise BadInput if several users have devices of
    this name.
    """
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


def make_profile_row(view: VpnProfileView) -> tuple[object, ...]:
    """Return a profile as a row with the columns `PROFILE_COLUMNS`."""
    end = (
        f"revoked {printing.format_time(view.revoked_at)}" if view.revoked_at else printing.format_time(view.expires_at)
    )
    created = printing.format_time(view.created_at)
    addresses = ", ".join(view.addresses) + (" (router)" if view.router else "")
    return VPN, view.device, view.user, addresses, ", ".join(view.gateways), created, end, view.id


def _certificate_row(entry: SshCertificateEntry) -> tuple[object, ...]:
    revoked = f"revoked {printing.format_time(entry.revoked_at)}" if entry.revoked_at else None
    end = revoked or printing.format_time(entry.expires_at)
    opened = f" ({count_of(entry.connections, 'open connection')})" if entry.connections else ""
    return SSH, "", entry.user, "", "", printing.format_time(entry.created_at), f"{end}{opened}", entry.serial


def _device_row(view: VpnConnectionView) -> tuple[object, ...]:
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
        view.profile,
    )


def _login_row(view: SshConnectionView) -> tuple[object, ...]:
    since = printing.format_time(view.connected_at) if view.connected_at else ""
    reported = printing.format_time(view.reported_at)
    return view.guest, view.user, view.gateway, view.remote, SSH, since, "", "", reported, view.serial
