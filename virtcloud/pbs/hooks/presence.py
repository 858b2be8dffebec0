"""Which jobs this host has, told to its agent from time to time: what PBS has lost must not stay up."""

from typing import Any, List

from virtcloud.pbs.hooks.agent import AgentAway, AgentRefused
from virtcloud.pbs.hooks.job import ASKED, attempt, key, resource
from virtcloud.pbs.hooks.mom_event import MomEvent


def startup(event: MomEvent) -> None:
    """Tell it that a MoM begins; PBS names no jobs here, and the agent forgives what is missed once."""
    _tell(event, [])


def periodic(event: MomEvent) -> None:
    """Tell it the jobs with a cluster."""
    jobs = [job for job in event.event.job_list.values() if resource(job, ASKED) is not None]
    _tell(event, [[key(job), attempt(job)] for job in jobs])


def _tell(event: MomEvent, clusters: List[List[Any]]) -> None:
    try:
        event.tell({"do": "running", "clusters": clusters})
    except (AgentAway, AgentRefused) as error:
        event.log(str(error))
