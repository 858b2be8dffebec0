"""The section ``[scheduler]`` of the agent's settings, for the agent on the host of a batch system's server."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from virtcloud.model.document import Document
from virtcloud.model.values import Name


class SchedulerSettings(Document):
    """``[scheduler]``: even an empty section enables the reconciliation of jobs with clusters. Times are in seconds."""

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
        description="File with the result of the last comparison of jobs with clusters. `virtcloud pbs status` shows "
        "this result.",
    )
    interval: float = Field(
        30,
        gt=0,
        le=600,
        description="Seconds between two rounds. In a round, the agent compares the batch system's jobs with SBF's "
        "clusters.",
    )
    looks: int = Field(
        2,
        ge=2,
        le=100,
        description="The agent ends a cluster only if the batch system answers in this many rounds in a row that the "
        "cluster's job does not run, or runs a later attempt.",
    )
    grace: float = Field(
        120,
        ge=0,
        le=86400,
        description="The agent ends a cluster only if this many seconds have passed since the first of the rounds that "
        "`looks` counts. Both `looks` and `grace` must be reached.",
    )
    grace_empty: float = Field(
        900,
        ge=0,
        le=86400,
        description="Seconds that replace `grace` while the batch system has no job, not even a queued job.",
    )
    timeout: float = Field(
        30, gt=0, le=300, description="Time limit in seconds of one command of the batch system, such as `qstat`."
    )
    nodes_interval: float = Field(
        600,
        gt=0,
        le=86400,
        description="Seconds between two checks whether SBF knows all nodes of the batch system. After a check that "
        "found an unknown node, or that failed, the next check follows after a tenth of this time.",
    )
    apart: tuple[str, ...] = Field(
        (), description='Patterns of nodes that need no clusters, such as `["login*"]`. SBF need not know these nodes.'
    )
    hosts: dict[str, Name] = Field(
        default_factory=dict,
        description="SBF's names of nodes, such as `n1 = \"brno-h1\"`. Default: the node's name up to the first dot.",
    )
