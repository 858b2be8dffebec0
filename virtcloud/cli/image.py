"""``virtcloud image``: the catalogue of images at SBF, and the images in the folder of this host."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from virtcloud.agent.guests.images import list_images
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.cli import host, printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.image_content import check_file, compute_sha256, describe_content, read_file
from virtcloud.cli.image_view import COLUMNS, HOST_COLUMNS, catalogue_row, format_users, host_row, no_row, print_image
from virtcloud.cli.options import open_client
from virtcloud.model.errors import BadInput, Refused, ServiceUnreachable, Unauthenticated
from virtcloud.model.image import (
    Architecture,
    CatalogueImage,
    HostFile,
    ImageFormat,
    ImageUrl,
    Sha256,
    check_no_credentials,
)
from virtcloud.model.values import Name

URL_SCHEMES = ("http://", "https://")


@click.group(cls=SummaryGroup)
def image() -> None:
    """Add, list, share, certify and remove the images from which guests are created.

    Example: virtcloud image add debian12 debian-12.qcow2
    """


@image.command()
@click.argument("name")
@click.argument("source", metavar="FILE|URL")
@click.option("--sha256", help="Expected checksum of the file, such as the checksum that the image's author published.")
@click.option(
    "--format",
    "image_format",
    type=click.Choice([str(kind) for kind in ImageFormat]),
    help="Format of the file. Needed only for raw disks.  [default: recognized from the file]",
)
@click.option("--architecture", default=platform.machine(), show_default="this machine's", help="As 'uname -m' prints.")
@click.option(
    "--host-file",
    metavar="PATH",
    help="Do not upload FILE: hosts have a copy at PATH in their folder of images (for example a network file system).",
)
@printing.json_option
@click.pass_context
def add(  # noqa: PLR0913 - click passes each option by its name
    context: click.Context,
    /,
    name: str,
    source: str,
    *,
    sha256: str | None,
    image_format: str | None,
    architecture: str,
    host_file: str | None,
    as_json: bool,
) -> None:
    """Add an image: upload FILE, or register URL, which hosts fetch themselves.

    A disk (qcow2, raw) is for QEMU guests, an archive of a root file system (tar, tar.gz, tar.xz, tar.zst) for LXC
    guests. You own the image. Other users may use the image only after you share it.

    Example: virtcloud image add debian12 https://example.org/debian-12.qcow2 --sha256 …
    """
    Name(name)
    check_no_credentials(source)
    if "://" in source and not source.startswith(URL_SCHEMES):
        raise BadInput(f"{source}: expected a file, or a URL that begins with https:// or http://, got another URL")
    url = ImageUrl(source) if source.startswith(URL_SCHEMES) else None
    if url is not None and host_file is not None:
        raise BadInput("--host-file: expected a local copy of the file, got a URL; pass FILE, or omit --host-file")
    expected = None if sha256 is None else Sha256(sha256.lower())
    file = None if host_file is None else HostFile(host_file)
    is_upload = url is None and file is None
    if is_upload:
        check_file(source)
    content = describe_content(
        source, expected, None if image_format is None else ImageFormat(image_format), Architecture(architecture)
    )
    sbf = open_client(context).sbf
    if is_upload:
        added = sbf.check_upload(name, content) or sbf.upload_image(
            name, content, read_file(Path(source), f"uploading {name}", content.size)
        )
    else:
        added = sbf.add_image(name, content, url=url, file=file)
    print_image(added, f"image {name} is ready; use it: virtcloud cluster create … --image {name}", as_json=as_json)


@image.command("list")
@click.option("--host", "on_host", is_flag=True, help="List only the images in this host's folder.")
@click.option(
    "--images",
    "folder",
    type=click.Path(path_type=Path),
    help="List only the images in this folder.  [default: the folder of this host's agent, or "
    "/var/lib/virtcloud/images]",
)
@printing.json_option
@click.pass_context
def list_(context: click.Context, *, on_host: bool, folder: Path | None, as_json: bool) -> None:
    """List this host's images and the catalogue's images that you may use.

    Each image of this host is shown with its permitted users and its faults.

    Example: virtcloud image list --images /var/lib/virtcloud/images
    """
    if on_host or folder is not None:
        images = list_images(folder or _find_folder())
        printing.print_list(HOST_COLUMNS, images, host_row, "no images", as_json=as_json)
        return
    local = list_images(_find_folder()) if _find_folder().is_dir() else []
    catalogue = _read_catalogue(context, optional=bool(local))
    if as_json:
        printing.print_list((), [*local, *catalogue], no_row, "", as_json=True)
        return
    if local:
        printing.print_table(HOST_COLUMNS, [host_row(found) for found in local], "")
        click.echo()
    printing.print_table(COLUMNS, [catalogue_row(found) for found in catalogue], "no images in the catalogue")


@image.command()
@click.argument("name")
@printing.json_option
@click.pass_context
def show(context: click.Context, name: str, as_json: bool) -> None:
    """Show an image of the catalogue: its file, its owner, who may use it and who certified it.

    Example: virtcloud image show debian12
    """
    print_image(open_client(context).sbf.image(name), None, as_json=as_json)


@image.command()
@click.argument("name")
@printing.json_option
@click.pass_context
def verify(context: click.Context, name: str, as_json: bool) -> None:
    """Read the file of an image again and compare its checksum with the recorded checksum.

    If SBF stores the file, SBF reads the file. If the image is at a URL, this command downloads the image.

    Example: virtcloud image verify debian12
    """
    sbf = open_client(context).sbf
    check, file = sbf.verify_image(name), "SBF's file is damaged"
    if check.found is None:
        source = sbf.image(name).source
        if source.url is not None:
            found = compute_sha256(source.url)
            check = check.model_copy(update={"found": found, "intact": found == source.sha256})
            file = f"the file at {source.url} was replaced"
    if as_json:
        printing.print_json(check)
    elif check.intact is None:
        click.echo(f"image {name}: SBF has no file; each host checks its file before use (sha256 {check.sha256})")
    else:
        click.echo(f"image {name}: sha256 {check.found}, {'as recorded' if check.intact else 'NOT as recorded'}")
    if check.intact is False:
        raise Refused(
            f"image {name}: expected sha256 {check.sha256}, found {check.found}: {file}, and hosts refuse it; "
            "remove the image and add it again, or add the file under another name"
        )


@image.command()
@click.argument("name")
@click.option("--site", "sites", multiple=True, required=True, metavar="SITE", help="Your site; may be repeated.")
@click.option("--revoke", is_flag=True, help="Revoke the certification.")
@printing.json_option
@click.pass_context
def certify(context: click.Context, name: str, sites: tuple[str, ...], *, revoke: bool, as_json: bool) -> None:
    """Certify an image for a site, as an administrator of the site: you state that the site may trust the image.

    Example: virtcloud image certify debian12 --site brno
    """
    sbf = open_client(context).sbf
    change = sbf.revoke_certification if revoke else sbf.certify_image
    for site in sites:
        sbf.site(site)  # raises NotFound before anything is changed
    found = [change(name, site) for site in sites][-1]
    verb = "is no longer certified for" if revoke else "is certified for"
    print_image(found, f"image {name} {verb} {', '.join(sites)}", as_json=as_json)


def _share_command(everybody: str) -> Callable[[Callable[..., None]], click.Command]:
    def decorate(function: Callable[..., None]) -> click.Command:
        command: Callable[..., Any] = click.pass_context(function)
        for option in (
            printing.json_option,
            click.option("--everybody", is_flag=True, help=everybody),
            click.argument("users", metavar="USER...", nargs=-1),
            click.argument("name"),
        ):
            command = option(command)
        return image.command()(command)

    return decorate


@_share_command("All users may use the image.")
def share(context: click.Context, name: str, users: tuple[str, ...], **options: bool) -> None:
    """Allow users to create guests from your image.

    Example: virtcloud image share debian12 bob
    """
    _change_users(context, name, users, allow=True, **options)


@_share_command("Only you and the users that 'virtcloud image share' named may use the image.")
def unshare(context: click.Context, name: str, users: tuple[str, ...], **options: bool) -> None:
    """Forbid users to create further guests from your image. Running clusters are not affected.

    Example: virtcloud image unshare debian12 bob
    """
    _change_users(context, name, users, allow=False, **options)


@image.command()
@click.argument("name")
@printing.json_option
@click.pass_context
def remove(context: click.Context, name: str, as_json: bool) -> None:
    """Remove an image that no running cluster uses, and its file at SBF.

    Example: virtcloud image remove debian12
    """
    removed = open_client(context).sbf.remove_image(name)
    printing.print_json(removed) if as_json else click.echo(f"image {name} is removed")


def _change_users(  # noqa: PLR0913 - click's options
    context: click.Context,
    name: str,
    users: tuple[str, ...],
    *,
    allow: bool,
    everybody: bool,
    as_json: bool,
) -> None:
    if not (everybody or users):
        raise BadInput("expected the names of users, or --everybody; got neither")
    add, remove = (users, ()) if allow else ((), users)
    found = open_client(context).sbf.share_image(name, add, remove, everybody=allow if everybody else None)
    print_image(found, f"image {name} may be used by {format_users(found)}", as_json=as_json)
    if users and not allow and found.everybody:
        click.echo(f"virtcloud: to exclude {', '.join(users)}: virtcloud image unshare {name} --everybody", err=True)


def _read_catalogue(context: click.Context, *, optional: bool) -> list[CatalogueImage]:
    """Return the images of the catalogue.

    If SBF does not answer or refuses the token, raise the error; if ``optional``, print a note and return [].
    """
    try:
        return open_client(context).sbf.images()
    except (ServiceUnreachable, Unauthenticated) as error:
        if not optional:
            raise
        click.echo(f"virtcloud: the catalogue is not listed: {error}", err=True)
        return []


def _find_folder() -> Path:
    if os.access(host.AGENT_SETTINGS_FILE, os.R_OK):
        return read_settings(host.AGENT_SETTINGS_FILE).images
    default: Path = AgentSettings.model_fields["images"].default
    return default
