"""``virtcloud agent``, the agent of a host."""

from pathlib import Path

import click

from virtcloud.agent.bootstrap import run_agent

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
    """Reconcile this host with its wanted state until SIGTERM. Needs root.

    On SIGTERM, the agent completes the current step on the host, begins no other step, and exits. Clusters continue to
    run.

    Example: virtcloud agent --config /etc/virtcloud/agent.toml
    """
    run_agent(config)
