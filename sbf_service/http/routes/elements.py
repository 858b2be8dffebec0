"""Elements: how far they are, and the agents' side: fetch what is wanted, confirm it."""

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from sbf_service.bootstrap import SbfService
from sbf_service.domain.rights import Action, ProtectedResource
from sbf_service.http.auth.authorization import CurrentCaller, authorize_element
from sbf_service.http.conditional import After, Wait, wait_until_newer
from sbf_service.http.problems import problem_responses
from sbf_service.store import elements
from sbf_service.store.leases import record_agent_heartbeat
from sbf_service.store.revisions import require_element
from sbf_service.store.transitions import fail_refused_clusters
from virtcloud.model.values import Name
from virtcloud.model.views import Confirmation, ElementErrorReport, ElementView
from virtcloud.model.wanted import WantedDocument

NOT_OURS = problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)


def routes(service: SbfService) -> APIRouter:
    """Give the routes."""
    router = APIRouter(prefix="/v1/elements", tags=["elements"])
    drain = service.settings.timing.drain

    @router.get("", operation_id="list_elements", summary="List elements with their revisions")
    def show_all(caller: CurrentCaller) -> list[ElementView]:
        caller.must(Action.READ_ELEMENT, ProtectedResource("all elements"))
        with service.store.read() as unit:
            return elements.make_element_views(unit)

    @router.get(
        "/{name}",
        operation_id="get_element",
        summary="Look at an element",
        responses=problem_responses(HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY),
    )
    def get(name: Name, caller: CurrentCaller) -> ElementView:
        authorize_element(service.store, caller, Action.READ_ELEMENT, name)
        with service.store.read() as unit:
            return elements.make_element_view(unit, name)

    @router.get(
        "/{name}/wanted",
        operation_id="get_wanted",
        summary="Fetch what a host or gateway must carry, or wait for a newer revision of it",
        responses=NOT_OURS,
    )
    async def get_wanted(name: Name, caller: CurrentCaller, after: After = None, wait: Wait = 0) -> WantedDocument:
        authorize_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)

        def revision() -> int:
            with service.store.read() as unit:
                return require_element(unit, name).wanted_revision

        def show() -> WantedDocument:
            record_agent_heartbeat(service.store, name)
            with service.store.read() as unit:
                return elements.make_wanted_document(unit, name)

        await run_in_threadpool(record_agent_heartbeat, service.store, name)
        await wait_until_newer(service.change_feed, f"element:{name}", revision, after, wait)
        return await run_in_threadpool(show)

    @router.post(
        "/{name}/confirmed",
        operation_id="confirm_element",
        summary="Say that a host or gateway carries exactly what a revision wants",
        status_code=HTTPStatus.NO_CONTENT,
        responses=NOT_OURS,
    )
    def confirmed(name: Name, confirmation: Confirmation, caller: CurrentCaller) -> None:
        authorize_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)
        record_agent_heartbeat(service.store, name)
        with service.store.change(who=caller.who) as unit:
            elements.confirm_revision(unit, name, confirmation.revision, drain)

    @router.post(
        "/{name}/trouble",
        operation_id="report_trouble",
        summary="Say why a host or gateway cannot carry what a revision wants",
        status_code=HTTPStatus.NO_CONTENT,
        responses=NOT_OURS,
    )
    def trouble(name: Name, report: ElementErrorReport, caller: CurrentCaller) -> None:
        authorize_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)
        record_agent_heartbeat(service.store, name)
        with service.store.change(who=caller.who) as unit:
            elements.record_agent_error(unit, name, report.message, report.clusters, drain)
            fail_refused_clusters(unit, name, report.refused, drain)

    @router.post(
        "/{name}/drifted",
        operation_id="report_drift",
        summary="Say that a host or gateway found itself different from what it confirmed",
        status_code=HTTPStatus.NO_CONTENT,
        responses=NOT_OURS,
    )
    def drifted(name: Name, confirmation: Confirmation, caller: CurrentCaller) -> None:
        authorize_element(service.store, caller, Action.SPEAK_FOR_ELEMENT, name)
        record_agent_heartbeat(service.store, name)
        with service.store.change(who=caller.who) as unit:
            elements.reset_confirmation(unit, name, f"found different from revision {confirmation.revision}", drain)

    return router
