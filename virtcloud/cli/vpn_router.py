"""``virtcloud access router``: make the user's own computer the router of a cluster."""

import os
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final

import click

from virtcloud.cli import printing
from virtcloud.cli.options import open_client
from virtcloud.cli.vpn_profiles import describe_profile, parse_device, print_without_secrets, wait_for_gateways
from virtcloud.client.credentials import replace_private_file
from virtcloud.client.router_files import find_targets, parse_forwards, read_script, render_settings
from virtcloud.client.vpn_profile import make_device_key, render_profile
from virtcloud.model.errors import BadInput
from virtcloud.model.vpn import VpnProfileRequest

EXECUTABLE: Final = 0o700
PROFILE_FILE: Final = "router.ovpn"


@click.command()
@click.argument("key", metavar="CLUSTER")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Write the files to this folder.")
@click.option("--device", metavar="NAME", default="router", show_default=True, help="A name for this computer.")
@click.option(
    "--forward",
    "forwards",
    metavar="PORT:GUEST:PORT",
    multiple=True,
    help="Forward a port of this computer to a port of a guest: 8080:g1:80 or udp/53:g1:53; repeatable.",
)
@click.option(
    "--reach",
    "reachable",
    metavar="NETWORK",
    multiple=True,
    help="A private network or address that guests may reach through this computer; repeatable.  [default: none]",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the gateways accept the profile.")
@printing.json_option
@click.pass_context
def router(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    key: str,
    *,
    output: Path,
    device: str,
    forwards: tuple[str, ...],
    reachable: tuple[str, ...],
    no_wait: bool,
    as_json: bool,
) -> None:
    """Make your computer the router of CLUSTER.

    The command writes a profile and a script to a folder. The script needs Linux. While the script runs, guests reach
    other networks through your computer, and your computer forwards ports to guests. The cluster must have been created
    with '--router device'.

    Example: virtcloud access router demo --output demo-router --forward 8080:g1:80
    """
    client, name, ports = open_client(context), parse_device(device), parse_forwards(forwards)
    _check_folder(output)
    networks = [_parse_network(text) for text in reachable]
    targets = find_targets(ports, client.sbf.peers(key).peers if ports else ())
    device_key = make_device_key()
    created = client.sbf.create_profile(key, VpnProfileRequest(device=name, csr=device_key.csr, router=True))
    _write_files(
        output,
        (PROFILE_FILE, render_profile(created, device_key.private)),
        ("router.conf", render_settings(created, PROFILE_FILE, ports, targets, networks)),
        ("router", read_script()),
    )
    (output / "router").chmod(EXECUTABLE)
    if as_json:
        print_without_secrets(created)
    describe_profile(created)
    if not no_wait:
        wait_for_gateways(client, created, f"run 'sudo {output / 'router'} up' to connect")


def _parse_network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise BadInput(f"--reach: expected a network such as 192.168.1.0/24 or an address, got {text!r}") from error


def _check_folder(folder: Path) -> None:
    """Raise BadInput if the files cannot be written. Call this function before SBF revokes the former profile."""
    target = folder if folder.exists() else folder.absolute().parent
    if not target.is_dir() or not os.access(target, os.W_OK | os.X_OK):
        raise BadInput(
            "--output: expected a folder that you can write, or a new folder in a folder that you can write, got "
            f"{folder}"
        )


def _write_files(folder: Path, *texts: Sequence[str]) -> None:
    for name, text in texts:
        replace_private_file(folder / name, text)
