"""The section ``[scheduler]`` of the agent's settings.

This machine reconciles a batch system's jobs with SBF's clusters.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Name


class SchedulerSettings(Document):
    """``[scheduler]``: the section, even if empty, enables reconciliation. Times are in seconds."""

    kind: Literal["openpbs", "torque"] = Field("openpbs", description="The batch system whose server runs here.")
    commands: Path | None = Field(
        None,
        description="Folder of `qstat` and its like; without it, `bin` of `PBS_EXEC` in `/etc/pbs.conf`, or the "
        "service's `PATH`.",
    )
    token_file: Path | None = Field(
        None, description="File with a token of the role *scheduler*; without it, the agent's own `token_file`."
    )
    status: Path = Field(
        Path("/run/virtcloud/scheduler.json"),
        description="File that says, after each look, what was seen and done; `virtcloud pbs status` shows it.",
    )
    interval: float = Field(30, gt=0, le=600, description="Between two looks.")
    looks: int = Field(
        2, ge=2, le=100, description="Looks in a row, none of which failed, at which a cluster must have been in doubt."
    )
    grace: float = Field(120, ge=0, le=86400, description="How long it must have been in doubt before it is ended.")
    grace_empty: float = Field(
        900, ge=0, le=86400, description="… where the scheduler has no job at all, not even a queued one."
    )
    timeout: float = Field(30, gt=0, le=300, description="Until a command of the scheduler is given up.")
    nodes_interval: float = Field(600, gt=0, le=86400, description="Between two looks at the scheduler's nodes.")
    apart: tuple[str, ...] = Field(
        (), description='Nodes that take no part, as patterns: `["login*"]`; nobody is told that SBF lacks them.'
    )
    hosts: dict[str, Name] = Field(
        default_factory=dict,
        description="SBF's name of a node, where it is not the node's up to the first dot: `n1 = \"brno-h1\"`.",
    )
