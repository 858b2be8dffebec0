"""``virtcloud agent``: this machine's converger.

``virtcloud image``: the images that guests can be made of.
"""

import os
from pathlib import Path

import click

from virtcloud.agent.bootstrap import run_agent
from virtcloud.agent.guests.images import ImageView, list_images
from virtcloud.agent.settings import AgentSettings, read_settings
from virtcloud.cli import printing
from virtcloud.cli.groups import SummaryGroup
from virtcloud.cli.options import json_option

AGENT_SETTINGS_FILE = Path("/etc/virtcloud/agent.toml")


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=AGENT_SETTINGS_FILE,
    show_default=True,
    help="The agent's settings (TOML).",
)
def agent(config: Path) -> None:
    """Converge this machine: fetch what it must carry, make it so, confirm, for ever. Needs root.

    SIGTERM ends it at once and leaves the machine as it is; clusters keep running.

    Example: virtcloud agent --config /etc/virtcloud/agent.toml
    """
    run_agent(config)


AGENT_SETTINGS = Path("/etc/virtcloud/agent.toml")
COLUMNS = ("image", "kind", "for", "you may", "trouble")


@click.group(cls=SummaryGroup)
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
@json_option
def list_(folder: Path | None, as_json: bool) -> None:
    """List this machine's images: of which kind each is, who may use it, and what is wrong with it.

    Example: virtcloud image list --images /var/lib/virtcloud/images
    """
    found = list_images(folder or _folder())
    printing.print_json_list(found) if as_json else printing.print_table(
        COLUMNS, [_row(one) for one in found], "no images"
    )


def _folder() -> Path:
    """Give the folder that the agent of this machine has, where that can be known."""
    if os.access(AGENT_SETTINGS, os.R_OK):
        return read_settings(AGENT_SETTINGS).images
    default: Path = AgentSettings.model_fields["images"].default
    return default


def _row(one: ImageView) -> tuple[object, ...]:
    return (one.name, one.kind, one.readable_by, "yes" if one.readable else "no", one.trouble)
