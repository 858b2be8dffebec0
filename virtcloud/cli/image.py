"""``virtcloud image``: the images that guests can be made of."""

import os
from pathlib import Path

import click

from virtcloud.agent.image_list import ImageView, list_images
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.cli import show
from virtcloud.cli.asking import as_json
from virtcloud.cli.whole import Group

AGENT_SETTINGS = Path("/etc/virtcloud/agent.toml")
COLUMNS = ("image", "kind", "for", "you may", "trouble")


@click.group(cls=Group)
def image() -> None:
    """Look at the images that guests can be made of.

    Example: virtcloud image list
    """


@image.command("list")
@click.option(
    "--images",
    "folder",
    type=click.Path(path_type=Path),
    help="The folder of images.  [default: as this machine's agent, or /var/lib/virtcloud/images]",
)
@as_json
def list_(folder: Path | None, as_json: bool) -> None:
    """List this machine's images: of which kind each is, who may use it, and what is wrong with it.

    Example: virtcloud image list --images /var/lib/virtcloud/images
    """
    found = list_images(folder or _folder())
    show.json_documents(found) if as_json else show.table(COLUMNS, [_row(one) for one in found], "no images")


def _folder() -> Path:
    """Give the folder that the agent of this machine has, where that can be known."""
    if os.access(AGENT_SETTINGS, os.R_OK):
        return read_settings(AGENT_SETTINGS).images
    default: Path = AgentSettings.model_fields["images"].default
    return default


def _row(one: ImageView) -> tuple[object, ...]:
    return (one.name, one.kind, one.readable_by, "yes" if one.readable else "no", one.trouble)
