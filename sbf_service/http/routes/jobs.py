"""Confirmation of batch jobs. Before a host may create a job's cluster, the scheduler confirms the job."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query

from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller, CurrentService
from sbf_service.http.long_polls import CurrentPoll
from sbf_service.http.operations import Operation, Wait
from sbf_service.http.problems import problem_responses
from sbf_service.store.clusters.job_proofs import JOBS_TOPIC, list_unproven_jobs, record_job_proof
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import JobStatement

SERVER_NAME = r"^[A-Za-z0-9][A-Za-z0-9.-]{0,254}$"
JOBS = ProtectedResource("jobs")

ServerQuery = Annotated[
    str, Query(pattern=SERVER_NAME, description="The name of the batch server; the IDs of its jobs end with this name.")
]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], route_class=Operation)


@router.get("", operation_id="list_asked_jobs", responses=problem_responses(422))
async def list_unconfirmed_jobs(
    caller: CurrentCaller, service: CurrentService, poll: CurrentPoll, server: ServerQuery, wait: Wait = 0
) -> list[ClusterKey]:
    """List the unconfirmed jobs of a batch server; if there is none, wait at most `wait` seconds for such a job."""
    caller.require(Action.CONFIRM_JOB, JOBS)

    def read_jobs() -> list[ClusterKey]:
        with service.store.read() as unit:
            return list_unproven_jobs(unit, server)

    await poll.wait_until_newer(JOBS_TOPIC, poll.in_thread(lambda: len(read_jobs())), 0, wait, is_exact=False)
    return await poll.read(read_jobs)


@router.put(
    "/{key}", operation_id="answer_for_job", status_code=HTTPStatus.NO_CONTENT, responses=problem_responses(422)
)
def confirm_job(key: ClusterKey, statement: JobStatement, caller: CurrentCaller, service: CurrentService) -> None:
    """State whether a job runs and, if it runs, its owner, its hosts and the network that it requested."""
    caller.require(Action.CONFIRM_JOB, JOBS)
    with service.store.change(who=caller.who) as unit:
        record_job_proof(unit, key, statement)
