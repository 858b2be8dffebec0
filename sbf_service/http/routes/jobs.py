"""Jobs that hosts want to begin: which ones are asked about, and what the batch system's server says of them."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller
from sbf_service.http.conditional import Wait, wait_until_newer
from sbf_service.http.problems import problem_responses
from sbf_service.store.job_proofs import JOBS_TOPIC, list_unproven_jobs, record_job_proof
from virtcloud.model.values import ClusterKey
from virtcloud.model.views import JobStatement

SERVER = r"^[A-Za-z0-9][A-Za-z0-9.-]{0,254}$"
ABOUT = ProtectedResource("jobs")


def routes(service: SbfService) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @router.get(
        "",
        operation_id="list_asked_jobs",
        summary="List the jobs of a batch server that hosts ask about, or wait for one",
        responses=problem_responses(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def show_all(
        caller: CurrentCaller,
        server: Annotated[str, Query(pattern=SERVER, description="The batch server's name: its jobs' ids end in it.")],
        wait: Wait = 0,
    ) -> list[ClusterKey]:
        caller.must(Action.ANSWER_FOR_JOB, ABOUT)

        def asked() -> list[ClusterKey]:
            with service.store.read() as unit:
                return list_unproven_jobs(unit, server)

        await wait_until_newer(service.change_feed, JOBS_TOPIC, lambda: len(asked()), 0, wait)
        return await run_in_threadpool(asked)

    @router.put(
        "/{key}",
        operation_id="answer_for_job",
        summary="Answer for a job: whose it is, where it runs, and which network it asked for",
        status_code=HTTPStatus.NO_CONTENT,
        responses=problem_responses(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def answer(key: ClusterKey, word: JobStatement, caller: CurrentCaller) -> None:
        caller.must(Action.ANSWER_FOR_JOB, ABOUT)
        with service.store.change(who=caller.who) as unit:
            record_job_proof(unit, key, word)

    return router
