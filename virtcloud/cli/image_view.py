"""Text output about images: rows of a table, or all properties."""

import click

from virtcloud.agent.guests.images import ImageView
from virtcloud.cli import printing
from virtcloud.model.document import Document
from virtcloud.model.image import CatalogueImage

HOST_COLUMNS = ("image", "kind", "readable by", "by you", "trouble")
KIB = 1 << 10
COLUMNS = ("image", "owner", "kind", "architecture", "size", "used by", "certified for")


def host_row(found: ImageView) -> tuple[object, ...]:
    """Return the table row of an image that is in a folder on this host."""
    return (found.name, found.kind, found.readable_by, "yes" if found.readable else "no", found.trouble)


def no_row(_: Document) -> tuple[object, ...]:
    """Return an empty row, for :func:`.print_list` with output in JSON."""
    return ()


def catalogue_row(found: CatalogueImage) -> tuple[object, ...]:
    """Return the row of an image of the catalogue."""
    sites = ", ".join(certification.site for certification in found.certified)
    source = found.source
    return (
        found.name,
        found.owner,
        found.kind,
        source.architecture,
        printing.format_size(source.size),
        format_users(found),
        sites or "user-supplied",
    )


def print_image(found: CatalogueImage, summary: str | None, *, as_json: bool) -> None:
    """Print an image as JSON or as text.

    The text is ``summary``, or, if ``summary`` is None, a line for each property of the image.
    """
    if as_json:
        printing.print_json(found)
        return
    if summary is not None:
        click.echo(summary)
        return
    for label, value in _describe_image(found):
        click.echo(f"{label + ':':15}{value}")


def _describe_image(found: CatalogueImage) -> list[tuple[str, str]]:
    source = found.source
    origin = source.url or (f"{source.file} in each host's folder of images" if source.file else "SBF")
    certified = [
        f"{certification.site}, by {certification.by}, {printing.format_time(certification.at)}"
        for certification in found.certified
    ]
    return [
        ("image", found.name),
        ("owner", found.owner),
        ("added", printing.format_time(found.added_at)),
        ("kind", f"{found.kind} ({source.format}, {source.architecture})"),
        ("size", printing.format_size(source.size) + (f" ({source.size} bytes)" if source.size >= KIB else "")),
        ("sha256", source.sha256),
        ("fetched from", origin),
        ("used by", format_users(found)),
        ("certified for", "; ".join(certified) or "no site (user-supplied)"),
    ]


def format_users(found: CatalogueImage) -> str:
    """Return the users who may use an image."""
    return "everybody" if found.everybody else ", ".join((found.owner, *found.shared_with))
