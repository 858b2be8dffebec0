"""The section ``[scheduler]`` of the agent's settings, for the agent on the host of a batch system's server."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Name


class SchedulerSettings(Document):
    """``[scheduler]``: this section, even an empty section, enables reconciliation. Times are in seconds."""

    kind: Literal["openpbs", "torque"] = Field("openpbs", description="The batch system whose server runs here.")
    commands: Path | None = Field(
        None,
        description="Folder of `qstat` and related commands; default: `bin` of `PBS_EXEC` in `/etc/pbs.conf`, or the "
        "service's `PATH`.",
    )
    token_file: Path | None = Field(
        None, description="File with a token of the role *scheduler*; default: the agent's own `token_file`."
    )
    status: Path = Field(
        Path("/run/virtcloud/scheduler.json"),
        description="File with the result of the last round; `virtcloud pbs status` shows it.",
    )
    interval: float = Field(30, gt=0, le=600, description="Time between two rounds.")
    looks: int = Field(
        2,
        ge=2,
        le=100,
        description="A cluster is ended only if its job did not run in this number of successful rounds in a row.",
    )
    grace: float = Field(
        120, ge=0, le=86400, description="A cluster is ended only if its job did not run for this time."
    )
    grace_empty: float = Field(
        900,
        ge=0,
        le=86400,
        description="The value of `grace` while the scheduler has no job, not even a queued job.",
    )
    timeout: float = Field(30, gt=0, le=300, description="Time limit of one command of the scheduler.")
    nodes_interval: float = Field(600, gt=0, le=86400, description="Time between two checks of the scheduler's nodes.")
    apart: tuple[str, ...] = Field(
        (), description='Patterns of nodes without clusters, such as `["login*"]`; they raise no alert.'
    )
    hosts: dict[str, Name] = Field(
        default_factory=dict,
        description="SBF's names of nodes, such as `n1 = \"brno-h1\"`. Default: the node's name up to the first dot.",
    )
