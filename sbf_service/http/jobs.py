"""Jobs that hosts want to begin: which ones are asked about, and what the batch system's server says of them."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from sbf_service.access.rights import Action, Subject
from sbf_service.http.caller import Who
from sbf_service.http.poll import Wait, newer
from sbf_service.http.problems import answers
from sbf_service.service import Service
from sbf_service.store.jobs import ASKED, answer_job, asked_jobs
from virtcloud.model.job_word import JobWord
from virtcloud.model.values import ClusterKey

SERVER = r"^[A-Za-z0-9][A-Za-z0-9.-]{0,254}$"
ABOUT = Subject("jobs")


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

    @router.get(
        "",
        operation_id="list_asked_jobs",
        summary="List the jobs of a batch server that hosts ask about, or wait for one",
        responses=answers(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    async def show_all(
        caller: Who,
        server: Annotated[str, Query(pattern=SERVER, description="The batch server's name: its jobs' ids end in it.")],
        wait: Wait = 0,
    ) -> list[ClusterKey]:
        caller.must(Action.ANSWER_FOR_JOB, ABOUT)

        def asked() -> list[ClusterKey]:
            with service.store.read() as unit:
                return asked_jobs(unit, server)

        await newer(service.notifier, ASKED, lambda: len(asked()), 0, wait)
        return await run_in_threadpool(asked)

    @router.put(
        "/{key}",
        operation_id="answer_for_job",
        summary="Answer for a job: whose it is, where it runs, and which network it asked for",
        status_code=HTTPStatus.NO_CONTENT,
        responses=answers(HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def answer(key: ClusterKey, word: JobWord, caller: Who) -> None:
        caller.must(Action.ANSWER_FOR_JOB, ABOUT)
        with service.store.change(who=caller.who) as unit:
            answer_job(unit, key, word)

    return router
