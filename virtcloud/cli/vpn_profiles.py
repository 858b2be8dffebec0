"""New VPN profiles on the command line: the device's name, the output, and the wait for the gateways."""

import re
import socket
import time
from functools import partial
from typing import Final

import click

from virtcloud.cli import printing
from virtcloud.cli.progress import ProgressLines, describe_pending
from virtcloud.client.api import Client
from virtcloud.client.waiting import call_until_answered
from virtcloud.model.errors import BadInput, ServiceUnreachable
from virtcloud.model.values import Name, format_utc
from virtcloud.model.vpn import NewVpnProfile, VpnProfileView

WAIT_S: Final = 60.0
"""The longest wait for the gateways, in seconds. A gateway may also confirm the profile later."""
WAIT_POLL_S: Final = 5.0
"""The longest wait in one long poll, in seconds."""
POLL_S: Final = 0.3
"""The shortest time between two calls, in seconds. This limit is needed if SBF answers at once instead of waiting."""
_OTHER_CHARACTERS: Final = re.compile("[^a-z0-9]+")


def parse_device(text: str | None) -> Name:
    """Return ``text`` (None: the host name) as a device name. Raise BadInput for a malformed name."""
    if text is None:
        return derive_device_name(socket.gethostname())
    try:
        return Name(text)
    except BadInput as error:
        raise BadInput(f"--device: {error}") from error


def derive_device_name(hostname: str) -> Name:
    """Return the host name as a device name: ``Eva's Laptop.local`` becomes ``eva-s-laptop``."""
    text = _OTHER_CHARACTERS.sub("-", hostname.partition(".")[0].lower()).strip("-")
    text = text if text[:1].isalpha() else f"device-{text}".rstrip("-")
    return Name(text[:32].rstrip("-"))


def print_without_secrets(created: NewVpnProfile) -> None:
    """Print a new profile as JSON, without its certificate and keys."""
    printing.print_json(VpnProfileView(**{key: getattr(created, key) for key in VpnProfileView.model_fields}))


def describe_profile(created: VpnProfileView) -> None:
    """Print who may join the cluster, with which addresses, and until when."""
    addresses = f" with {' and '.join(created.addresses)}" if created.addresses else ""
    end = format_utc(created.expires_at)
    role = "is the router of" if created.router else "may join"
    click.echo(
        f"device {created.device} of {created.user} {role} cluster {created.cluster}{addresses} until {end}", err=True
    )
    click.echo(
        "the profile ends at this time even if the lease is extended; after an extension, create a new profile",
        err=True,
    )


def wait_for_gateways(client: Client, created: VpnProfileView, next_step: str) -> None:
    """Wait at most ``WAIT_S`` seconds until :func:`find_ready_gateways` finds a gateway. Print the pending elements.

    Then print the time of the revocation, and ``next_step`` or the elements that have not confirmed the profile. Raise
    ServiceUnreachable if SBF does not answer for ``PATIENCE_S`` seconds.
    """
    progress, view, deadline = ProgressLines(describe_pending), created, time.monotonic() + WAIT_S
    while view.revoked_at is None and not find_ready_gateways(view) and time.monotonic() < deadline:
        progress(view)
        asked = time.monotonic()
        changed = _poll_profile(client, view)
        if changed == view:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - asked)))
        view = changed
    if view.revoked_at is not None:
        click.echo(f"virtcloud: the profile was revoked at {format_utc(view.revoked_at)}", err=True)
    elif ready := find_ready_gateways(view):
        click.echo(f"ready: {next_step} through {' or '.join(ready)}", err=True)
    else:
        click.echo(
            f"virtcloud: {_list_pending(view)} did not confirm the profile within {WAIT_S:.0f} s; the profile may work "
            "later",
            err=True,
        )


def _poll_profile(client: Client, view: VpnProfileView) -> VpnProfileView:
    try:
        return call_until_answered(partial(client.sbf.profile, view.cluster, view.id, WAIT_POLL_S))
    except ServiceUnreachable as error:
        raise ServiceUnreachable(
            f"the profile for device {view.device} was created, but {_list_pending(view)} had not confirmed the "
            "profile when SBF became unreachable; the profile may work later: virtcloud access list "
            f"{view.cluster} ({error})"
        ) from error


def _list_pending(view: VpnProfileView) -> str:
    return ", ".join(element.element for element in view.pending)


def find_ready_gateways(view: VpnProfileView) -> list[Name]:
    """Return the gateways that have confirmed a profile.

    Return an empty list while the profile is pending at an element that is no gateway, such as a switch.
    """
    pending = {element.element for element in view.pending}
    return [] if pending - set(view.gateways) else [name for name in view.gateways if name not in pending]
