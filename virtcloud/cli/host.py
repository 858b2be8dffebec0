"""``virtcloud agent`` and ``virtcloud image``: commands that run on a host of guests."""

import os
from pathlib import Path

import click

from virtcloud.agent.bootstrap import run_agent
from virtcloud.agent.guests.images import ImageView, list_images
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup

AGENT_SETTINGS_FILE = Path("/etc/virtcloud/agent.toml")
COLUMNS = ("image", "kind", "readable by", "by you", "trouble")


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=AGENT_SETTINGS_FILE,
    show_default=True,
    help="The agent's settings (TOML).",
)
def agent(config: Path) -> None:
    """Reconcile this host with its wanted state until SIGTERM. Needs root.

    On SIGTERM the agent exits immediately and changes nothing on the host. Clusters continue to run.

    Example: virtcloud agent --config /etc/virtcloud/agent.toml
    """
    run_agent(config)


@click.group(cls=SummaryGroup)
def image() -> None:
    """List the images from which guests are created.

    Example: virtcloud image list
    """


@image.command("list")
@click.option(
    "--images",
    "folder",
    type=click.Path(path_type=Path),
    help="The folder of images.  [default: the folder of this host's agent, or /var/lib/virtcloud/images]",
)
@printing.json_option
def list_(folder: Path | None, as_json: bool) -> None:
    """List the images on this host: the kind, the permitted users and the faults of each image.

    Example: virtcloud image list --images /var/lib/virtcloud/images
    """
    images = list_images(folder or _find_folder())
    printing.print_list(COLUMNS, images, _row, "no images", as_json=as_json)


def _find_folder() -> Path:
    """Return the image folder of this host's agent, or the default folder if the settings are not readable."""
    if os.access(AGENT_SETTINGS_FILE, os.R_OK):
        return read_settings(AGENT_SETTINGS_FILE).images
    default: Path = AgentSettings.model_fields["images"].default
    return default


def _row(image: ImageView) -> tuple[object, ...]:
    return (image.name, image.kind, image.readable_by, "yes" if image.readable else "no", image.trouble)
