"""``virtcloud agent``: this machine's converger."""

from pathlib import Path

import click

from virtcloud.agent.run import run

DEFAULT = Path("/etc/virtcloud/agent.toml")


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=DEFAULT,
    show_default=True,
    help="The agent's settings (TOML).",
)
def agent(config: Path) -> None:
    """Converge this machine: fetch what it must carry, make it so, confirm, for ever. Needs root.

    SIGTERM ends it at once and leaves the machine as it is; clusters keep running.

    Example: virtcloud agent --config /etc/virtcloud/agent.toml
    """
    run(config)
